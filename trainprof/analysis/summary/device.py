"""Devices: copies, syncs, memory and energy; and the memory growth of the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

AFTER_WARMUP: Final = "training after its warm-up"
# The parts of a step after which a device may be idle.
KEEPS_UP_IN: Final = ("forward", "backward", "optimizer")
ENERGY_COUNTER: Final = "counter"
ENERGY_ESTIMATED: Final = "estimated"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copies between devices from one line.

    Attributes:
        direction: h2d|d2h|d2d.
        device_s: Upper bound of the `timed` copies' time on the device; None without any.
        gb_per_s: Lower bound of their throughput, in 10^9 bytes.
        exposed_s: Time in which the device was idle for them; None: unknown.
        beside_share: Share that overlapped other work, on another stream; None: unknown.
        by_library_share: Share that a library made for the line, as a container's `to` does.
        is_made_there: In the line's text a torch function creates the copied tensor.
        exposed_in_training_s, in_training: The part of `exposed_s` and `count` in the training
            phase; None as `exposed_s` may be.
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

    Attributes:
        on_cpu: Calls on CPU tensors, which never wait.
        exposed_s: The part of `seconds` in which the device was surely idle.
        counted_until_s: When counting calls on CPU tensors stopped, since the run's start; None if
            all are counted.
        exposed_in_training_s, in_training: The part of `exposed_s`, and of waiting calls, in
            training outside of evaluation; None as `exposed_s` may be.
        held_back_s: Low and high of the device's idle time after them, in steady training, that a
            host that had not waited would have avoided; None as `exposed_s` may be.
        library_share: Of the calls that waited, those that a library made for the line, or None.
        needed_s: The part of `exposed_in_training_s` in torch's optimizer steps, gradient scalers
            and checkpoints, which no script can avoid.
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
        """Returns the sort key: exposed time with the idle time after it, if known."""
        after_s = self.held_back_s[0] if self.held_back_s else 0.0
        return -(self.exposed_s or 0.0) - after_s, -(self.seconds or 0.0), -self.count


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the script worked on, in the training phase.

    Attributes:
        index, name: As in the script; such as "cuda:0".
        busy_share: Low and high of its busy share, without copies, of the phase without `warmup_s`.
            None: unknown.
        idle_because: Seconds in which it may have been idle, by what the training thread did:
            {loader_s, copy_s, sync_s, host_s, launch_s, evaluation_s, checkpoint_s, startup_s,
            warmup_s, compile_s, unknown_s}. launch_s: between kernels, by the driver's report;
            startup_s: before its first work; warmup_s: the first steps beyond the usual time of a
            step, busy time included; compile_s: later compilation; unknown_s: between the bounds of
            `busy_share`, mostly while kernels are launched. They add up to the phase without the
            lower bound of its busy time. None: unknown.
        per_step_s: Its time for the phases and copies of a mean steady step, by ledger key.
        queue_delay_s: Low and high of the mean delay from launching a phase to its start. Near 0 it
            waits for the host.
        memory: From its allocator, or None.
        marks: CUDA events that the figures rest on.
        seconds: Its time for phases and copies over the run, by ledger key.
        exposed_s: {data_wait, transfer, sync}: low and high of its idle time while the host waited
            in them; copying itself is in `transfer`.
        ran_dry: {forward, backward, optimizer}: share of those at whose end it was about idle: it
            keeps up with the host, and waits for it.
        launch_bound_share: Low and high of the share in which it was idle while the host was in
            Python or launching kernels.
        copy_wait_s: The part of `copy_s` in which the host was in a copy and the device did not
            copy.
        kernel_share: Of training after warm-up, the share in which a kernel ran, by NVIDIA's
            driver; None where the bounds do not use it.
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
        """The warm-up that its shares of training exclude."""
        return (self.idle_because or {}).get("warmup_s", 0.0)

    @property
    def time(self) -> str:
        """The base of its shares, in words."""
        return AFTER_WARMUP if self.warmup_s else "training"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory by torch's allocator, whose statistics were not reset.

    Attributes:
        readings: Their number, taken now and then at the ends of phases.
        limit_bytes: The device's memory, or the part that the script allows itself.
        peak_allocated_bytes: Peak of memory in tensors.
        peak_reserved_bytes: Peak of reserved memory, in tensors or cached.
        is_peak_sampled: The allocator keeps no peak: these are the highest readings.
        retries: Allocations that succeeded only after cached memory was freed.
        out_of_memory_errors: Raised, caught by the script or not.
        between_steps_bytes: In tensors at the end of a step, median.
        growth_bytes_per_step: Slope of that.
        growth_steps: Steps that the slope rests on.
        is_growing: Whether the growth is significant and large enough.
        not_observed: Why a figure is empty, by its name.
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
    """An out-of-memory error that ended the run; sizes from torch's message.

    Attributes:
        device: Such as "cuda:0", or None.
        site: Your file:line, or None.
        requested_bytes: Of the failed allocation.
        total_bytes, free_bytes: Of the device; `free` is unused by any process.
        allocated_bytes: In this process's tensors.
        kept_bytes: Cached by torch, outside of tensors.
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
    """Warnings of torch's sync debug mode while it was on.

    Attributes:
        first_step: 0-based.
        steps: Number of steps with the mode on.
        calls: By line, most first, without those that are sync points or transfers.
        known_calls: The number of the latter.
    """

    first_step: int
    steps: int
    calls: list[FoundSync]
    known_calls: int


@dataclass(frozen=True, slots=True)
class EmptiedCache:
    """Calls of empty_cache() from one line of the training loop.

    Attributes:
        site: Your file:line.
        count: Of calls.
        seconds: Of the host in them; they wait for the device.
        idle_s: The part in which the device was surely idle.
        between_s: The part of `idle_s` between the parts of steps.
    """

    site: str
    count: int
    seconds: float
    idle_s: float
    between_s: float


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Growth of the training process's memory in steady training.

    Attributes:
        bytes_per_step: With evaluation.
        steps: Their number.
        first_bytes, last_bytes: Resident memory, without mapped files if known.
        room_bytes: Free at the end, of the host or within the container's limit; None: unknown.
        passes: Epochs that began in these steps.
    """

    bytes_per_step: float
    steps: int
    first_bytes: float
    last_bytes: float
    room_bytes: float | None
    passes: int

    @property
    def steps_left(self) -> float | None:
        """Returns the number of steps until memory is full; None where unknown.

        In the first epoch the growth may be data that is read or mapped.
        """
        if self.room_bytes is None or self.passes < 2 or self.bytes_per_step <= 0:
            return None
        return self.room_bytes / self.bytes_per_step


@dataclass(frozen=True, slots=True)
class CopiedPages:
    """Shared memory that a loader's forked workers copied (copy on write).

    Attributes:
        site: Your line that builds the loader.
        workers: Number of workers that copied at once.
        first_bytes, last_bytes: Private memory of each.
        seconds: Between the two.
        python_objects: Attributes of the dataset with Python objects, which are copied.
    """

    site: str
    workers: int
    first_bytes: float
    last_bytes: float
    seconds: float
    python_objects: list[str]


@dataclass(frozen=True, slots=True)
class Utilization:
    """Share of the time in which a kernel ran, in percent, weighted by time.

    NVML reports it for windows of a sixth of a second to a second.
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
        logical_index: The script's number by CUDA_VISIBLE_DEVICES, or None.
        is_visible: Whether the script can see it; None: unknown.
        is_number_assumed: CUDA may number the devices in another order than NVML.
        is_used: Whether a process of the run used it; None: unknown.
        throttled_share: Share of the time in which power, temperature or hardware limited clocks.
        processes: {pid, role: own|other|unknown, bytes (at most)}, largest first; unknown: the pid
            is of another PID namespace.
        mig: {uuid, memory_bytes, logical_index} of each instance; None without MIG.
        energy_source: counter, or estimated where a part is from power samples.
        seen_s: First and last sample, s since the run's start.
        not_observed: Why a metric has no values, or no later ones.
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
    """Energy of the script's GPUs: those that it used, else those it can see.

    Attributes:
        gpus: NVML's numbers of the GPUs counted.
        samples_per_wh: Training samples per energy of the whole run.
    """

    wh: float
    source: str
    gpus: list[int]
    samples_per_wh: float | None
