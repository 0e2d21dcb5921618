"""The training thread of a run: its iterations, stages, steps and window."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.loading.recreated_loaders import (
    BuiltLoaders,
    joined_iterations,
    rebuilt_loaders,
    renumbered,
)
from trainprof.analysis.run.training_process import TrainingProcess
from trainprof.analysis.timeline.evaluation import evaluated, evaluated_stretches
from trainprof.analysis.timeline.event_rewrites import on_calling_threads, with_unlearnt_as_forwards
from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting, nest
from trainprof.analysis.timeline.iterations import (
    EVALUATION,
    LEARNING,
    LOADER_CALLS,
    TRAINING,
    LoaderIterations,
    feeders,
    find_iterations,
    with_first_batches,
)
from trainprof.analysis.timeline.ledger import Window, within
from trainprof.analysis.timeline.stages import decide_stages
from trainprof.record.schema import Kind
from trainprof.record.step_count import LEAST_BLOCK

# An optimizer that steps this often compared with the busiest one may be the anchor.
ANCHOR_SHARE: Final = 0.9
_IN_BACKWARD: Final = -1
# Fewer steps do not show what belongs to one.
_LEAST_STEPS: Final = 3
# Number of typical steps: calls within their time before the first step belong to it.
_NEAR_STEPS: Final = 3.0
# The first rollout, for example, may take longer than any later one.
_SLOWER: Final = 2.0
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Ends of steps, ascending, ns; `source` is optimizer|backward|batches|none."""

    ends: Int64
    source: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The training thread's work, in order.

    Attributes:
        all_events: Of every thread.
        on_thread: Per entry of `loaders`: the training thread consumes it.
        segments: Evaluation, shape (n, 2), ns.
        step_starts: The end of the step before; of the first, the loop's start.
        first_of: Recreated loaders, by id, and the first of each, whose events are theirs.
    """

    thread: int
    events: Events
    nesting: Nesting
    all_events: Events
    loaders: list[LoaderIterations]
    on_thread: Bool
    segments: Int64
    steps: Boundaries
    step_starts: Int64
    window: Window
    first_of: Mapping[int, int]

    def feeder(self) -> LoaderIterations | None:
        """Returns the loader that feeds training: the one with most batches, then the first."""
        return next(iter(feeders(self.loaders)), None)

    def learning(self) -> Int64:
        """Returns the starts of backwards and updates, ns."""
        return self.events.start[self.events.is_kind(*LEARNING)]

    def evaluated_in_loop_ns(self) -> int:
        """Returns the evaluation time inside the loop, without tests before and after it."""
        inside = np.clip(self.segments, self.window.loop_start, self.window.loop_end)
        return int((inside[:, 1] - inside[:, 0]).sum())

    def loaders_here(self) -> list[LoaderIterations]:
        """Returns the iterations over loaders that the training thread consumes."""
        pairs = zip(self.loaders, self.on_thread.tolist(), strict=True)
        return [p for p, is_here in pairs if is_here]


def build_timeline(process: TrainingProcess, start: int, end: int) -> Timeline:
    """Returns the training thread's timeline; `start` and `end` are the process's."""
    events = with_first_batches(on_calling_threads(process.events))
    thread = training_thread(events, process.main_thread)
    is_on_thread = events.thread == thread
    own = events if is_on_thread.all() else events.where(is_on_thread)
    nesting = nest(own)
    update_ends = own.end[update_mask(own, nesting)]
    if len(update_ends) == 0:
        update_ends = own.end[own.is_kind(Kind.BACKWARD)]
    computed = with_unlearnt_as_forwards(own, nesting)
    loaders = decide_stages(find_iterations(events), computed, nesting, update_ends)
    first_of = rebuilt_loaders(loaders, process.metadata)
    if first_of:
        loaders = joined_iterations(loaders, first_of)
        events = replace(events, site=renumbered(events.site, first_of))
        own = replace(own, site=renumbered(own.site, first_of))
        computed = replace(computed, site=own.site)
    built = BuiltLoaders.of(process.details).joined(first_of)
    loaders = [replace(p, dataset=built.dataset_of(p.loader)) for p in loaders]
    loaders_here = set(own.site[own.is_kind(*LOADER_CALLS)].tolist())
    here = [p for p in loaders if p.loader in loaders_here]
    segments = evaluated(here, computed, nesting, update_ends, built)
    training = [p.loader for p in here if p.role == TRAINING]
    batches = own.is_kind(Kind.LOADER_NEXT) & np.isin(own.site, training)
    ignore = within(segments, own.start)
    steps = step_boundaries(own, nesting, ignore=ignore, batch_ends=own.end[batches & ~ignore])
    window = _window(own, nesting, here, segments, steps.ends, start, end)
    starts = np.concatenate([[window.loop_start], steps.ends[:-1]])[: len(steps.ends)]
    return Timeline(
        thread=thread,
        events=own,
        nesting=nesting,
        all_events=events,
        loaders=loaders,
        on_thread=np.array([p.loader in loaders_here for p in loaders], dtype=bool),
        segments=segments,
        steps=steps,
        step_starts=starts,
        window=window,
        first_of=first_of,
    )


def training_thread(events: Events, main_thread: int | None) -> int:
    """Returns the thread with most updates, else most backwards, else forwards, else the main."""
    for kinds in (LEARNING[1:], LEARNING[:1], (Kind.FORWARD,)):
        threads = events.thread[events.is_kind(*kinds)]
        if len(threads):
            return int(np.bincount(threads).argmax())
    return main_thread if main_thread is not None else 0


def _window(
    own: Events,
    nesting: Nesting,
    loaders: list[LoaderIterations],
    segments: Int64,
    step_ends: Int64,
    start: int,
    end: int,
) -> Window:
    """The loop runs from the first training iteration (or computation) to the end of the last.

    Evaluation by a loader that also ran between steps belongs to the loop; later tests do not.
    """
    feeding = [p for p in loaders if p.role == TRAINING]
    ids = [p.loader for p in feeding]
    starts = [first_epoch_start(p, own, nesting, ids, step_ends) for p in feeding]
    begins = [begin for begin in starts if begin is not None]
    finishes = [int(p.end[p.trained()].max()) for p in feeding if p.trained().any()]
    outside = ~within(segments, own.start)
    learning = np.flatnonzero(own.is_kind(*LEARNING) & outside)
    if len(learning):
        finishes.append(int(own.end[learning].max()))
        if not begins:
            begins.append(loop_start(own, nesting, outside, step_ends))
    if not begins:
        if len(segments) == 0:
            return Window(start, end, end, end)
        return Window(start, int(segments[0, 0]), int(segments[-1, 1]), end)
    last = max(finishes)
    for p in loaders:
        evaluates = np.flatnonzero(p.of_stage(EVALUATION))
        if len(evaluates) and len(step_ends) and p.start[evaluates[0]] < step_ends[-1]:
            _, stretches = evaluated_stretches(p, own, segments)
            last = max([last, *segments[stretches[-1:], 1].tolist()])
    first = min(begins)
    return Window(min(start, first), first, min(max(last, first), end), end)


def loop_start(events: Events, nesting: Nesting, outside: Bool, step_ends: Int64) -> int:
    """Returns when the first step begins without a loader, by events outside evaluation.

    Before it modules are called for other purposes: for the size of an output, to transform files.
    Such calls do not come between later updates.
    """
    computing = np.flatnonzero(events.is_kind(*LEARNING, Kind.FORWARD, Kind.ZERO_GRAD) & outside)
    starts = events.start[computing]
    if len(step_ends) < _LEAST_STEPS:
        return int(starts[0])
    near_ns = _NEAR_STEPS * float(np.median(np.diff(step_ends)))
    begin = _first_of_step(events, nesting, outside, near_ns)
    return int(starts[starts >= begin - near_ns][0])


def _first_of_step(events: Events, nesting: Nesting, outside: Bool, near_ns: float) -> int:
    """Returns when the first call begins that is like those of later steps.

    The calls before the first backward belong to it up to the largest number in a row later on
    (several models, or a rollout), within the longest distance there. Durations of calls do not
    count: the first ones may compile.
    """
    learns = events.is_kind(*LEARNING)
    is_outer = outside & ~nesting.inside(learns)
    learning = events.start[learns & is_outer]
    calls = is_outer & events.is_kind(Kind.FORWARD)
    starts, ends = events.start[calls], events.end[calls]
    row = np.searchsorted(learning, starts)
    follows = np.minimum(np.append(starts[1:], _NEVER), np.append(learning, _NEVER)[row])
    waits_ns = np.maximum(follows - ends, 0)
    is_later = (row > 0) & (row < len(learning))
    most = int(np.bincount(row[is_later], minlength=1).max())
    longest_ns = np.bincount(row[is_later], weights=waits_ns[is_later], minlength=1).max()
    first = starts[row == 0]
    ahead_ns = np.cumsum(waits_ns[row == 0][::-1])[::-1]
    belongs = np.arange(len(first), 0, -1) <= most
    belongs[:-1] &= ahead_ns[:-1] <= _SLOWER * longest_ns + near_ns
    return int(np.append(first[belongs], learning[:1])[0])


def first_epoch_start(
    p: LoaderIterations,
    events: Events,
    nesting: Nesting,
    training: Collection[int],
    step_ends: Int64,
) -> int | None:
    """Returns when the loop begins with a loader's first training iteration, ns; None without one.

    With its iterator, or with its first batch if set-up in between takes longer than creating
    iterators and than a few steps.
    """
    trained = np.flatnonzero(p.trained())
    if len(trained) == 0:
        return None
    begin = int(p.start[trained[0]])
    if len(step_ends) < _LEAST_STEPS:
        return begin
    calls = events.is_kind(*LOADER_CALLS) & (nesting.parent < 0) & (events.start >= begin)
    loading = events.where(calls & np.isin(events.site, list(training)))
    taken = np.flatnonzero(loading.is_kind(Kind.LOADER_NEXT) & (loading.site == p.loader))
    if len(taken) == 0:
        return begin
    first = int(loading.start[taken[0]])
    ahead = slice(0, int(taken[0]))
    making_ns = int((loading.end[ahead] - loading.start[ahead]).sum())
    set_up_ns = first - begin - making_ns
    near_ns = _NEAR_STEPS * float(np.median(np.diff(step_ends)))
    return first if set_up_ns > max(near_ns, making_ns) else begin


def update_mask(events: Events, nesting: Nesting) -> Bool:
    """Returns the outermost updates: optimizer steps and GradScaler steps not inside another."""
    update = events.is_kind(Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)
    return update & ~nesting.inside(update)


def step_boundaries(
    events: Events, nesting: Nesting, *, ignore: Bool, batch_ends: Int64
) -> Boundaries:
    """Finds the ends of the training thread's steps (HOOKS.md section 5), without evaluation.

    The last resort are `batch_ends`, of the training loaders' `next` calls.
    """
    updates = np.flatnonzero(update_mask(events, nesting) & ~ignore)
    if len(updates):
        return Boundaries(_anchor_ends(events, nesting, updates), "optimizer")
    backward = events.is_kind(Kind.BACKWARD)
    outermost = np.flatnonzero(backward & ~nesting.inside(backward) & ~ignore)
    if len(outermost):
        return Boundaries(events.end[_behind_forwards(events, nesting, outermost)], "backward")
    if len(batch_ends):
        return Boundaries(np.sort(batch_ends), "batches")
    return Boundaries(np.empty(0, dtype=np.int64), "none")


def _behind_forwards(events: Events, nesting: Nesting, backwards: Int64) -> Int64:
    """Excludes backwards without a forward, if most have one (torch.compile traces one)."""
    top = backwards[nesting.parent[backwards] < 0]
    backwards = top if len(top) else backwards
    forwards = events.start[events.is_kind(Kind.FORWARD) & (nesting.parent < 0)]
    before = np.concatenate([[0], events.end[backwards[:-1]]])
    until = np.searchsorted(forwards, events.start[backwards])
    has_forward = until > np.searchsorted(forwards, before)
    return backwards[has_forward] if has_forward.mean() > 0.5 else backwards


def _anchor_ends(events: Events, nesting: Nesting, updates: Int64) -> Int64:
    """Ends of the updates that are steps; one update per backward where they run inside it."""
    ends = events.end[updates]
    optimizer = events.site[updates].astype(np.int64)
    backward = _outermost_around(nesting, updates, events.is_kind(Kind.BACKWARD))
    inside = backward >= 0
    if inside.any():
        hosts = np.unique(backward[inside])
        ends = np.concatenate([ends[~inside], events.end[hosts]])
        optimizer = np.concatenate([optimizer[~inside], np.full(len(hosts), _IN_BACKWARD)])
        order = np.argsort(ends, kind="stable")
        ends, optimizer = ends[order], optimizer[order]
    return ends[_in_block(optimizer) | np.isin(optimizer, _anchors(optimizer))]


def _in_block(optimizer: Int64) -> Bool:
    """Whether each update is one of several in a row by one optimizer."""
    begins = np.flatnonzero(np.append(True, optimizer[1:] != optimizer[:-1]))
    lengths = np.diff(np.append(begins, len(optimizer)))
    return np.repeat(lengths >= LEAST_BLOCK, lengths)


def _outermost_around(nesting: Nesting, indices: Int64, hosts: Bool) -> Int64:
    """Returns for each index its outermost ancestor among `hosts`, or -1."""
    outermost = np.full(len(indices), -1, dtype=np.int64)
    current = nesting.parent[indices].astype(np.int64)
    while (current >= 0).any():
        is_host = (current >= 0) & hosts[np.maximum(current, 0)]
        outermost = np.where(is_host, current, outermost)
        current = np.where(current >= 0, nesting.parent[np.maximum(current, 0)], -1)
    return outermost


def _anchors(optimizer: Int64) -> list[int]:
    """Chooses the anchor among optimizers that take turns; those of successive phases all count."""
    ids, first, counts = np.unique(optimizer, return_index=True, return_counts=True)
    last = len(optimizer) - 1 - np.unique(optimizer[::-1], return_index=True)[1]
    order = np.argsort(first)
    anchors: list[int] = []
    group: list[int] = []
    reach = -1
    for index in [*order.tolist(), None]:
        if index is None or first[index] > reach:
            if group:
                most = max(counts[i] for i in group)
                able = [i for i in group if counts[i] >= ANCHOR_SHARE * most]
                anchors.append(int(ids[able[-1]]))
            group = []
        if index is not None:
            group.append(index)
            reach = max(reach, int(last[index]))
    return anchors
