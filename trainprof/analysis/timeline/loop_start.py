"""Where a loop begins: a model may be called, or an iterator made, long ahead of training."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting
from trainprof.analysis.timeline.iterations import LEARNING, LOADER_CALLS, Passes
from trainprof.record.schema import Kind

# Fewer steps do not tell what belongs to one.
_LEAST_STEPS: Final = 3
# Of typical steps: what comes so shortly before the first one is left with it.
_NEAR_STEPS: Final = 3.0
# The first rollout, say, may take longer than any later one.
_SLOWER: Final = 2.0
_NEVER: Final = np.iinfo(np.int64).max


def loop_start(events: Events, nesting: Nesting, outside: Bool, step_ends: Int64) -> int:
    """Returns when the first of what belongs to the first step begins, ns; no loader feeds it.

    Modules are called for other things before: to learn the size of what one gives, to transform
    all files. None of that comes again between later updates.

    Args:
        events, nesting: Of the training thread; it learns.
        outside: Events that do not belong to evaluation.
        step_ends: Ends of its steps, ns.
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

    Of the calls ahead of the first backward as many belong to it as ever come in a row later on
    (those of several models, or of a rollout), as far as they lie no longer ahead. What calls take
    is not counted: in the first ones something may be compiled.
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


def first_pass_start(
    p: Passes, events: Events, nesting: Nesting, training: Collection[int], step_ends: Int64
) -> int | None:
    """Returns when the loop begins with a loader's first training pass, ns; None without one.

    That is as its iterator is made, or with its first batch where set-up lies between: more than
    what making iterators takes, which is then no part of the loop, and than a few steps.

    Args:
        p: Of the loader.
        events, nesting: Of the training thread.
        training: Ids of the loaders that train.
        step_ends: Ends of its steps, ns.
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
