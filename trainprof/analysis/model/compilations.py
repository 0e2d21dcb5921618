"""The time that torch.compile takes to compile."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import Sites
from trainprof.analysis.summary.code import Compilation
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import CompileFlag, Kind

# What changed before a later version.
NUMBER: Final = "number"
SHAPE: Final = "shape"


def compilations_of(
    timeline: Timeline,
    sites: Sites,
    worked: Coverage | None = None,
) -> list[Compilation]:
    """Returns compilations by line, the slowest first.

    Args:
        worked: When a device was surely busy; None without one.
    """
    rows = _calls(timeline)
    starts, took_ns = rows.start, rows.end - rows.start
    idle_ns = took_ns if worked is None else took_ns - worked.inside_ns(starts, starts + took_ns)
    is_first_part = ~rows.has(CompileFlag.LATER_PART)
    is_again = _in_training(starts, timeline) & _are_again(rows)
    names = np.array([sites[number] for number in rows.site.tolist()], dtype=object)
    lines = []
    for name in dict.fromkeys(names.tolist()):
        here = names == name
        lines.append(
            Compilation(
                site=name,
                count=int((here & is_first_part).sum()),
                seconds=int(took_ns[here].sum()) / 1e9,
                again=int((here & is_again & is_first_part).sum()),
                again_s=int(took_ns[here & is_again].sum()) / 1e9,
                most_versions=int(rows.value[here].max()) + 1,
                again_for=_reasons(rows.flags[here & is_again & is_first_part]),
                again_idle_s=None if worked is None else int(idle_ns[here & is_again].sum()) / 1e9,
            )
        )
    return sorted(lines, key=lambda line: -line.seconds)


def _are_again(rows: Events) -> Bool:
    """Returns which are versions of code that was compiled before in the same mode.

    The first version for training after one for evaluation does not count, nor the reverse. Later
    parts of a version have its number, and no reason of their own.
    """
    is_first = ~rows.has(CompileFlag.LATER_PART)
    is_other_mode = is_first & rows.has(CompileFlag.OTHER_MODE)
    versions = list(zip(rows.site.tolist(), rows.value.tolist(), strict=True))
    modes = {versions[index] for index in np.flatnonzero(is_other_mode)}
    known = np.array([version in modes for version in versions], dtype=bool)
    again: Bool = (rows.value > 0) & ~known
    return again


def _reasons(flags: npt.NDArray[np.uint8]) -> list[str]:
    """Returns what changed, most frequent first, as far as torch reports it."""
    names = {CompileFlag.OTHER_NUMBER: NUMBER, CompileFlag.OTHER_SHAPE: SHAPE}
    counts = {name: int(np.count_nonzero(flags & flag)) for flag, name in names.items()}
    return sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])


def compiling_in_training(timeline: Timeline) -> Coverage:
    """Returns when the training thread compiled in its loop, without evaluation."""
    calls = _calls(timeline)
    spans = np.stack((calls.start, calls.end), axis=1)[_in_training(calls.start, timeline)]
    return Coverage.of(spans, (timeline.window.loop_start, timeline.window.loop_end))


def _calls(timeline: Timeline) -> Events:
    """Returns what the training thread compiled in the run, in order."""
    events, window = timeline.events, timeline.window
    is_inside = (events.end > window.start) & (events.start < window.end)
    return events.where(events.is_kind(Kind.COMPILE) & is_inside)


def _in_training(starts: Int64, timeline: Timeline) -> Bool:
    window = timeline.window
    inside: Bool = (starts >= window.loop_start) & (starts < window.loop_end)
    return inside & ~within(timeline.segments, starts)
