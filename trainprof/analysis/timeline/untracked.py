"""Where moments that no part of a step covers lie: between which spans, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.stacks.samples import PartsOfLoop
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.ledger import (
    ANYWHERE,
    BEFORE_BACKWARD,
    BETWEEN_FORWARDS,
    ELSEWHERE,
    IN_CLOSURE,
    PLACE_BETWEEN,
    PLACES,
)
from trainprof.record.schema import ForwardFlag, Kind

# Neither a span nor, as -1 is, what the outermost ones are in.
_NONE: Final = -2


@dataclass(frozen=True, slots=True)
class Gaps:
    """Of moments that no part of a step covers, where each lies, shape (n,).

    Attributes:
        start_ns: When what came before it ended, zero_grad and what may come anywhere apart; of a
            moment inside of that, when it began.
        place: Its name, as a ledger's `other_by_place` has it.
        is_models: Whether torch that computes there is the model's own work: between forward and
            backward, or between two forwards that a backward may go through.
    """

    start_ns: Int64
    place: npt.NDArray[np.str_]
    is_models: Bool


def gaps_at(parts: PartsOfLoop, times: Int64) -> Gaps:
    """Returns where moments lie: between outermost spans or, in a closure, those of its call."""
    events = parts.events
    spans, owner = _spans(parts)
    around = parts.nesting.innermost(events, times, besides=~events.is_kind(Kind.CLOSURE))
    before, after = _neighbours(events, spans, owner, times, around)
    is_between = (before >= 0) & (after >= 0)
    is_between[is_between] &= events.end[before[is_between]] <= times[is_between]
    place = np.full(len(times), ELSEWHERE, dtype=np.array(PLACES).dtype)
    first, last = before[is_between], after[is_between]
    place[is_between] = np.array(PLACES)[PLACE_BETWEEN[events.kind[first], events.kind[last]]]
    is_models = place == BEFORE_BACKWARD
    # A backward goes through no teacher, nor through what only chooses.
    learns = events.flags[first] & events.flags[last] & ForwardFlag.GRAD > 0
    is_models[is_between] |= (place[is_between] == BETWEEN_FORWARDS) & learns
    begins = events.kind[spans] != Kind.ZERO_GRAD
    behind, _ = _neighbours(events, spans[begins], owner[begins], times, around)
    place = np.where(around >= 0, IN_CLOSURE, place)
    return Gaps(_since(events, behind, times, around), place, is_models)


def _spans(parts: PartsOfLoop) -> tuple[Int64, Int64]:
    """Returns the outermost spans and those of closures in order of start, and each's closure."""
    events, parent = parts.events, parts.nesting.parent
    in_closure = (parent >= 0) & (events.kind[parent] == Kind.CLOSURE)
    is_span = in_closure.copy()
    is_span[parts.attribution.top] = True
    spans = np.flatnonzero(is_span & ~events.is_kind(*ANYWHERE))
    return spans, np.where(in_closure, parent, -1)[spans].astype(np.int64)


def _neighbours(
    events: Events, spans: Int64, owner: Int64, times: Int64, around: Int64
) -> tuple[Int64, Int64]:
    """Returns the last span that began by each moment and the next one, -1 for none.

    Args:
        times, around: The moments, and the closure around each, -1 for none.
    """
    before, after = np.full((2, len(times)), -1, dtype=np.int64)
    for is_inside in (False, True):
        mine, here = (owner >= 0) == is_inside, (around >= 0) == is_inside
        index, of = (np.pad(column[mine], 1, constant_values=_NONE) for column in (spans, owner))
        following = np.searchsorted(events.start[spans[mine]], times[here], side="right")
        for neighbours, place in ((before, following), (after, following + 1)):
            neighbours[here] = np.where(of[place] == around[here], index[place], -1)
    return before, after


def _since(events: Events, behind: Int64, times: Int64, around: Int64) -> Int64:
    """Returns when each moment's gap began: behind a span, or where the closure around it did."""
    since = np.zeros(len(times), dtype=np.int64)
    since[around >= 0] = events.start[around[around >= 0]]
    has = behind >= 0
    start, end = events.start[behind[has]], events.end[behind[has]]
    since[has] = np.where(end <= times[has], end, start)
    return since
