"""What is known of memory, and of calls that wait for devices in native code."""

from __future__ import annotations

from dataclasses import dataclass, field


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
