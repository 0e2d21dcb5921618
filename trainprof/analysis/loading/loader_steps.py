"""Which passes over loaders feed training, and how far the work on their batches reaches."""

from __future__ import annotations

import numpy as np

from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.iterations import TRAINING, Passes


def feeders(passes: list[Passes]) -> list[Passes]:
    """Returns the loaders whose training passes are epochs, the one with most batches first.

    Besides that one those that are done with before it begins, or begin after it: training in
    phases. A loader that is used alongside, or by turns with another, makes no epochs of its own.
    """
    chosen: list[Passes] = []
    spans: list[tuple[int, int]] = []
    for p in _by_batches(passes):
        trained = p.trained()
        first, last = int(p.start[trained].min()), int(p.end[trained].max())
        if all(last <= begin or end <= first for begin, end in spans):
            chosen.append(p)
            spans.append((first, last))
    return chosen


def epoch_starts(passes: list[Passes]) -> Int64:
    """Returns where the epochs begin, ascending, ns."""
    starts = [p.start[p.trained()] for p in feeders(passes)]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *starts]))


def feeding_passes(
    passes: list[Passes], learning: Int64, step_ends: Int64
) -> list[tuple[Passes, Bool]]:
    """Returns the loaders that feed training, and which of their passes count as iterations.

    Of passes that overlap (a labelled and an unlabelled batch in every step) those over the loader
    with most batches count.

    Args:
        passes: Of every loader.
        learning: Starts of backwards and updates, ns.
        step_ends: Ends of steps, ns.
    """
    found = []
    begins = ends = np.empty(0, dtype=np.int64)
    for p in _by_batches(passes):
        place = np.searchsorted(step_ends, p.end)
        used = step_ends[np.minimum(place, len(step_ends) - 1)] if len(step_ends) else p.end
        reach = np.where(is_used_later(p, learning), np.maximum(p.end, used), p.end)
        is_apart = np.searchsorted(ends, p.start, side="right") == np.searchsorted(begins, reach)
        counted = p.trained() & is_apart
        begins = np.sort(np.concatenate([begins, p.start[counted]]))
        ends = np.sort(np.concatenate([ends, reach[counted]]))
        found.append((p, counted))
    return found


def is_used_later(p: Passes, learning: Int64) -> Bool:
    """Returns the training passes whose last batch is learnt from after their end.

    Those left without StopIteration, and those over loaders that look ahead: accelerate's ask for
    the second batch before they give the first.

    Args:
        p: Passes over one loader.
        learning: Starts of backwards and updates, ns.
    """
    looks_ahead = np.searchsorted(learning, p.after_first) == np.searchsorted(learning, p.start)
    mask: Bool = p.trained() & (~p.is_ended | looks_ahead)
    return mask


def _by_batches(passes: list[Passes]) -> list[Passes]:
    """Returns the loaders that training took batches of, most first."""
    training = [p for p in passes if p.role == TRAINING and p.trained().any()]
    return sorted(training, key=lambda p: (-int(p.batches[p.trained()].sum()), int(p.start[0])))
