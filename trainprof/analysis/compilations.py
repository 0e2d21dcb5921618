"""What torch.compile spent on compiling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainprof.analysis.code_figures import Compilation
from trainprof.analysis.coverage import Coverage
from trainprof.analysis.events import Bool, Int64
from trainprof.analysis.ledger import within
from trainprof.analysis.names import Sites
from trainprof.analysis.timeline import Timeline
from trainprof.record.schema import CompileFlag, Kind


def compilations_of(
    details: npt.NDArray[np.void],
    timeline: Timeline,
    sites: Sites,
    worked: Coverage | None = None,
) -> list[Compilation]:
    """Returns them by line, most time first.

    Args:
        details: Of the training process.
        timeline: Of its training thread, or a part of it.
        sites: Names of its places.
        worked: When a device surely did; None without one.
    """
    rows = _rows(details, timeline)
    starts, took_ns = _starts_and_lengths(rows)
    idle_ns = took_ns if worked is None else took_ns - worked.inside_ns(starts, starts + took_ns)
    is_first_part = (rows["flags"] & CompileFlag.LATER_PART) == 0
    is_again = _in_training(starts, timeline) & (rows["value"] > 0)
    names = np.array([sites[number] for number in rows["site"].tolist()], dtype=object)
    found = []
    for name in dict.fromkeys(names.tolist()):
        here = names == name
        found.append(
            Compilation(
                site=name,
                count=int((here & is_first_part).sum()),
                seconds=int(took_ns[here].sum()) / 1e9,
                again=int((here & is_again & is_first_part).sum()),
                again_s=int(took_ns[here & is_again].sum()) / 1e9,
                most_versions=int(rows["value"][here].max()) + 1,
                again_idle_s=None if worked is None else int(idle_ns[here & is_again].sum()) / 1e9,
            )
        )
    return sorted(found, key=lambda one: -one.seconds)


def compiling_in_training(details: npt.NDArray[np.void], timeline: Timeline) -> Coverage:
    """Returns when the training thread compiled in its loop, evaluation left out."""
    starts, took_ns = _starts_and_lengths(_rows(details, timeline))
    spans = np.stack((starts, starts + took_ns), axis=1)[_in_training(starts, timeline)]
    return Coverage.of(spans, (timeline.window.loop_start, timeline.window.loop_end))


def _rows(details: npt.NDArray[np.void], timeline: Timeline) -> npt.NDArray[np.void]:
    """Returns what the training thread compiled in the run, in order."""
    rows = details[(details["kind"] == Kind.COMPILE) & (details["thread"] == timeline.thread)]
    rows = rows[(rows["end"] > timeline.window.start) & (rows["start"] < timeline.window.end)]
    found: npt.NDArray[np.void] = rows[np.argsort(rows["start"], kind="stable")]
    return found


def _starts_and_lengths(rows: npt.NDArray[np.void]) -> tuple[Int64, Int64]:
    starts = rows["start"].astype(np.int64)
    return starts, np.maximum(rows["end"].astype(np.int64) - starts, 0)


def _in_training(starts: Int64, timeline: Timeline) -> Bool:
    window = timeline.window
    inside: Bool = (starts >= window.loop_start) & (starts < window.loop_end)
    return inside & ~within(timeline.segments, starts)
