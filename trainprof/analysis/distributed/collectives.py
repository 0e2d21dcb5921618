"""Calls of torch.distributed in which the training thread waited for other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.place_names import Sites
from trainprof.analysis.summary.code import Collective
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.ledger import Attribution, within
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import COLLECTIVES, Kind

_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Collectives:
    """What lies between the parts of a step; what a forward or an evaluation calls is theirs.

    Attributes:
        by_line: Most time first.
        per_step: Of each step, ns, shape (n_steps,).
        in_checkpoints: The same, of those that ranks meet in to save one, which are in neither.
    """

    by_line: list[Collective]
    per_step: Int64
    in_checkpoints: Int64


def collectives_of(
    details: npt.NDArray[np.void], timeline: Timeline, attribution: Attribution, sites: Sites
) -> Collectives:
    """Returns the calls of the training loop.

    Args:
        details: Of the training process.
        timeline: Of its training thread, or a part of it.
        attribution: Of that thread's time.
        sites: Names of its places.
    """
    rows = details[(details["kind"] == Kind.COLLECTIVE) & (details["thread"] == timeline.thread)]
    if len(rows) == 0:
        nothing = np.zeros(len(timeline.steps.ends), dtype=np.int64)
        return Collectives([], nothing, nothing)
    rows = rows[np.argsort(rows["start"], kind="stable")]
    window, starts = timeline.window, rows["start"].astype(np.int64)
    is_here = (starts >= window.loop_start) & (starts < window.loop_end)
    is_here &= ~within(timeline.segments, starts)
    took_ns = np.maximum(rows["end"].astype(np.int64) - starts, 0)
    top = timeline.events.where(attribution.top.astype(np.int64))
    is_save = top.is_kind(Kind.CHECKPOINT_SAVE)
    saves = np.stack((top.start[is_save], top.end[is_save]), axis=1)
    is_saving = is_here & within(saves, starts)
    in_checkpoints = _per_step(starts[is_saving], took_ns[is_saving], timeline.steps.ends)
    is_here &= ~within(np.stack((top.start, top.end), axis=1), starts)
    rows, starts, took_ns = rows[is_here], starts[is_here], took_ns[is_here]
    inside_ns = _lengths_inside(starts, starts + took_ns, top.start, top.end)
    took_ns = np.maximum(took_ns - inside_ns, 0)
    per_step = _per_step(starts, took_ns, timeline.steps.ends)
    return Collectives(_by_line(rows, took_ns, sites), per_step, in_checkpoints)


def _per_step(starts: Int64, took_ns: Int64, ends: Int64) -> Int64:
    step = np.searchsorted(ends, starts, side="right")
    inside = step < len(ends)
    sums = np.bincount(step[inside], weights=took_ns[inside], minlength=len(ends))
    return sums.astype(np.int64)


def _lengths_inside(begins: Int64, stops: Int64, starts: Int64, ends: Int64) -> Int64:
    """Returns how much of each [begin, stop) the spans that start in it take."""
    sums = np.concatenate([[0], np.cumsum(ends - starts)])
    lengths: Int64 = (
        sums[np.searchsorted(starts, stops)] - sums[np.searchsorted(starts, begins)]
    ).astype(np.int64)
    return lengths


def _by_line(rows: npt.NDArray[np.void], took_ns: Int64, sites: Sites) -> list[Collective]:
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for site, number, ns in zip(
        rows["site"].tolist(), rows["flags"].tolist(), took_ns.tolist(), strict=True
    ):
        name = COLLECTIVES[number] if number < len(COLLECTIVES) else _UNKNOWN
        count, sum_ns = totals.get((sites[site], name), (0, 0))
        totals[sites[site], name] = count + 1, sum_ns + ns
    found = [Collective(*key, count, ns / 1e9) for key, (count, ns) in totals.items()]
    return sorted(found, key=lambda one: -one.seconds)


def python_ns(per_step: Mapping[str, Int64], collectives: Collectives) -> Int64:
    """Returns what of each step lies between its parts, and in no call of torch.distributed."""
    left: Int64 = np.maximum(per_step["other"] - collectives.per_step, 0)
    return left
