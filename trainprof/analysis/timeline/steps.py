"""Where one parameter update ends and the next begins (HOOKS.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting
from trainprof.record.schema import Kind
from trainprof.record.step_count import LEAST_BLOCK

# An optimizer that steps this often compared with the busiest one may be the anchor.
ANCHOR_SHARE: Final = 0.9
_IN_BACKWARD: Final = -1


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Ends of steps, ascending, in ns, and what they are the ends of.

    `source`: optimizer|backward|batches|none.
    """

    ends: Int64
    source: str


def update_mask(events: Events, nesting: Nesting) -> Bool:
    """Returns the outermost updates: optimizer steps and GradScaler steps not inside another."""
    update = events.is_kind(Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)
    return update & ~nesting.inside(update)


def step_boundaries(
    events: Events, nesting: Nesting, *, ignore: Bool, batch_ends: Int64
) -> Boundaries:
    """Finds the ends of the training thread's steps.

    Args:
        ignore: Events that belong to evaluation.
        batch_ends: Ends of the training loaders' `next` calls, the last resort.
    """
    updates = np.flatnonzero(update_mask(events, nesting) & ~ignore)
    if len(updates):
        return Boundaries(_anchor_ends(events, nesting, updates), "optimizer")
    backward = events.is_kind(Kind.BACKWARD)
    outermost = np.flatnonzero(backward & ~nesting.inside(backward) & ~ignore)
    if len(outermost):
        return Boundaries(events.end[_of_a_forward(events, nesting, outermost)], "backward")
    if len(batch_ends):
        return Boundaries(np.sort(batch_ends), "batches")
    return Boundaries(np.empty(0, dtype=np.int64), "none")


def _of_a_forward(events: Events, nesting: Nesting, backwards: Int64) -> Int64:
    """Leaves out backwards that follow no forward, where most do.

    torch.compile runs one to trace it, and a second derivative takes two to a step.
    """
    top = backwards[nesting.parent[backwards] < 0]
    backwards = top if len(top) else backwards
    forwards = events.start[events.is_kind(Kind.FORWARD) & (nesting.parent < 0)]
    before = np.concatenate([[0], events.end[backwards[:-1]]])
    has_forward = np.searchsorted(forwards, events.start[backwards]) > np.searchsorted(
        forwards, before
    )
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
    """Tells of each update whether it is one of several on end."""
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
