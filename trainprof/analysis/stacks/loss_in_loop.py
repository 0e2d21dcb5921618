"""What code between the parts of a step computes with torch, and what of it is a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.stacks.hot_lines import is_met_at
from trainprof.analysis.stacks.samples import (
    LOSS,
    MIN_SAMPLES,
    NO_TORCH,
    TORCH,
    UNKNOWN,
    LineNames,
    PartsOfLoop,
    StackSamples,
    thread_samples,
)
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.timeline.events import Bool, Events, Int32, Int64
from trainprof.analysis.timeline.intervals import EVER, Coverage
from trainprof.analysis.timeline.ledger import (
    ANYWHERE,
    BEFORE_BACKWARD,
    BETWEEN_FORWARDS,
    ELSEWHERE,
    KEY,
    PLACE_BETWEEN,
    PLACES,
    Attribution,
    LossInLoop,
    loop_seconds,
)
from trainprof.record.schema import ForwardFlag, Kind, SyncFlag

# Neither a span nor -1, which is around the outermost ones.
_NONE: Final = -2
# A LossInLoop's number of this place.
_IN_CLOSURE: Final = len(PLACES)
# These turn a tensor into an array or a list: code after them may compute without torch.
_HAND_OVER: Final = (SyncFlag.TOLIST, SyncFlag.NUMPY)
# Single values read: more of them are a loop over numbers, likewise without torch.
_MANY_READS: Final = 8
NEVER_NS: Final = 1 << 62
# Of the samples at a line.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class SampledLoop:
    """The stack samples of the training thread, and its time with the loss that they show.

    Attributes:
        until_ns: When counting of some kind of reads ended.
    """

    samples: StackSamples
    parts: PartsOfLoop
    names: LineNames
    until_ns: int


def sampled_loop(run: Analysed, attribution: Attribution) -> SampledLoop:
    """Returns the samples with what of the loop's code is torch: a loss of it is the model's.

    Such a sample met the thread on a core with the GIL free, in code of the user's, torch's or a
    library that uses torch, with no tensor turned into an array or list in that gap. A line where
    most samples met torch counts as torch: the others met it between two operators.
    """
    timeline, metadata = run.timeline, run.metadata
    samples = thread_samples(run.process.details, timeline.thread)
    names = LineNames(metadata.texts, run.sites())
    until_ns = min(metadata.reads_counted_until().values(), default=NEVER_NS)
    parts = PartsOfLoop(timeline.events, timeline.nesting, attribution, timeline.window)
    is_here = parts.at(samples.taken_ns) == KEY["other"]
    here = samples.where(is_here)
    asked = int(np.count_nonzero(parts.at(samples.wanted_ns) == KEY["other"]))
    if asked < MIN_SAMPLES or not len(here):
        return SampledLoop(samples, parts, names, until_ns)
    gaps = gaps_at(parts, here.taken_ns)
    is_torch = here.is_operator & (here.held_ns == 0)
    is_torch &= ~_was_handed_over(parts, gaps.start_ns, here.taken_ns)
    is_torch, is_known = _by_line(is_torch, here, names, until_ns)
    asked -= int(np.count_nonzero(~is_known))
    is_loss = is_torch & gaps.is_models & (asked >= MIN_SAMPLES)
    samples.torch[is_here] = np.select(
        [is_loss, is_torch, is_known], [LOSS, TORCH, NO_TORCH], UNKNOWN
    )
    if asked >= MIN_SAMPLES:
        spent_s = loop_seconds(timeline.events, attribution, timeline.window)["other"]
        each_ns = spent_s * 1e9 / max(asked, int(np.count_nonzero(is_loss)))
        loss = _part_of(_models_gaps(parts), gaps.place[is_loss], each_ns)
        parts = replace(parts, attribution=replace(attribution, loss=loss))
    return SampledLoop(samples, parts, names, until_ns)


def _part_of(gaps: LossInLoop, met: npt.NDArray[np.uint8], each_ns: float) -> LossInLoop:
    """Returns the part of the gaps that is a loss, by the places where samples met one."""
    share = np.zeros(len(gaps.ns))
    for place in np.unique(met).tolist():
        here = gaps.place == place
        spent_ns = float(np.count_nonzero(met == place)) * each_ns
        share[here] = min(spent_ns / max(int(gaps.ns[here].sum()), 1), 1.0)
    return replace(gaps, ns=(share * gaps.ns).astype(np.int64))


def with_torch_share(
    lines: Sequence[HotLine], samples: StackSamples, names: LineNames
) -> list[HotLine]:
    """Returns the lines, those between the parts of a step with torch's share of them."""
    known = samples.where((samples.torch == TORCH) | (samples.torch == NO_TORCH))
    shared = []
    for line in lines:
        is_torch = known.torch[is_met_at(line, known, names)] == TORCH
        if line.part == "other" and len(is_torch):
            line = replace(line, torch_share=float(is_torch.mean()))
        shared.append(line)
    return shared


def _by_line(
    is_torch: Bool, samples: StackSamples, names: LineNames, until_ns: int
) -> tuple[Bool, Bool]:
    """Returns which samples met a line where most of them met torch, and where that is known.

    After counting of reads ended the line's earlier samples decide. Without any, a line may be
    known not to be torch, but not to be it.
    """
    numbers, which = np.unique(samples.stack, return_inverse=True)
    lines = [names.frames(number) for number in numbers.tolist()]
    sites = [frames[0][0] if frames else "" for frames in lines]
    place = np.unique(np.array(sites), return_inverse=True)[1][which]
    is_early = samples.taken_ns <= until_ns
    early, rest = (_is_mostly(is_torch, mask, place) for mask in (is_early, ~is_early))
    was_met = np.bincount(place, weights=is_early) > 0
    return (was_met & early)[place], (was_met | ~rest)[place]


def _is_mostly(is_torch: Bool, mask: Bool, place: Int64) -> Bool:
    """Returns the places where most samples of a mask met torch, shape (n_places,)."""
    met, torch = (np.bincount(place, weights=weights) for weights in (mask, is_torch & mask))
    mostly: Bool = torch > _MOSTLY * met
    return mostly


def _was_handed_over(parts: PartsOfLoop, since: Int64, until: Int64) -> Bool:
    """Returns the time spans in which Python or NumPy got the values of tensors."""
    events = parts.events
    is_read = events.is_kind(Kind.SYNC) & events.has(SyncFlag.ON_CPU)
    kind = events.flags & ~np.uint8(SyncFlag.ON_CPU)
    is_array = is_read & np.isin(kind, _HAND_OVER)
    arrays, reads = (_count(events.start[mask], since, until) for mask in (is_array, is_read))
    handed_over: Bool = (arrays > 0) | (reads >= _MANY_READS)
    return handed_over


def _count(times: Int64, since: Int64, until: Int64) -> Int64:
    counted: Int64 = np.searchsorted(times, until) - np.searchsorted(times, since)
    return counted


@dataclass(frozen=True, slots=True)
class Gaps:
    """Where moments lie that no part of a step covers, shape (n,).

    Attributes:
        start_ns: When the part before it ended, without zero_grad and what may come anywhere; of a
            moment inside of such a part, when that began.
        place: As that of a LossInLoop.
        is_models: Whether torch that computes there works for the model: between forward and
            backward, or between two forwards with gradients.
    """

    start_ns: Int64
    place: npt.NDArray[np.uint8]
    is_models: Bool


def gaps_at(parts: PartsOfLoop, times: Int64) -> Gaps:
    """Returns where moments lie: between outermost spans, or those inside a closure."""
    events = parts.events
    spans, owner = _spans(parts)
    around = parts.nesting.innermost(events, times, besides=~events.is_kind(Kind.CLOSURE))
    before, after = _neighbours(events, spans, owner, times, around)
    is_between = (before >= 0) & (after >= 0)
    is_between[is_between] &= events.end[before[is_between]] <= times[is_between]
    place = np.full(len(times), PLACES.index(ELSEWHERE), dtype=np.uint8)
    first, last = before[is_between], after[is_between]
    is_models = np.zeros(len(times), dtype=bool)
    place[is_between], is_models[is_between] = _places(events, first, last)
    begins = events.kind[spans] != Kind.ZERO_GRAD
    behind, _ = _neighbours(events, spans[begins], owner[begins], times, around)
    place[around >= 0] = _IN_CLOSURE
    return Gaps(_since(events, behind, times, around), place, is_models)


def _places(events: Events, first: Int64, last: Int64) -> tuple[npt.NDArray[np.uint8], Bool]:
    """Returns the places between spans and the next ones, and where torch works for the model."""
    place = PLACE_BETWEEN[events.kind[first], events.kind[last]]
    # Backward does not run through a teacher, nor through forwards that only select.
    learns = events.flags[first] & events.flags[last] & ForwardFlag.GRAD > 0
    is_models = place == PLACES.index(BEFORE_BACKWARD)
    is_models |= (place == PLACES.index(BETWEEN_FORWARDS)) & learns
    return place, is_models


def _models_gaps(parts: PartsOfLoop) -> LossInLoop:
    """Returns the gaps in which torch works for the model, each as a loss."""
    events, window, (spans, owner) = parts.events, parts.window, _spans(parts)
    gaps = []
    for is_inside in (False, True):
        is_here = (owner >= 0) == is_inside
        mine, around = spans[is_here], owner[is_here]
        follows = around[:-1] == around[1:]
        first, last = mine[:-1][follows], mine[1:][follows]
        place, is_models = _places(events, first, last)
        if is_inside:
            place[:] = _IN_CLOSURE
        start, end = events.end[first], events.start[last]
        is_models &= (start < end) & (start >= window.loop_start) & (end <= window.loop_end)
        gaps.append((start[is_models], end[is_models], place[is_models]))
    start, end, place = (np.concatenate(column) for column in zip(*gaps, strict=True))
    # What may come anywhere has its own ledger keys.
    key = parts.attribution.key
    apart = np.flatnonzero(events.is_kind(*ANYWHERE) & (key >= 0) & (key != KEY["other"]))
    spent = np.stack((events.start[apart], events.end[apart]), axis=1)
    covered = Coverage.of(np.concatenate((spent, parts.attribution.segments)), EVER)
    return LossInLoop(start, end - start - covered.inside_ns(start, end), place)


def _spans(parts: PartsOfLoop) -> tuple[Int32, Int32]:
    """Returns outermost spans and those in closures in order of start, and their closures."""
    events, parent = parts.events, parts.nesting.parent
    in_closure = (parent >= 0) & (events.kind[parent] == Kind.CLOSURE)
    is_span = in_closure.copy()
    is_span[parts.attribution.top] = True
    spans = np.flatnonzero(is_span & ~events.is_kind(*ANYWHERE)).astype(np.int32)
    owner = parent[spans]
    owner[~in_closure[spans]] = -1
    return spans, owner


def _neighbours(
    events: Events, spans: Int32, owner: Int32, times: Int64, around: Int64
) -> tuple[Int64, Int64]:
    """Returns the last span that began before each moment, and the next one, -1 for none.

    Args:
        times, around: The moments, and the closure around each, -1 for none.
    """
    before, after = np.full((2, len(times)), -1, dtype=np.int64)
    for is_inside in (False, True):
        mine, here = (owner >= 0) == is_inside, (around >= 0) == is_inside
        if not here.any():
            continue
        index, of = (np.pad(column[mine], 1, constant_values=_NONE) for column in (spans, owner))
        following = np.searchsorted(events.start[spans[mine]], times[here], side="right")
        for neighbours, place in ((before, following), (after, following + 1)):
            neighbours[here] = np.where(of[place] == around[here], index[place], -1)
    return before, after


def _since(events: Events, behind: Int64, times: Int64, around: Int64) -> Int64:
    """Returns when each moment's gap began: after a span, or with the closure around it."""
    since = np.zeros(len(times), dtype=np.int64)
    since[around >= 0] = events.start[around[around >= 0]]
    has = behind >= 0
    start, end = events.start[behind[has]], events.end[behind[has]]
    since[has] = np.where(end <= times[has], end, start)
    return since
