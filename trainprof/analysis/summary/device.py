"""What is known of devices, and of what goes to them and waits for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trainprof.analysis.summary.memory import DeviceMemory

AFTER_WARMUP: Final = "training after its warm-up"


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

    def dearest_first(self) -> tuple[float, float, int]:
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
