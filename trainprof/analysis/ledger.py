"""The training thread's wall time, split without gap or overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.events import Bool, Events, Int64, Nesting
from trainprof.analysis.summary import LEDGER_KEYS, Ledger
from trainprof.record.schema import Kind, SyncFlag

KEY: Final = {name: index for index, name in enumerate(LEDGER_KEYS)}
_AROUND: Final = -1  # the time belongs to whatever lies around the event

# Inside a loader's call only these keep their own name; the rest is data loading.
_OWN_INSIDE_LOADER: Final = ("transfer", "sync", "checkpoint", "gc")
_LOADER_KEYS: Final = ("loader_start", "first_batch", "data_wait", "loader_end")

_KEY_OF_KIND: Final = {
    Kind.LOADER_INIT: "loader_start",
    Kind.LOADER_RESET: "loader_start",
    Kind.LOADER_NEXT: "data_wait",
    Kind.LOADER_ERROR: "data_wait",
    Kind.LOADER_END: "loader_end",
    Kind.TRANSFER: "transfer",
    Kind.FORWARD: "forward",
    Kind.LOSS: "loss",
    Kind.BACKWARD: "backward",
    Kind.OPTIMIZER_STEP: "optimizer",
    Kind.SCALER_STEP: "optimizer",
    Kind.SCALER_UPDATE: "optimizer",
    Kind.CLIP_GRADIENTS: "optimizer",
    Kind.SCHEDULER_STEP: "optimizer",
    Kind.ZERO_GRAD: "zero_grad",
    Kind.SYNC: "sync",
    Kind.CHECKPOINT_SAVE: "checkpoint",
    Kind.CHECKPOINT_LOAD: "checkpoint",
    Kind.GC: "gc",
}


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which ledger key each event's own time belongs to.

    Attributes:
        key: Index into LEDGER_KEYS, or -1 where the time counts as if nothing had been recorded.
        own_ns: Time of each event that no child covers, ns.
        top: Indices of outermost events outside evaluation.
        segments: Evaluation, shape (n, 2), ns.
    """

    key: npt.NDArray[np.int8]
    own_ns: Int64
    top: Int64
    segments: Int64


def attribute(
    events: Events, nesting: Nesting, segments: Int64, *, has_device: bool
) -> Attribution:
    """Assigns every event's own time to a ledger key; innermost wins.

    Args:
        events: The training thread's.
        nesting: Of `events`.
        segments: Evaluation, shape (n, 2), ns; outermost events lie wholly inside or outside.
        has_device: Whether an accelerator was used: placing a model is a transfer only then.
    """
    key = np.full(len(events), _AROUND, dtype=np.int8)
    for kind, name in _KEY_OF_KIND.items():
        key[events.is_kind(kind)] = KEY[name]
    if has_device:
        key[events.is_kind(Kind.PLACEMENT)] = KEY["transfer"]
    first = events.is_kind(Kind.LOADER_NEXT) & (events.value <= 1)
    key[first] = KEY["first_batch"]
    key[events.is_kind(Kind.SYNC) & (events.flags & SyncFlag.ON_CPU > 0)] = _AROUND
    computes = events.is_kind(Kind.FORWARD, Kind.LOSS)
    key[computes & nesting.inside(events.is_kind(Kind.BACKWARD))] = KEY["recompute"]
    _inherit(key, nesting)
    in_evaluation = within(segments, events.start)
    key[in_evaluation] = KEY["evaluation"]
    own = nesting.own_ns.copy()
    own[in_evaluation] = 0
    top = nesting.top()
    return Attribution(key, own, top[~in_evaluation[top]], segments)


def _inherit(key: npt.NDArray[np.int8], nesting: Nesting) -> None:
    """Gives transparent events, and computation inside a loader's call, the key around them."""
    own_inside = np.zeros(len(LEDGER_KEYS) + 1, dtype=bool)
    own_inside[[KEY[name] for name in (*_OWN_INSIDE_LOADER, *_LOADER_KEYS)]] = True
    loader_keys = [KEY[name] for name in _LOADER_KEYS]
    for level in nesting.levels[1:]:
        parents = nesting.parent[level]
        above = np.where(parents >= 0, key[parents], _AROUND)
        takes = key[level] == _AROUND
        takes |= np.isin(above, loader_keys) & ~own_inside[key[level]]
        key[level] = np.where(takes, above, key[level])


def within(segments: Int64, times: Int64) -> Bool:
    """Returns which times lie in one of the disjoint, ascending [start, end) segments."""
    if len(segments) == 0:
        return np.zeros(len(times), dtype=bool)
    place = np.searchsorted(segments[:, 0], times, side="right") - 1
    inside: Bool = (place >= 0) & (times < segments[np.maximum(place, 0), 1])
    return inside


@dataclass(frozen=True, slots=True)
class Window:
    """A run's time, in ns: the process, and the loop inside it (equal where none was seen)."""

    start: int
    loop_start: int
    loop_end: int
    end: int


def ledger(events: Events, attribution: Attribution, window: Window) -> Ledger:
    """Sums the attribution over the window; its seconds add up to the wall time by construction."""
    sums = np.bincount(
        attribution.key.astype(np.int16) + 1,
        weights=attribution.own_ns,
        minlength=len(LEDGER_KEYS) + 1,
    )
    totals = sums[1:].astype(np.int64)
    totals[KEY["evaluation"]] += int(np.diff(attribution.segments, axis=1).sum())
    covered = _covered_intervals(events, attribution)
    gaps = {
        "startup": _uncovered(covered, window.start, window.loop_start),
        "other": _uncovered(covered, window.loop_start, window.loop_end),
        "shutdown": _uncovered(covered, window.loop_end, window.end),
    }
    transparent = _transparent_by_region(events, attribution, window)
    for name, gap in gaps.items():
        totals[KEY[name]] += gap + transparent[name]
    seconds = {name: totals[index] / 1e9 for name, index in KEY.items()}
    return Ledger(
        wall_s=(window.end - window.start) / 1e9,
        seconds={name: float(value) for name, value in seconds.items()},
        other_by_place=_other_by_place(events, attribution, window),
    )


def per_step_ns(
    events: Events, attribution: Attribution, starts: Int64, ends: Int64
) -> dict[str, Int64]:
    """Returns each step's own time per ledger key, evaluation left out of the step.

    Args:
        starts, ends: Of the steps, ascending, shape (n_steps,), ns; a step's events begin in it.

    Returns:
        Key to ns, shape (n_steps,), `other` included: keys sum to `step_wall_ns`.
    """
    count = len(ends)
    step = np.searchsorted(ends, events.start, side="left").astype(np.int32)
    step[events.start < (starts[0] if count else 0)] = count
    result: dict[str, Int64] = {}
    total = np.zeros(count, dtype=np.int64)
    for name, index in KEY.items():
        if name in ("evaluation", "other", "startup", "shutdown"):
            continue
        mask = (attribution.key == index) & (step < count)
        sums = np.bincount(step[mask], weights=attribution.own_ns[mask], minlength=count)
        result[name] = sums.astype(np.int64)[:count]
        total += result[name]
    result["other"] = np.maximum(step_wall_ns(starts, ends, attribution.segments) - total, 0)
    return result


def step_wall_ns(starts: Int64, ends: Int64, segments: Int64) -> Int64:
    """Returns the steps' wall time without the evaluation that fell into them, ns."""
    wall: Int64 = ends - starts
    if len(segments) == 0 or len(ends) == 0:
        return wall
    step = np.searchsorted(ends, segments[:, 0], side="left")
    inside = (step < len(ends)) & (segments[:, 0] >= starts[0])
    overlap = np.minimum(segments[:, 1], ends[np.minimum(step, len(ends) - 1)]) - segments[:, 0]
    lost = np.bincount(step[inside], weights=overlap[inside], minlength=len(ends))
    return np.maximum(wall - lost.astype(np.int64), 0)


def _covered_intervals(events: Events, attribution: Attribution) -> Int64:
    top = attribution.top
    starts = np.concatenate([events.start[top], attribution.segments[:, 0]])
    ends = np.concatenate([events.end[top], attribution.segments[:, 1]])
    order = np.argsort(starts, kind="stable")
    return np.stack([starts[order], ends[order]], axis=1)


def _uncovered(covered: Int64, start: int, end: int) -> int:
    """Time in [start, end) that no interval covers; the intervals are disjoint and ascending."""
    if len(covered) == 0:
        return max(0, end - start)
    lengths = np.clip(covered[:, 1], start, end) - np.clip(covered[:, 0], start, end)
    return int(max(0, end - start) - lengths.sum())


def _transparent_by_region(
    events: Events, attribution: Attribution, window: Window
) -> dict[str, int]:
    """Outermost time of events that count as if not recorded, by where it lies."""
    mask = attribution.key == _AROUND
    starts, own = events.start[mask], attribution.own_ns[mask]
    before, after = starts < window.loop_start, starts >= window.loop_end
    return {
        "startup": int(own[before].sum()),
        "other": int(own[~before & ~after].sum()),
        "shutdown": int(own[after].sum()),
    }


_BEFORE_FORWARD: Final = "before the forward"
_BEFORE_BACKWARD: Final = "between forward and backward"
_BEFORE_UPDATE: Final = "between backward and update"
_AFTER_UPDATE: Final = "after the update"
_ELSEWHERE: Final = "elsewhere"


def _other_by_place(events: Events, attribution: Attribution, window: Window) -> dict[str, float]:
    """Splits the loop's uncovered time by the spans on both sides of it, in seconds."""
    visible = attribution.top[attribution.key[attribution.top] != _AROUND]
    kinds = events.kind[visible]
    starts, ends = events.start[visible], events.end[visible]
    if len(attribution.segments):
        starts = np.concatenate([starts, attribution.segments[:, 0]])
        ends = np.concatenate([ends, attribution.segments[:, 1]])
        kinds = np.concatenate([kinds, np.zeros(len(attribution.segments), dtype=kinds.dtype)])
        order = np.argsort(starts, kind="stable")
        starts, ends, kinds = starts[order], ends[order], kinds[order]
    if len(starts) == 0:
        return {}
    inside = (starts >= window.loop_start) & (ends <= window.loop_end)
    starts, ends, kinds = starts[inside], ends[inside], kinds[inside]
    gap = np.maximum(starts[1:] - ends[:-1], 0)
    before, after = kinds[:-1], kinds[1:]
    updates = (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP, Kind.SCALER_UPDATE, Kind.SCHEDULER_STEP)
    forwards = (Kind.FORWARD, Kind.LOSS)
    places = np.select(
        [
            np.isin(before, forwards) & np.isin(after, (Kind.BACKWARD, Kind.ZERO_GRAD, *forwards)),
            (before == Kind.BACKWARD) | np.isin(after, updates),
            np.isin(before, updates),
            np.isin(after, forwards),
        ],
        [_BEFORE_BACKWARD, _BEFORE_UPDATE, _AFTER_UPDATE, _BEFORE_FORWARD],
        default=_ELSEWHERE,
    )
    return {
        name: float(gap[places == name].sum() / 1e9)
        for name in (_BEFORE_FORWARD, _BEFORE_BACKWARD, _BEFORE_UPDATE, _AFTER_UPDATE, _ELSEWHERE)
        if gap[places == name].any()
    }
