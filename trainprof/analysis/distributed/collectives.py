"""Calls of torch.distributed, and ranks that the others wait for.

A step takes the time of the slowest rank. Ranks meet where gradients are averaged: in backward, in
a forward that sends buffers, or in the script's collectives. There the others wait for the time
that one rank spends elsewhere beyond all others. They also wait for a rank that computes longer:
its forward is longer though it does not start earlier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import Sites
from trainprof.analysis.summary.code import Collective
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.ledger import Attribution, within
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import COLLECTIVES, Kind

_UNKNOWN: Final = "unknown"
# No rank waits for another one in these.
_OWN: Final = (
    "loader_start",
    "first_batch",
    "data_wait",
    "loader_end",
    "transfer",
    "checkpoint",
    "evaluation",
    "gc",
)
_BETWEEN: Final = ("other",)
_COMPUTING: Final = ("forward",)
_CLEARLY: Final = 2
# Calls of torch.distributed, which have no ledger key.
COMMUNICATION: Final = "communication"
# Where gradients are averaged, and buffers or shards sent.
_MEETING: Final = ("forward", "backward", COMMUNICATION)
_MEETING_BEHIND: Final = ("backward", COMMUNICATION)
# Of longer computing, and of its steps: the share of a single rank.
_MOSTLY: Final = 0.7
# Standard errors by which that exceeds taking turns.
_SURELY: Final = 3.0
# Of a forward: a longer backward contains waiting.
_BACKWARD_TIMES: Final = 2.0
# Of a usual step: a straggler is behind all others by this share (TraceML's straggler score).
_LATE_SHARE: Final = 0.1
_FEWEST_STEPS: Final = 20
# Ranks that train together take the same time, except for their first and last steps.
_MOST_APART: Final = 0.1
# Stragglers are reported from these shares on: of the steps, or of their time.
_TOLD_FROM_SHARE: Final = 0.05
_TOLD_FROM_TIME: Final = 0.01


@dataclass(frozen=True, slots=True)
class Collectives:
    """Calls between the parts of a step, without those of a forward or an evaluation.

    Attributes:
        by_line: Most time first.
        per_step: Of each step, ns, shape (n_steps,).
        in_checkpoints: The same, of calls in checkpoints, which are not in the others.
    """

    by_line: list[Collective]
    per_step: Int64
    in_checkpoints: Int64


def collectives_of(
    details: npt.NDArray[np.void], timeline: Timeline, attribution: Attribution, sites: Sites
) -> Collectives:
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
    """Returns the time in each [begin, stop) of spans that start in it."""
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
    lines = [Collective(*key, count, ns / 1e9) for key, (count, ns) in totals.items()]
    return sorted(lines, key=lambda line: -line.seconds)


def python_ns(per_step: Mapping[str, Int64], collectives: Collectives) -> Int64:
    """Returns the time between the parts of each step, without torch.distributed calls."""
    left: Int64 = np.maximum(per_step["other"] - collectives.per_step, 0)
    return left


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of one rank.

    Attributes:
        spent: Time of each step by ledger key, ns, shape (n,), with `evaluation`, and with
            COMMUNICATION, which is taken from `other`.
    """

    rank: int
    spent: Mapping[str, Int64]

    def __len__(self) -> int:
        return min(map(len, self.spent.values()), default=0)


@dataclass(frozen=True, slots=True)
class Straggler:
    """The cause of the other ranks' waiting for a rank.

    Attributes:
        phase: Ledger key.
        share_of_steps: In which it was last because of that.
        seconds: Steps would have been shorter by this, had the rank been like the slowest of the
            others; under `forward` with its backward in proportion.
    """

    rank: int
    phase: str
    share_of_steps: float
    seconds: float


def stragglers(ranks: Sequence[RankSteps]) -> list[Straggler]:
    """Returns which ranks were last, and why, most seconds first.

    [] where not all ranks take part in each step, and with few steps.
    """
    steps = min(map(len, ranks), default=0)
    if len(ranks) < 2 or steps < _FEWEST_STEPS:
        return []
    walls = np.array([_sum(rank, tuple(rank.spent), steps) for rank in ranks])
    whole_ns = walls.sum(axis=1)
    if whole_ns.min() < (1 - _MOST_APART) * whole_ns.max():
        return []
    least_ns = _LATE_SHARE * float(np.median(walls))
    last, behind = _last([_sum(rank, _OWN, steps) for rank in ranks])
    last_between, between = _last([_sum(rank, _BETWEEN, steps) for rank in ranks])
    # A rank that waits there, unseen, is late because of another rank.
    is_between = between >= _CLEARLY * behind
    is_between &= _is_waited_for(ranks, _MEETING, last_between, between)
    late = _rows(ranks, _BETWEEN, last_between, _from(least_ns, between, is_between))
    late += _rows(ranks, _OWN, last, _from(least_ns, behind, ~is_between))
    late += _computing(ranks, steps, least_ns)
    least_s = _TOLD_FROM_TIME * float(whole_ns.max()) / 1e9
    kept = [x for x in late if x.share_of_steps >= _TOLD_FROM_SHARE or x.seconds >= least_s]
    return sorted(kept, key=lambda rank: -rank.seconds)


def _sum(rank: RankSteps, keys: Sequence[str], steps: int) -> Int64:
    columns = [rank.spent[key][:steps] for key in keys if key in rank.spent]
    total: Int64 = np.sum(columns, axis=0) if columns else np.zeros(steps, dtype=np.int64)
    return total


def _last(spent: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Returns for each step the position of the slowest rank, and its excess over all others."""
    table = np.array(spent)
    ordered = np.sort(table, axis=0)
    last: Int64 = table.argmax(axis=0)
    behind: Int64 = ordered[-1] - ordered[-2]
    return last, behind


def _from(least_ns: float, behind: Int64, where: Bool) -> Int64:
    """Returns `behind` where it counts, else 0."""
    return np.where((behind >= least_ns) & where, behind, 0)


def _computing(ranks: Sequence[RankSteps], steps: int, least_ns: float) -> list[Straggler]:
    """Returns the rank that computes longer than all others, if it is mostly the same rank.

    A rank that waits in forward for a late one does not reach backward later than that one.
    """
    last, longer = _last([_sum(rank, _COMPUTING, steps) for rank in ranks])
    ahead = np.array([_sum(rank, (*_OWN, *_BETWEEN, *_COMPUTING), steps) for rank in ranks])
    others = ahead.copy()
    others[last, np.arange(steps)] = np.iinfo(np.int64).min
    later = ahead[last, np.arange(steps)] - others.max(axis=0)
    is_last = (later >= longer / 2) & _is_waited_for(ranks, _MEETING_BEHIND, last, longer)
    longer = _from(least_ns, np.minimum(longer, later), is_last)
    longer[0] = 0  # what a first forward sets up
    by_rank = np.bincount(last, weights=longer, minlength=len(ranks))
    counted = np.bincount(last[longer > 0], minlength=len(ranks))
    slowest, all_steps = int(by_rank.argmax()), int(counted.sum())
    in_turn = 1 / len(ranks)
    if all_steps < _FEWEST_STEPS or by_rank[slowest] < _MOSTLY * by_rank.sum():
        return []
    chance = in_turn + _SURELY * math.sqrt(in_turn * (1 - in_turn) / all_steps)
    if counted[slowest] < max(_MOSTLY, chance) * all_steps:
        return []
    rank, is_counted = ranks[slowest], (last == slowest) & (longer > 0)
    forward_ns, backward_ns = (
        float(_sum(rank, (key,), steps)[is_counted].sum()) for key in ("forward", "backward")
    )
    with_backward = 1 + min(backward_ns / max(forward_ns, 1.0), _BACKWARD_TIMES)
    seconds = float(longer[is_counted].sum()) * with_backward / 1e9
    return [Straggler(rank.rank, "forward", float(is_counted.mean()), seconds)]


def _is_waited_for(
    ranks: Sequence[RankSteps], where: Sequence[str], last: Int64, behind: Int64
) -> Bool:
    """Returns the steps in which all others were longer where ranks meet, by half of that or more.

    Else no rank waits for the one that is last in `other`, or that one waits itself.
    """
    meeting = np.array([_sum(rank, where, len(last)) for rank in ranks])
    own = meeting[last, np.arange(len(last))]
    ordered = np.sort(meeting, axis=0)
    shortest_of_others = np.where(own <= ordered[0], ordered[1], ordered[0])
    is_waited: Bool = shortest_of_others - own >= behind / 2
    return is_waited


def _rows(
    ranks: Sequence[RankSteps], keys: Sequence[str], last: Int64, behind: Int64
) -> list[Straggler]:
    """Returns the last rank and its key, where `behind` is not 0."""
    rows = []
    tables = [np.array([_sum(rank, (key,), len(last)) for rank in ranks]) for key in keys]
    for position, rank in enumerate(ranks):
        is_last = (last == position) & (behind > 0)
        beyond = [
            table[position] - np.delete(table, position, axis=0).max(axis=0) for table in tables
        ]
        by = np.argmax(beyond, axis=0)
        for index, key in enumerate(keys):
            is_by = is_last & (by == index)
            if is_by.any():
                share, seconds = float(is_by.mean()), float(behind[is_by].sum()) / 1e9
                rows.append(Straggler(rank.rank, key, share, seconds))
    return rows
