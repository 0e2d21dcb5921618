"""Devices, what goes to them and waits for them, their memory and energy, and the host's growth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

AFTER_WARMUP: Final = "training after its warm-up"
# The parts of a step after each of which a device may have nothing left to do.
KEEPS_UP_IN: Final = ("forward", "backward", "optimizer")
ENERGY_COUNTER: Final = "counter"
ENERGY_ESTIMATED: Final = "estimated"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies between devices from one line.

    Attributes:
        direction: h2d|d2h|d2d.
        device_s: What the `timed` ones of them took on the device, at most; None: none is.
        gb_per_s: Of those, in 10^9 bytes, at least.
        exposed_s: Time in which the device could do nothing else for them; None: not told.
        beside_share: Share that ran beside other work, on a stream of its own; None: not told.
        by_library_share: Share that a library made for the line, as a container's `to` does.
        is_made_there: By the line's text one of torch's functions makes there what is copied.
        exposed_in_training_s, in_training: Of `exposed_s` and `count`, what lies in the training
            phase; None where `exposed_s` is not told.
    """

    site: str
    direction: str
    count: int
    bytes: int
    host_s: float
    device_s: float | None
    gb_per_s: float | None
    pinned_share: float
    non_blocking_share: float
    timed: int = 0
    exposed_s: float | None = None
    beside_share: float | None = None
    by_library_share: float = 0.0
    exposed_in_training_s: float | None = None
    in_training: int | None = None
    is_made_there: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Models being moved or converted by one line (`Module.to` and its like)."""

    site: str
    count: int
    host_s: float


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """Calls from one line that need a tensor's value on the host.

    `on_cpu`: calls whose tensor lived on the host already: counted, never waited for. `exposed_s`:
    what of `seconds` the device surely had nothing to do in. `exposed_in_training_s` and
    `in_training`: of that, and of the calls that waited, what lies in the training phase outside of
    evaluation; None where `exposed_s` is. `counted_until_s`: since the run's
    start: calls on the host were so many that later ones are not counted; None where all are.
    `held_back_s`: of training once it has warmed up, for how long the device idles after them, at
    least and at most, as a host that had not waited would have kept it at work; None where
    `exposed_s` is. `library_share`: of the calls that waited, the share that a library made for the
    line, None where that is not told. `needed_s`: of `exposed_in_training_s`, what is torch's own
    in an optimizer's step, a gradient scaler's, or a checkpoint: no script can leave that out.
    """

    site: str
    kind: str
    count: int
    on_cpu: int
    seconds: float | None
    exposed_s: float | None
    counted_until_s: float | None = None
    exposed_in_training_s: float | None = None
    in_training: int | None = None
    held_back_s: list[float] | None = None
    library_share: float | None = None
    needed_s: float = 0.0

    def costliest_first(self) -> tuple[float, float, int]:
        """Returns what sorts them so: in exposed time and what comes after it, if known."""
        after_s = self.held_back_s[0] if self.held_back_s else 0.0
        return -(self.exposed_s or 0.0) - after_s, -(self.seconds or 0.0), -self.count


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the script worked on, in the training phase.

    Attributes:
        index, name: As the script has it; such as "cuda:0".
        busy_share: Of the phase without `warmup_s` it was at work, at least and at most; copies to
            and from the host are no work. None: not told.
        idle_because: Seconds in which it was not surely at work, by what the training thread did:
            {loader_s, copy_s, sync_s, host_s, launch_s, evaluation_s, checkpoint_s, startup_s,
            warmup_s, compile_s, unknown_s}. launch_s: between the kernels of phases, as far as
            its driver tells; startup_s: before it was first given something; warmup_s:
            what the first steps took beyond as many usual ones, working and compiling included;
            compile_s: compiling after them; unknown_s: between the bounds of
            `busy_share`, mostly between the kernels of a phase that is being given out. They add up
            to the phase without its surely busy time. None: not told.
        per_step_s: Its time for the phases and copies of a mean steady step, by ledger key.
        queue_delay_s: How long after the host gave them out phases began there, on average, at
            least and at most. Near 0 it waits for the host.
        memory: What its allocator told; None: nothing.
        marks: Events in its streams that the figures rest on.
        seconds: Its time for phases and copies over the run, by ledger key.
        exposed_s: {data_wait, transfer, sync}: of the time that the host waited in them, that in
            which the device had run dry, at least and at most; copying itself is in `transfer`.
        ran_dry: {forward, backward, optimizer}: share of those at whose end it had next to nothing
            left to do: it keeps up with the host, and waits for it.
        launch_bound_share: Of the same it was idle while the host was between launches, in Python
            or giving out work: at least and at most.
        copy_wait_s: Of `idle_because`'s `copy_s`, the time in which the host was in a copy and the
            device did not copy.
        kernel_share: Of training after warm-up, that in which a kernel ran by NVIDIA's driver,
            where the bounds rest on it too; None: they do not.
    """

    index: int
    name: str
    busy_share: list[float] | None
    idle_because: dict[str, float] | None
    per_step_s: dict[str, float]
    queue_delay_s: list[float] | None
    memory: DeviceMemory | None
    marks: int
    seconds: dict[str, float] = field(default_factory=dict)
    exposed_s: dict[str, list[float]] = field(default_factory=dict)
    ran_dry: dict[str, float] = field(default_factory=dict)
    launch_bound_share: list[float] | None = None
    copy_wait_s: float = 0.0
    kernel_share: float | None = None

    @property
    def warmup_s(self) -> float:
        """What its shares of training leave out."""
        return (self.idle_because or {}).get("warmup_s", 0.0)

    @property
    def time(self) -> str:
        """What its shares are of, in words."""
        return AFTER_WARMUP if self.warmup_s else "training"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What torch's allocator told of a device's memory; nothing of it was reset.

    Attributes:
        readings: How many the figures rest on; they are made at the ends of phases, now and then.
        limit_bytes: What the process may take: the device's memory, or a part set by the script.
        peak_allocated_bytes: Most that was in tensors at once.
        peak_reserved_bytes: Most that was taken from the device, in tensors or kept for later ones.
        is_peak_sampled: The allocator keeps no peak: these are the highest readings.
        retries: Allocations that only succeeded once all that was kept had been given back.
        out_of_memory_errors: Raised, caught by the script or not.
        between_steps_bytes: In tensors when a step ends, median.
        growth_bytes_per_step: Slope of that.
        growth_steps: Steps that it was seen over.
        is_growing: Whether it stands out of the ups and downs, and matters.
        not_observed: Why a figure is None, by its name.
    """

    readings: int
    limit_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    is_peak_sampled: bool
    retries: int | None
    out_of_memory_errors: int | None
    between_steps_bytes: int | None
    growth_bytes_per_step: float | None
    growth_steps: int | None
    is_growing: bool | None
    not_observed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A device out of memory, by which the run ended; sizes as torch's message tells them.

    Attributes:
        device: Such as "cuda:0", or None.
        site: The user's file:line, or None.
        requested_bytes: Asked for in vain.
        total_bytes, free_bytes: Of the device; `free` is what no process held.
        allocated_bytes: In this process's tensors.
        kept_bytes: Kept by torch besides, in no tensor.
    """

    device: str | None
    site: str | None
    requested_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    kept_bytes: int | None


@dataclass(frozen=True, slots=True)
class FoundSync:
    """Calls from one line that waited for a device in native code."""

    site: str
    count: int


@dataclass(frozen=True, slots=True)
class FoundSyncs:
    """What torch's sync debug mode told while it was on.

    Attributes:
        first_step: 0-based.
        steps: In which it was on.
        calls: By line, most first; those that are sync points or transfers anyway are left out.
        known_calls: How many those are.
    """

    first_step: int
    steps: int
    calls: list[FoundSync]
    known_calls: int


@dataclass(frozen=True, slots=True)
class EmptiedCache:
    """Calls from one line of the training loop that gave kept memory back to a device.

    Attributes:
        site: The user's file:line.
        count: How many.
        seconds: In them, of the host; they wait until the device has done what it was given.
        idle_s: Of that, in which the device had surely nothing to do.
        between_s: Of `idle_s`, that between the parts of steps.
    """

    site: str
    count: int
    seconds: float
    idle_s: float
    between_s: float


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How the memory of the process that trains grew, in steady training.

    Attributes:
        bytes_per_step: Evaluations and all.
        steps: Seen over so many.
        first_bytes, last_bytes: Resident memory then, without mapped files where that is known.
        room_bytes: Free at the end: of the host, or of the container's limit; None: not known.
        passes: Over the training data, begun in these steps.
    """

    bytes_per_step: float
    steps: int
    first_bytes: float
    last_bytes: float
    room_bytes: float | None
    passes: int

    @property
    def steps_left(self) -> float | None:
        """Returns how many more steps fill the room that was left; None where that is not known.

        In the first pass over the data it may be data that is read in, or mapped.
        """
        if self.room_bytes is None or self.passes < 2 or self.bytes_per_step <= 0:
            return None
        return self.room_bytes / self.bytes_per_step


@dataclass(frozen=True, slots=True)
class CopiedPages:
    """What forked workers of a loader copied of the memory that they share (copy on write).

    Attributes:
        site: The user's line that builds the loader.
        workers: That did so, at once.
        first_bytes, last_bytes: Private memory of each.
        seconds: Between the two.
        python_objects: Attributes of the dataset that hold many, which is what is copied.
    """

    site: str
    workers: int
    first_bytes: float
    last_bytes: float
    seconds: float
    python_objects: list[str]


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of the time some kernel ran, in percent, weighted by time.

    NVML tells the share of its own window, a sixth of a second to a second.
    """

    mean: float
    min: float
    max: float
    p5: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device over the run.

    Attributes:
        index: NVML's number.
        logical_index: The script's number by CUDA_VISIBLE_DEVICES, None where it has none.
        is_visible: Whether the script can see it; None: not known.
        is_number_assumed: CUDA may number the devices in another order than NVML.
        is_used: Whether a process of the run was on it; None: not known.
        throttled_share: Share of the time in which power, temperature or hardware limited clocks.
        processes: {pid, role: own|other|unknown, bytes (at most)}, biggest first; unknown: NVML
            tells a pid of another PID namespace.
        mig: {uuid, memory_bytes, logical_index} of each instance; None without MIG.
        energy_source: counter, or estimated where a part had to be found from power samples.
        seen_s: First and last sample, in s since the run's start.
        not_observed: Why a metric has no (more) values.
    """

    index: int
    uuid: str | None
    name: str | None
    logical_index: int | None = None
    is_visible: bool | None = None
    is_number_assumed: bool = True
    is_used: bool | None = None
    utilization: Utilization | None = None
    memory_bytes: dict[str, float] | None = None
    memory_total_bytes: float | None = None
    power_w: dict[str, float] | None = None
    power_limit_w: float | None = None
    temperature_c: dict[str, float] | None = None
    throttled_share: float | None = None
    processes: list[dict[str, Any]] | None = None
    mig: list[dict[str, Any]] | None = None
    energy_wh: float | None = None
    energy_source: str | None = None
    seen_s: list[float] = field(default_factory=list)
    not_observed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Energy:
    """What the script's GPUs used together: those that a process of it was on, else those it sees.

    Attributes:
        gpus: NVML's numbers of the GPUs counted.
        samples_per_wh: Samples trained on, by the energy of the whole run.
    """

    wh: float
    source: str
    gpus: list[int]
    samples_per_wh: float | None
