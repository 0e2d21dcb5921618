"""What torch.compile spent on compiling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainprof.analysis.ledger import within
from trainprof.analysis.names import Sites
from trainprof.analysis.summary import Compilation
from trainprof.analysis.timeline import Timeline
from trainprof.record.schema import CompileFlag, Kind


def compilations_of(
    details: npt.NDArray[np.void], timeline: Timeline, sites: Sites
) -> list[Compilation]:
    """Returns them by line, most time first.

    Args:
        details: Of the training process.
        timeline: Of its training thread, or a part of it.
        sites: Names of its places.
    """
    rows = details[(details["kind"] == Kind.COMPILE) & (details["thread"] == timeline.thread)]
    rows = rows[(rows["end"] > timeline.window.start) & (rows["start"] < timeline.window.end)]
    rows = rows[np.argsort(rows["start"], kind="stable")]
    starts = rows["start"].astype(np.int64)
    took_ns = np.maximum(rows["end"].astype(np.int64) - starts, 0)
    is_first_part = (rows["flags"] & CompileFlag.LATER_PART) == 0
    window = timeline.window
    in_training = (starts >= window.loop_start) & (starts < window.loop_end)
    in_training &= ~within(timeline.segments, starts)
    is_again = in_training & (rows["value"] > 0)
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
            )
        )
    return sorted(found, key=lambda one: -one.seconds)
