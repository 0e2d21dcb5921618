"""Which lines training goes to, and what of the loop's own code is torch, or happens only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.distributed.collectives import Collectives, python_ns
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.stacks.hot_lines import (
    WorkerFetches,
    hottest_lines,
    is_met_at,
    lines_of_training,
)
from trainprof.analysis.stacks.python_in_model import element_reads, python_in_model
from trainprof.analysis.stacks.samples import (
    MIN_SAMPLES,
    LineNames,
    PartsOfLoop,
    StackSamples,
    concurrent_share,
    thread_samples,
)
from trainprof.analysis.summary.code import ElementReads, HotLine, HottestLine, PythonInModel
from trainprof.analysis.timeline.events import Bool, Events, Int64
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import (
    ANYWHERE,
    BEFORE_BACKWARD,
    BETWEEN_FORWARDS,
    ELSEWHERE,
    IN_CLOSURE,
    KEY,
    PLACE_BETWEEN,
    PLACES,
)
from trainprof.analysis.timeline.timeline_part import TimelinePart
from trainprof.record.schema import ForwardFlag, Kind, SyncFlag

# Neither a span nor, as -1 is, what the outermost ones are in.
_NONE: Final = -2
# With these a tensor becomes an array or a list: what computes behind them need not be torch.
_HAND_OVER: Final = (SyncFlag.TOLIST, SyncFlag.NUMPY)
# Likewise where so many single values were read: that is a loop over numbers.
_MANY_READS: Final = 8
_NEVER_NS: Final = 1 << 62
# Of the samples at a line.
_MOSTLY: Final = 0.5
# Of all of it: with less in the first steps they show what the others do.
_MUCH_OF_IT: Final = 0.1
# Steps until what is set up, or compiled, as it is first called has been: as many as benchmarks
# leave out. And what of the earlier half of a longer warm-up the later one has where that is a
# phase of training, with code of its own.
_SET_UP_STEPS: Final = 10
_PHASE_SHARE: Final = 0.5


def _torch_in_loop(
    samples: StackSamples,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    names: LineNames,
    lines: list[HotLine],
    until_ns: int,
) -> tuple[list[HotLine], dict[str, float] | None]:
    """Returns the lines with what of the loop's own code is torch's, and what of it is a loss.

    The loss is the model's own work, written by hand: seconds by place, as a ledger's
    `other_by_place` has them; None with too few samples.

    Such a sample met the thread on a core while nobody held the GIL, in code of the user's, torch's
    or a library's that uses torch, and no array or list had been made of tensors in that gap.
    Between two operators others are met: a line where most samples met torch is torch's as a whole.

    Args:
        seconds: Of each part inside the loop, by ledger key.
        lines: Of the parts, as `lines_of_training` has them.
        until_ns: When reads of some kind were counted no longer.
    """
    taken, wanted = parts.at(samples.taken_ns), parts.at(samples.wanted_ns)
    asked = int(np.count_nonzero(wanted == KEY["other"]))
    here = samples.where(taken == KEY["other"])
    if asked < MIN_SAMPLES or not len(here):
        return lines, None
    gaps = gaps_at(parts, here.taken_ns)
    is_torch = here.is_operator & (here.held_ns == 0)
    is_torch &= ~_was_handed_over(parts, gaps.start_ns, here.taken_ns)
    is_torch, is_known = _by_line(is_torch, here, names, until_ns)
    asked -= int(np.count_nonzero(~is_known))
    is_loss = is_torch & gaps.is_models
    shared = []
    for line in lines:
        if line.part == "other":
            is_there = is_met_at(line, here, names) & is_known
            line = replace(
                line,
                torch_share=_share(is_torch[is_there]),
                loss_share=_share(is_loss[is_there]),
            )
        shared.append(line)
    if asked < MIN_SAMPLES:
        return shared, None
    each_s = seconds.get("other", 0.0) / max(asked, int(np.count_nonzero(is_loss)))
    places = Counter(gaps.place[is_loss].tolist())
    return shared, {name: count * each_s for name, count in places.items()}


def _by_line(
    is_torch: Bool, samples: StackSamples, names: LineNames, until_ns: int
) -> tuple[Bool, Bool]:
    """Returns which samples met a line at which most of them met torch, and where that is known.

    Once reads are counted no longer a sample shows nothing: the line's earlier ones do. Where it
    has none, only that it computes otherwise can be known.
    """
    numbers, which = np.unique(samples.stack, return_inverse=True)
    stacks = [next(iter(names.stacks(np.array([number])))) for number in numbers.tolist()]
    sites = [stack.frames[0][0] if stack.frames else "" for stack in stacks]
    place = np.unique(np.array(sites), return_inverse=True)[1][which]
    is_early = samples.taken_ns <= until_ns
    early, rest = (_is_mostly(is_torch, mask, place) for mask in (is_early, ~is_early))
    was_met = np.bincount(place, weights=is_early) > 0
    return (was_met & early)[place], (was_met | ~rest)[place]


def _is_mostly(is_torch: Bool, mask: Bool, place: Int64) -> Bool:
    """Returns at which places most samples of a mask met torch, shape (n_places,)."""
    met, torch = (np.bincount(place, weights=weights) for weights in (mask, is_torch & mask))
    mostly: Bool = torch > _MOSTLY * met
    return mostly


def _share(mask: Bool) -> float | None:
    return float(mask.mean()) if len(mask) else None


def _was_handed_over(parts: PartsOfLoop, since: Int64, until: Int64) -> Bool:
    """Returns in which spans of time tensors were read so that Python or NumPy has them."""
    events = parts.events
    is_read = events.is_kind(Kind.SYNC) & (events.flags & SyncFlag.ON_CPU > 0)
    kind = events.flags & ~np.uint8(SyncFlag.ON_CPU)
    is_array = is_read & np.isin(kind, _HAND_OVER)
    arrays, reads = (_count(events.start[mask], since, until) for mask in (is_array, is_read))
    handed_over: Bool = (arrays > 0) | (reads >= _MANY_READS)
    return handed_over


def _count(times: Int64, since: Int64, until: Int64) -> Int64:
    counted: Int64 = np.searchsorted(times, until) - np.searchsorted(times, since)
    return counted


def _python_once(
    parts: PartsOfLoop, compiling: Coverage, own_ns: Int64, step_ends: Int64, warmup: int
) -> tuple[float, Coverage]:
    """Returns what of the loop's own code happens once, s, and when.

    That is compiling, and the first steps where they have much of it.

    Args:
        own_ns: Between the parts of each step, calls to other ranks left out, shape (n_steps,).
        step_ends: Of the steps, ns, shape (n_steps,).
        warmup: So many steps lead up to steady ones.
    """
    window = parts.window
    compiled_ns = _between_ns(compiling, parts)
    compiled_in = np.searchsorted(step_ends, compiling.starts, side="right")
    without = np.append(own_ns, 0)
    np.subtract.at(without, compiled_in, compiled_ns)
    lasting_ns = np.maximum(without[:-1], 0)
    first_steps = _first_steps(lasting_ns, warmup)
    warming_ns = _beyond_later(lasting_ns, first_steps)
    spans = compiling.spans()
    if warming_ns > _MUCH_OF_IT * own_ns.sum():
        spans = np.append(spans, [[window.loop_start, step_ends[first_steps - 1]]], axis=0)
    once_s = (int(compiled_ns.sum()) + warming_ns) / 1e9
    return once_s, Coverage.of(spans, (window.loop_start, window.loop_end))


def _between_ns(compiling: Coverage, parts: PartsOfLoop) -> Int64:
    """Returns what of each stretch lies between the parts of a step, ns, shape (n,)."""
    events, apart = parts.events, parts.attribution.key
    own_ns = np.where((apart >= 0) & (apart != KEY["other"]), parts.nesting.own_ns, 0)
    first, behind = (np.searchsorted(events.start, t) for t in (compiling.starts, compiling.ends))
    # What the compiler runs, or collects as garbage, has keys of its own.
    inner_ns = [own_ns[a:b].sum() for a, b in zip(first.tolist(), behind.tolist(), strict=True)]
    left = compiling.ends - compiling.starts - np.array(inner_ns, dtype=np.int64)
    is_between = parts.at(compiling.starts) == KEY["other"]
    between_ns: Int64 = np.where(is_between, np.maximum(left, 0), 0)
    return between_ns


def _first_steps(own_ns: Int64, warmup: int) -> int:
    """Returns in how many steps something may be set up: in all of warm-up, unless they train.

    A first stage of training leads up to steady steps as well, with its code in each of them.
    """
    if warmup <= _SET_UP_STEPS:
        return warmup
    earlier, later = (np.median(half) for half in np.array_split(own_ns[:warmup], 2))
    return _SET_UP_STEPS if later >= _PHASE_SHARE * earlier else warmup


def _beyond_later(own_ns: Int64, first_steps: int) -> int:
    """Returns what the first steps have beyond as many later ones in a row: those with most."""
    later = own_ns[first_steps:]
    if not first_steps or not len(later):
        return 0
    until, width = np.append(0, np.cumsum(later)), min(first_steps, len(later))
    most = (until[width:] - until[:-width]).max()
    return max(int(own_ns[:first_steps].sum() - most), 0)


@dataclass(frozen=True, slots=True)
class StacksPart:
    """What stack samples show of training, as RunSummary has it.

    Attributes:
        loss_s: Of the code between the parts of a step that is repeated, what is a loss.
    """

    part_lines: list[HotLine]
    hot_lines: list[HottestLine]
    python_in_model: PythonInModel | None
    element_reads: ElementReads | None
    loss_by_place: dict[str, float] | None
    loss_s: float
    once_s: float
    beside_share: float | None


def stacks_part(
    run: Analysed,
    time: TimelinePart,
    collectives: Collectives,
    compiling: Coverage,
    *,
    is_compiled: bool,
    detects_anomalies: bool,
    step_s: Mapping[str, float],
    fetches: Sequence[WorkerFetches],
) -> StacksPart:
    """Returns which lines training goes to.

    Args:
        step_s: Mean of a steady step per ledger key.
        fetches: Of loaders that feed training.
    """
    timeline, metadata, steps = run.timeline, run.metadata, time.steps
    sites, spent_s, settled_ns = run.sites(), time.spent_s, time.settled_ns
    until_ns = min(metadata.reads_counted_until().values(), default=_NEVER_NS)
    samples = thread_samples(run.process.details, timeline.thread)
    names = LineNames(metadata.texts, sites)
    parts = PartsOfLoop(timeline.events, timeline.nesting, time.attribution, timeline.window)
    own_ns = python_ns(steps.per_step, collectives)
    once_s, once = _python_once(parts, compiling, own_ns, timeline.steps.ends, steps.steady.warmup)
    lasting = spent_s | {"other": max(spent_s["other"] - once_s, 0.0)}
    lines = lines_of_training(samples, parts, lasting, names, steps=len(steps), once=once)
    lines, loss = _torch_in_loop(samples, parts, spent_s, names, lines, until_ns)
    in_model = reads = None
    if not (is_compiled or detects_anomalies):
        in_model = python_in_model(samples, parts, spent_s, names, settled_ns=settled_ns)
    if not is_compiled:
        reads = element_reads(parts, spent_s, sites, (settled_ns, until_ns))
    return StacksPart(
        part_lines=lines,
        hot_lines=hottest_lines(samples, parts, step_s, names, fetches, settled_ns=settled_ns),
        python_in_model=in_model,
        element_reads=reads,
        loss_by_place=loss,
        loss_s=min(fsum((loss or {}).values()), lasting["other"]),
        once_s=once_s,
        beside_share=concurrent_share(samples, parts),
    )


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
