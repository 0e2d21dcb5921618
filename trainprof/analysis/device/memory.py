"""The memory of each device, from its allocator at the ends of phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import MAX_NUMBER, Metadata, integer
from trainprof.analysis.summary.device import Device, DeviceMemory, OutOfMemory
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.names import site_name
from trainprof.record.schema import Kind, MemoryFigure, Topic

# Growth needs at least this many steps, and readings between steps.
_MIN_GROWTH_STEPS: Final = 50
_MIN_GROWTH_READINGS: Final = 20
# In each of this number of stretches the minimum has to exceed that of the one before.
_STRETCHES: Final = 4
_LOW, _HIGH = 10, 90
# Growth matters from any of these on: per step, as a share, in total.
_GROWS_A_STEP_BYTES: Final = 1_000_000
_GROWS_SHARE: Final = 0.05
_GROWS_BYTES: Final = 1 << 30
# Slopes are of all pairs of at most this many readings.
_MOST_PAIRED: Final = 400
# Devices have smaller numbers; a damaged log may hold any.
_MOST_DEVICES: Final = 1 << 7
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Readings:
    """One device's readings in order; columns of shape (n,), -1 where not recorded.

    Attributes:
        at_ns: Time: the end of a phase, exactly.
        figures: Bytes or counts by MemoryFigure.
    """

    at_ns: Int64
    thread: Int64
    figures: dict[MemoryFigure, Int64]

    def __len__(self) -> int:
        return len(self.at_ns)

    def of(self, figure: MemoryFigure) -> Int64 | None:
        """Returns a figure's column, None if never recorded."""
        column = self.figures[figure]
        return column if (column >= 0).any() else None

    def where(self, mask: Bool) -> Readings:
        return Readings(
            self.at_ns[mask],
            self.thread[mask],
            {figure: column[mask] for figure, column in self.figures.items()},
        )


def readings_of(details: npt.NDArray[np.void], device: int) -> Readings:
    """Returns one device's readings of a process's details, unchanged figures filled in."""
    rows = details[(details["kind"] == Kind.DEVICE_MEMORY) & (details["site"] == device)]
    flags, is_reading = rows["flags"], rows["flags"] == MemoryFigure.ALLOCATED
    number = np.cumsum(is_reading) - 1
    count = int(is_reading.sum())
    figures = {}
    for figure in MemoryFigure:
        has_figure = (flags == figure) & (number >= 0)
        latest = np.full(count, _UNKNOWN, dtype=np.int64)
        latest[number[has_figure]] = np.arange(int(has_figure.sum()))
        latest = np.maximum.accumulate(latest) if count else latest
        values = np.append(rows["value"][has_figure].astype(np.int64), _UNKNOWN)
        values[(values < 0) | (values >= MAX_NUMBER)] = _UNKNOWN
        figures[figure] = values[latest]
    own = rows[is_reading]
    return Readings(own["start"].astype(np.int64), own["thread"].astype(np.int64), figures)


def with_memory(
    devices: Sequence[Device] | None,
    details: npt.NDArray[np.void],
    timeline: Timeline,
    *,
    kind: str,
    warmup: int,
    is_part: bool,
) -> list[Device] | None:
    """Adds each device's memory; a device without other figures gets a new row.

    Of a part of a run, the readings in the timeline's window count.
    """
    rows = {device.index: device for device in devices or ()}
    is_memory = details["kind"] == Kind.DEVICE_MEMORY
    known = is_memory & (details["site"] < _MOST_DEVICES)
    for index in np.unique(details["site"][known]).tolist():
        readings = readings_of(details, index)
        if is_part:
            window = timeline.window
            readings = readings.where(
                (readings.at_ns >= window.start) & (readings.at_ns <= window.end)
            )
        if len(readings) == 0:
            continue
        memory = _device_memory(readings, timeline, warmup=warmup)
        row = rows.get(index) or Device(
            index=index,
            name=f"{kind}:{index}",
            busy_share=None,
            idle_because=None,
            per_step_s={},
            queue_delay_s=None,
            memory=None,
            marks=0,
        )
        rows[index] = replace(row, memory=memory)
    return [rows[index] for index in sorted(rows)] or None


def _device_memory(readings: Readings, timeline: Timeline, *, warmup: int) -> DeviceMemory:
    peaks = readings.of(MemoryFigure.PEAK_ALLOCATED)
    reserved_figure = MemoryFigure.RESERVED if peaks is None else MemoryFigure.PEAK_RESERVED
    reserved, limits = readings.of(reserved_figure), readings.of(MemoryFigure.LIMIT)
    allocated = readings.figures[MemoryFigure.ALLOCATED] if peaks is None else peaks
    memory = DeviceMemory(
        readings=len(readings),
        limit_bytes=None if limits is None else int(limits[-1]),
        peak_allocated_bytes=int(allocated.max()),
        peak_reserved_bytes=None if reserved is None else int(reserved.max()),
        is_peak_sampled=peaks is None,
        retries=_counted(readings.of(MemoryFigure.RETRIES)),
        out_of_memory_errors=_counted(readings.of(MemoryFigure.OUT_OF_MEMORY)),
        between_steps_bytes=None,
        growth_bytes_per_step=None,
        growth_steps=None,
        is_growing=None,
    )
    return _with_growth(memory, readings, timeline, warmup)


def _counted(column: Int64 | None) -> int | None:
    """Returns the total increase of a count; the script may reset it."""
    if column is None:
        return None
    counts = column[column >= 0]
    up = np.diff(counts, prepend=0)
    return int(np.where(up < 0, counts, up).sum())


def _with_growth(
    memory: DeviceMemory, readings: Readings, timeline: Timeline, warmup: int
) -> DeviceMemory:
    """Adds the slope of memory in tensors at the ends of steps.

    Source:
        Theil and Sen: the median of the slopes of all pairs. Thresholds: RULES.md, GP-9.
    """
    ends = timeline.steps.ends
    first = max(warmup, len(ends) // 10)
    is_end = np.isin(readings.at_ns, ends) & (readings.thread == timeline.thread)
    step = np.searchsorted(ends, readings.at_ns[is_end])
    level = readings.figures[MemoryFigure.ALLOCATED][is_end][step >= first].astype(np.float64)
    step = step[step >= first]
    if len(step) < _MIN_GROWTH_READINGS or step[-1] - step[0] < _MIN_GROWTH_STEPS:
        why = (
            f"fewer than {_MIN_GROWTH_READINGS} readings between steps, or over fewer than "
            f"{_MIN_GROWTH_STEPS} steps after warm-up"
        )
        return replace(memory, not_observed={"growth_bytes_per_step": why})
    chosen = np.unique(np.linspace(0, len(step) - 1, _MOST_PAIRED).round().astype(int))
    x, y = step[chosen], level[chosen]
    later, earlier = np.triu_indices(len(x), 1)[::-1]
    apart = x[later] > x[earlier]
    slopes = (y[later] - y[earlier])[apart] / (x[later] - x[earlier])[apart]
    per_step, steps = float(np.median(slopes)), int(step[-1] - step[0])
    stretches = np.array_split(level, _STRETCHES)
    lows = np.array([np.percentile(part, _LOW) for part in stretches])
    stands_out = bool((np.diff(lows) > 0).all()) and lows[-1] > np.percentile(stretches[0], _HIGH)
    grown = per_step * steps
    matters = (
        per_step >= _GROWS_A_STEP_BYTES
        or grown >= _GROWS_SHARE * float(np.median(stretches[0]))
        or grown >= _GROWS_BYTES
    )
    return replace(
        memory,
        between_steps_bytes=int(np.median(level)),
        growth_bytes_per_step=per_step,
        growth_steps=steps,
        is_growing=bool(stands_out and matters and grown),
    )


def out_of_memory_of(metadata: Metadata, cwd: Any) -> OutOfMemory | None:
    """Returns the out-of-memory error that ended a process, or None."""
    for note in metadata.texts[Topic.OUT_OF_MEMORY].values():
        if not isinstance(note, dict):
            continue
        index, kind = integer(note.get("device")), note.get("kind")
        kind = kind if isinstance(kind, str) else "GPU"
        place = note.get("place")
        sizes = {name: _size(note.get(name)) for name in _SIZES}
        return OutOfMemory(
            device=kind if index is None else f"{kind}:{index}",
            site=site_name(place, cwd if isinstance(cwd, str) else None) if place else None,
            **sizes,
        )
    return None


_SIZES: Final = ("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "kept_bytes")


def _size(value: Any) -> int | None:
    size = integer(value)
    return size if size is not None and size >= 0 else None
