"""The training thread of a run: its passes, stages, steps and window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from trainprof.analysis.loading.loader_steps import feeders
from trainprof.analysis.loading.new_datasets import BuiltLoaders
from trainprof.analysis.loading.recreated_loaders import joined_passes, rebuilt_loaders, renumbered
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.timeline.autograd_threads import on_calling_threads
from trainprof.analysis.timeline.evaluation import evaluated, evaluated_stretches
from trainprof.analysis.timeline.evaluation_gradients import with_unlearnt_as_forwards
from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting, nest
from trainprof.analysis.timeline.iterations import (
    EVALUATION,
    LEARNING,
    LOADER_CALLS,
    TRAINING,
    Passes,
    find_passes,
    with_first_batches,
)
from trainprof.analysis.timeline.ledger import Window, within
from trainprof.analysis.timeline.loop_start import first_pass_start, loop_start
from trainprof.analysis.timeline.stages import decide_stages
from trainprof.analysis.timeline.steps import Boundaries, step_boundaries, update_mask
from trainprof.record.schema import Kind


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the training thread did, in order.

    Attributes:
        thread: Its number.
        events, nesting: Its own.
        all_events: Of every thread.
        passes: Of every loader.
        on_thread: Per entry of `passes`: the training thread consumes it.
        segments: Evaluation, shape (n, 2), ns.
        steps: Their ends and what they are.
        step_starts: The end of the step before; of the first, the loop's start.
        window: The run.
        first_of: Loaders built anew, by id, and the first of each: events and passes are its.
    """

    thread: int
    events: Events
    nesting: Nesting
    all_events: Events
    passes: list[Passes]
    on_thread: Bool
    segments: Int64
    steps: Boundaries
    step_starts: Int64
    window: Window
    first_of: Mapping[int, int]

    def feeder(self) -> Passes | None:
        """Returns the loader that feeds training: the one with most batches, then the first."""
        return next(iter(feeders(self.passes)), None)

    def learning(self) -> Int64:
        """Returns the starts of backwards and updates, ns."""
        return self.events.start[self.events.is_kind(*LEARNING)]

    def evaluated_in_loop_ns(self) -> int:
        """Returns what of the loop is evaluation: tests ahead of it and behind it are none."""
        inside = np.clip(self.segments, self.window.loop_start, self.window.loop_end)
        return int((inside[:, 1] - inside[:, 0]).sum())

    def passes_here(self) -> list[Passes]:
        """Returns the passes over loaders that the training thread consumes."""
        pairs = zip(self.passes, self.on_thread.tolist(), strict=True)
        return [p for p, is_here in pairs if is_here]


def build_timeline(
    events: Events,
    metadata: Metadata,
    built: BuiltLoaders,
    *,
    main_thread: int | None,
    start: int,
    end: int,
) -> Timeline:
    """Works out the training thread's timeline.

    Args:
        events: Of all threads of the process, in order of start.
        metadata: Of its loaders.
        built: When they were.
        main_thread: Its number, or None.
        start, end: Of the process, ns.
    """
    events = with_first_batches(on_calling_threads(events))
    thread = training_thread(events, main_thread)
    of_thread = events.thread == thread
    own = events if of_thread.all() else events.where(of_thread)
    nesting = nest(own)
    update_ends = own.end[update_mask(own, nesting)]
    if len(update_ends) == 0:
        update_ends = own.end[own.is_kind(Kind.BACKWARD)]
    computed = with_unlearnt_as_forwards(own, nesting)
    passes = decide_stages(find_passes(events), computed, nesting, update_ends)
    first_of = rebuilt_loaders(passes, metadata)
    if first_of:
        passes = joined_passes(passes, first_of)
        events = replace(events, site=renumbered(events.site, first_of))
        own = replace(own, site=renumbered(own.site, first_of))
        computed = replace(computed, site=own.site)
    loaders_here = set(np.unique(own.site[own.is_kind(*LOADER_CALLS)]).tolist())
    on_thread = np.array([p.loader in loaders_here for p in passes], dtype=bool)
    here = [p for p, is_here in zip(passes, on_thread.tolist(), strict=True) if is_here]
    segments = evaluated(here, computed, nesting, update_ends, built.joined(first_of))
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
        passes=passes,
        on_thread=on_thread,
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
    passes: list[Passes],
    segments: Int64,
    step_ends: Int64,
    start: int,
    end: int,
) -> Window:
    """The loop runs from the first training pass (or computation) to the end of the last.

    Evaluation by a loader that also ran between steps belongs to the loop; later tests do not.
    """
    feeding = [p for p in passes if p.role == TRAINING]
    loaders = [p.loader for p in feeding]
    starts = [first_pass_start(p, own, nesting, loaders, step_ends) for p in feeding]
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
    for p in passes:
        evaluates = np.flatnonzero(p.of_stage(EVALUATION))
        if len(evaluates) and len(step_ends) and p.start[evaluates[0]] < step_ends[-1]:
            _, stretches = evaluated_stretches(p, own, segments)
            last = max([last, *segments[stretches[-1:], 1].tolist()])
    first = min(begins)
    return Window(min(start, first), first, min(max(last, first), end), end)
