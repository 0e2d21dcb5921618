"""The training thread's wall time, split without gap or overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.summary.run import LEDGER_KEYS, Ledger
from trainprof.analysis.summary.run import LOADER_KEYS as LOADER_KEYS
from trainprof.analysis.timeline.events import Bool, Events, Int32, Int64, Nesting
from trainprof.record.schema import Kind, SyncFlag

KEY: Final = {name: index for index, name in enumerate(LEDGER_KEYS)}
_BLOCK: Final = 1 << 20
_AROUND: Final = -1  # the time belongs to whatever lies around the event

# Inside a loader's call only these keep their own name; the rest is data loading.
_OWN_INSIDE_LOADER: Final = ("transfer", "sync", "checkpoint", "gc")
LOADER_KINDS: Final = (
    Kind.LOADER_INIT,
    Kind.LOADER_RESET,
    Kind.LOADER_NEXT,
    Kind.LOADER_ERROR,
    Kind.LOADER_END,
    Kind.LOADER_CLOSE,
)

KEY_OF_KIND: Final = {
    Kind.LOADER_INIT: "loader_start",
    Kind.LOADER_RESET: "loader_start",
    Kind.LOADER_NEXT: "data_wait",
    Kind.LOADER_ERROR: "data_wait",
    Kind.LOADER_END: "loader_end",
    Kind.LOADER_CLOSE: "loader_end",
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
    Kind.COMPILE: "compile",
    Kind.SYNC: "sync",
    Kind.CHECKPOINT_SAVE: "checkpoint",
    Kind.CHECKPOINT_LOAD: "checkpoint",
    Kind.GC: "gc",
    Kind.CLOSURE: "other",
}


@dataclass(frozen=True, slots=True)
class DeviceWaits:
    """Syncs and blocking copies, by index, and the part of each in which a device worked."""

    event: Int64
    ns: Int64


@dataclass(frozen=True, slots=True)
class LossInLoop:
    """A loss that is not a module, in gaps between the parts of a step, shape (n,).

    Attributes:
        start_ns: When each gap began.
        ns: The part that is such a loss.
        place: Index into PLACES, IN_CLOSURE after the last.
    """

    start_ns: Int64
    ns: Int64
    place: npt.NDArray[np.uint8]

    @property
    def seconds(self) -> float:
        return int(self.ns.sum()) / 1e9

    def by_place(self) -> dict[str, float]:
        """Returns the seconds by names as in a ledger's `other_by_place`."""
        seconds = np.bincount(self.place, weights=self.ns, minlength=len(PLACES) + 1) / 1e9
        names = (*PLACES, IN_CLOSURE)
        return {name: s for name, s in zip(names, seconds.tolist(), strict=True) if s}


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which ledger key each event's own time belongs to.

    Attributes:
        key: Index into LEDGER_KEYS, or -1 where the time counts as without the event.
        own_ns: Time of each event that no child covers; inside evaluation the segments count.
        top: Indices of the outermost events with a key, outside evaluation.
        segments: Evaluation, shape (n, 2), ns.
        device_waits: The part of `own_ns` that is `device_wait`; None where unknown.
        loss: The part of "other" that is "loss"; None where unknown.
    """

    key: npt.NDArray[np.int8]
    own_ns: Int64
    top: Int32
    segments: Int64
    device_waits: DeviceWaits | None
    loss: LossInLoop | None = None


def attribute(
    events: Events,
    nesting: Nesting,
    segments: Int64,
    *,
    has_device: bool,
    graph_classes: Sequence[int] = (),
    device_waits: DeviceWaits | None = None,
) -> Attribution:
    """Assigns every event's own time to a ledger key; innermost wins.

    Args:
        segments: Evaluation; outermost events lie wholly inside or outside.
        has_device: Placing a model is a transfer only then.
        graph_classes: Ids of the module classes that torch.compile creates: inside another span
            they are part of it (a compiled backward is not recomputation).
    """
    key = np.full(len(events), _AROUND, dtype=np.int8)
    for kind, name in KEY_OF_KIND.items():
        key[events.is_kind(kind)] = KEY[name]
    if has_device:
        key[events.is_kind(Kind.PLACEMENT)] = KEY["transfer"]
    first = events.is_kind(Kind.LOADER_NEXT) & (events.value <= 1)
    key[first] = KEY["first_batch"]
    key[events.is_kind(Kind.SYNC) & events.has(SyncFlag.ON_CPU)] = _AROUND
    computes = events.is_kind(Kind.FORWARD, Kind.LOSS)
    key[computes & nesting.inside(events.is_kind(Kind.BACKWARD))] = KEY["recompute"]
    if graph_classes:
        is_graph = events.is_kind(Kind.FORWARD) & np.isin(events.site, graph_classes)
        is_inner = (nesting.parent >= 0) & (events.kind[nesting.parent] != Kind.CLOSURE)
        key[is_graph & is_inner] = _AROUND
    key[loads_samples(events, nesting)] = _AROUND
    _inherit(key, nesting)
    in_evaluation = within(segments, events.start)
    key[in_evaluation] = KEY["evaluation"]
    # Only transparent events are around a transparent one: others passed on their key.
    top = (key != _AROUND) & ~in_evaluation
    for level in nesting.levels[1:]:
        top[level] &= key[nesting.parent[level]] == _AROUND
    outermost = np.flatnonzero(top).astype(np.int32)
    return Attribution(key, nesting.own_ns, outermost, segments, device_waits)


def loads_samples(events: Events, nesting: Nesting) -> Bool:
    """Returns which calls of torch.load are inside a loader's call: they load samples."""
    return events.is_kind(Kind.CHECKPOINT_LOAD) & nesting.inside(events.is_kind(*LOADER_KINDS))


def _inherit(key: npt.NDArray[np.int8], nesting: Nesting) -> None:
    """Gives events the key around them: transparent ones, and computation in a loader's call.

    Also copies and waits in a checkpoint, and all inside torch.compile except garbage collection.
    """
    own_inside = np.zeros(len(LEDGER_KEYS) + 1, dtype=bool)
    own_inside[[KEY[name] for name in (*_OWN_INSIDE_LOADER, *LOADER_KEYS)]] = True
    loader_keys = [KEY[name] for name in LOADER_KEYS]
    copies_and_waits = [KEY["transfer"], KEY["sync"]]
    for level in nesting.levels[1:]:
        parents = nesting.parent[level]
        above = np.where(parents >= 0, key[parents], _AROUND)
        takes = key[level] == _AROUND
        takes |= np.isin(above, loader_keys) & ~own_inside[key[level]]
        takes |= (above == KEY["checkpoint"]) & np.isin(key[level], copies_and_waits)
        takes |= (above == KEY["compile"]) & (key[level] != KEY["gc"])
        key[level] = np.where(takes, above, key[level])


def within(segments: Int64, times: Int64) -> Bool:
    """Returns which of the ascending times lie in one of the disjoint [start, end) segments."""
    change = np.zeros(len(times) + 1, dtype=np.int8)
    places = np.searchsorted(times, segments)
    np.add.at(change, places[:, 0], 1)
    np.subtract.at(change, places[:, 1], 1)
    inside: Bool = np.cumsum(change[:-1], dtype=np.int8) > 0
    return inside


@dataclass(frozen=True, slots=True)
class Window:
    """A run's time, in ns: the process, and the loop inside it (empty without one)."""

    start: int
    loop_start: int
    loop_end: int
    end: int


def ledger(events: Events, attribution: Attribution, window: Window) -> Ledger:
    """Sums the attribution over the window; its seconds add up to the wall time by construction."""
    totals = _totals_ns(attribution)
    totals["evaluation"] = _length(attribution.segments)
    gaps = {
        "startup": uncovered_ns(events, attribution, window.start, window.loop_start),
        "other": uncovered_ns(events, attribution, window.loop_start, window.loop_end),
        "shutdown": uncovered_ns(events, attribution, window.loop_end, window.end),
    }
    for name, gap in gaps.items():
        totals[name] += gap
    by_place, loss = _other_by_place(events, attribution, window), attribution.loss
    left = {
        name: spent_s - (loss.by_place().get(name, 0.0) if loss else 0.0)
        for name, spent_s in by_place.items()
    }
    return Ledger(
        wall_s=(window.end - window.start) / 1e9,
        seconds={name: total / 1e9 for name, total in _with_loss(totals, loss).items()},
        other_by_place={name: spent_s for name, spent_s in left.items() if spent_s > 0},
    )


def _with_loss(totals: dict[str, int], loss: LossInLoop | None) -> dict[str, int]:
    moved = min(0 if loss is None else int(loss.ns.sum()), totals["other"])
    return totals | {"other": totals["other"] - moved, "loss": totals["loss"] + moved}


def loop_seconds(events: Events, attribution: Attribution, window: Window) -> dict[str, float]:
    """Returns the same sums for the loop alone; they add up to its length."""
    starts = events.start
    totals = _totals_ns(attribution, (starts >= window.loop_start) & (starts < window.loop_end))
    segments = attribution.segments
    inside = (segments[:, 0] >= window.loop_start) & (segments[:, 0] < window.loop_end)
    totals["evaluation"] = _length(segments[inside])
    totals["other"] += window.loop_end - window.loop_start - sum(totals.values())
    return {name: ns / 1e9 for name, ns in _with_loss(totals, attribution.loss).items()}


def _totals_ns(attribution: Attribution, mask: Bool | None = None) -> dict[str, int]:
    """Sums the events' own time per key, evaluation left at 0; block by block, to save memory."""
    sums = np.zeros(256)
    for first in range(0, len(attribution.key), _BLOCK):
        part = slice(first, first + _BLOCK)
        key, own = attribution.key[part].astype(np.uint8), attribution.own_ns[part]
        chosen = slice(None) if mask is None else mask[part]
        sums += np.bincount(key[chosen], weights=own[chosen], minlength=256)
    totals = {name: int(sums[index]) for name, index in KEY.items()}
    for index, ns in _device_waits_by_key(attribution, mask):
        totals[LEDGER_KEYS[index]] -= int(ns.sum())
        totals["device_wait"] += int(ns.sum())
    totals["evaluation"] = 0
    return totals


def _device_waits_by_key(
    attribution: Attribution, mask: Bool | None = None
) -> Iterator[tuple[int, Int64]]:
    """Yields the index of each key that contains waits, and its waits; 0 for other keys."""
    waits = attribution.device_waits
    if waits is None:
        return
    key = attribution.key[waits.event]
    for index in (KEY["sync"], KEY["transfer"]):
        chosen = key == index if mask is None else (key == index) & mask[waits.event]
        yield index, np.where(chosen, waits.ns, 0)


def _length(segments: Int64) -> int:
    return int((segments[:, 1] - segments[:, 0]).sum())


def per_step_ns(
    events: Events, attribution: Attribution, starts: Int64, ends: Int64
) -> dict[str, Int64]:
    """Returns each step's time in ns per ledger key, `other` included; sums to `step_wall_ns`.

    A step's events begin in it.
    """
    count = len(ends)
    step = np.empty(len(events), dtype=np.int32)
    for first in range(0, len(events), _BLOCK):  # to save memory
        part = events.start[first : first + _BLOCK]
        step[first : first + _BLOCK] = np.where(
            part < (starts[0] if count else 0), count, np.searchsorted(ends, part, side="right")
        )
    result: dict[str, Int64] = {}
    total, nothing = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for name, index in KEY.items():
        if name in ("evaluation", "other", "startup", "shutdown"):
            continue
        mask = (attribution.key == index) & (step < count)
        if not mask.any():
            result[name] = nothing
            continue
        sums = np.bincount(step[mask], weights=attribution.own_ns[mask], minlength=count)
        result[name] = sums.astype(np.int64)
        total += result[name]
    waits = attribution.device_waits
    for index, ns in _device_waits_by_key(attribution):
        assert waits is not None
        waiting = step[waits.event]
        sums = np.bincount(waiting, weights=ns, minlength=count + 1)[:count]
        moved = sums.astype(np.int64)
        result[LEDGER_KEYS[index]] = result[LEDGER_KEYS[index]] - moved
        result["device_wait"] = result["device_wait"] + moved
    result["other"] = np.maximum(step_wall_ns(starts, ends, attribution.segments) - total, 0)
    loss = attribution.loss
    if loss is not None and count:
        begins = np.searchsorted(ends, loss.start_ns, side="right")
        sums = np.bincount(begins, weights=loss.ns, minlength=count + 1)[:count]
        moved = np.minimum(sums.astype(np.int64), result["other"])
        result |= {"other": result["other"] - moved, "loss": result["loss"] + moved}
    return result


def step_wall_ns(starts: Int64, ends: Int64, segments: Int64) -> Int64:
    """Returns the steps' wall time without evaluation, ns."""
    wall: Int64 = ends - starts
    if len(segments) == 0 or len(ends) == 0:
        return wall
    step = np.searchsorted(ends, segments[:, 0], side="right")
    inside = (step < len(ends)) & (segments[:, 0] >= starts[0])
    overlap = np.minimum(segments[:, 1], ends[np.minimum(step, len(ends) - 1)]) - segments[:, 0]
    lost = np.bincount(step[inside], weights=overlap[inside], minlength=len(ends))
    return np.maximum(wall - lost.astype(np.int64), 0)


def uncovered_ns(events: Events, attribution: Attribution, start: int, end: int) -> int:
    """Returns the time in [start, end) outside of outermost events and evaluation."""
    covered = 0
    top, segments = attribution.top, attribution.segments
    for first in range(0, len(top), _BLOCK):
        part = top[first : first + _BLOCK]
        covered += _overlap(events.start[part], events.end[part], start, end)
    covered += _overlap(segments[:, 0], segments[:, 1], start, end)
    return max(0, end - start) - covered


def _overlap(starts: Int64, ends: Int64, start: int, end: int) -> int:
    if end <= start:
        return 0
    return int((np.clip(ends, start, end) - np.clip(starts, start, end)).sum())


BEFORE_FORWARD: Final = "before the forward"
BEFORE_BACKWARD: Final = "between forward and backward"
_AFTER_UPDATE: Final = "after the update"
# Where nothing marks the beginning of a step: it contains batches without a loader.
_TO_NEXT_FORWARD: Final = "between the update and the next forward"
BETWEEN_FORWARDS: Final = "between two forwards"
_BEFORE_UPDATE: Final = "between backward and update"
ELSEWHERE: Final = "elsewhere"
IN_CLOSURE: Final = "in the closure that optimizer.step calls (as Lightning does)"
PLACES: Final = (
    BEFORE_FORWARD,
    BETWEEN_FORWARDS,
    BEFORE_BACKWARD,
    _BEFORE_UPDATE,
    _AFTER_UPDATE,
    _TO_NEXT_FORWARD,
    ELSEWHERE,
)
# Stands for an evaluation segment among the kinds of events.
_EVALUATION_KIND: Final = int(Kind.HOLE)
# Events that may come anywhere, and do not show the place.
ANYWHERE: Final = (
    Kind.GC,
    Kind.SYNC,
    Kind.TRANSFER,
    Kind.PLACEMENT,
    Kind.CHECKPOINT_SAVE,
    Kind.CHECKPOINT_LOAD,
    Kind.COMPILE,
)


def _place_table() -> npt.NDArray[np.uint8]:
    """Returns the index into PLACES of a gap, by the kinds of the spans before and after it."""
    updates = (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP, Kind.SCALER_UPDATE, Kind.SCHEDULER_STEP)
    forwards = (Kind.FORWARD, Kind.LOSS)
    table = np.full((256, 256), PLACES.index(ELSEWHERE), dtype=np.uint8)
    # Later lines win.
    table[:, forwards] = PLACES.index(BEFORE_FORWARD)
    table[updates, :] = PLACES.index(_AFTER_UPDATE)
    for kind in updates:
        table[kind, forwards] = PLACES.index(_TO_NEXT_FORWARD)
    table[:, updates] = PLACES.index(_BEFORE_UPDATE)
    table[Kind.BACKWARD, :] = PLACES.index(_BEFORE_UPDATE)
    # Gradients are zeroed anywhere before a backward, and a loss may compute some.
    table[(Kind.ZERO_GRAD, Kind.BACKWARD), Kind.BACKWARD] = PLACES.index(BEFORE_BACKWARD)
    for kind in forwards:
        behind = (Kind.ZERO_GRAD, Kind.BACKWARD, Kind.LOSS, *ANYWHERE)
        table[kind, behind] = PLACES.index(BEFORE_BACKWARD)
        table[kind, Kind.FORWARD] = PLACES.index(BETWEEN_FORWARDS)
    return table


PLACE_BETWEEN: Final = _place_table()


def _before(kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    placed = np.where(np.isin(kinds, ANYWHERE), -1, np.arange(len(kinds)))
    last = np.maximum.accumulate(placed)
    before: npt.NDArray[np.uint8] = np.where(last >= 0, kinds[np.maximum(last, 0)], kinds)
    return before


def _other_by_place(events: Events, attribution: Attribution, window: Window) -> dict[str, float]:
    """Splits the loop's uncovered time by the spans on both sides of it, in seconds."""
    gaps = np.zeros(len(PLACES))
    reached, kind_before = _covered_until(events, attribution, window.loop_start), None
    for kinds, starts, ends in _outermost_spans(events, attribution, window):
        if kind_before is None:
            gaps[PLACES.index(ELSEWHERE)] += max(0, int(starts[0]) - reached)
            before = _before(kinds)
        else:
            gaps[PLACE_BETWEEN[kind_before, kinds[0]]] += int(starts[0]) - reached
            before = _before(np.insert(kinds, 0, kind_before))[1:]
        gaps += np.bincount(
            PLACE_BETWEEN[before[:-1], kinds[1:]],
            weights=starts[1:] - ends[:-1],
            minlength=len(PLACES),
        )
        reached, kind_before = int(ends[-1]), int(before[-1])
    gaps[PLACES.index(ELSEWHERE)] += max(0, window.loop_end - reached)
    places = dict(zip(PLACES, gaps.tolist(), strict=True))
    places[IN_CLOSURE] = int(attribution.own_ns[attribution.key == KEY["other"]].sum())
    return {name: ns / 1e9 for name, ns in places.items() if ns > 0}


def _covered_until(events: Events, attribution: Attribution, time: int) -> int:
    top, segments = attribution.top, attribution.segments
    before = top[: _outermost_before(events, top, time)]
    earlier = segments[segments[:, 0] < time]
    ends: list[int] = [time, *events.end[before[-1:]].tolist(), *earlier[-1:, 1].tolist()]
    return max(ends)


def _outermost_before(events: Events, top: Int32, time: int) -> int:
    """Returns how many outermost events begin before a time."""
    begun = np.searchsorted(events.start, time)
    return int(np.searchsorted(top, top.dtype.type(begun)))  # else numpy would copy all of `top`


def _outermost_spans(
    events: Events, attribution: Attribution, window: Window
) -> Iterator[tuple[npt.NDArray[np.uint8], Int64, Int64]]:
    """Yields kind, start and end of the loop's outermost events and evaluation, block by block."""
    top, segments = attribution.top, attribution.segments
    loop = window.loop_start, window.loop_end
    first, last = (_outermost_before(events, top, time) for time in loop)
    in_loop = (segments[:, 0] >= window.loop_start) & (segments[:, 0] < window.loop_end)
    segments = segments[in_loop]
    for block in range(first, max(last, first + 1), _BLOCK):
        part = top[block : min(block + _BLOCK, last)]
        kinds, starts, ends = events.kind[part], events.start[part], events.end[part]
        is_last = block + _BLOCK >= last
        # Evaluation that begins with a span comes before it, as in a single block.
        upto = len(segments)
        if not is_last:
            upto = int(np.searchsorted(segments[:, 0], starts[-1], side="right"))
        here, segments = segments[:upto], segments[upto:]
        place = np.searchsorted(starts, here[:, 0])
        starts, ends = np.insert(starts, place, here[:, 0]), np.insert(ends, place, here[:, 1])
        if len(starts):
            yield np.insert(kinds, place, _EVALUATION_KIND), starts, ends


def update_calls(events: Events, nesting: Nesting, window: Window) -> dict[int, int]:
    """Counts the calls of each optimizer's step in the loop, by its number.

    Not those in a backward: there each parameter may have an optimizer, to save memory.
    """
    is_step = events.is_kind(Kind.OPTIMIZER_STEP)
    is_step &= ~nesting.inside(events.is_kind(Kind.OPTIMIZER_STEP, Kind.BACKWARD))
    is_step &= (events.start >= window.loop_start) & (events.start < window.loop_end)
    numbers, counts = np.unique(events.site[is_step], return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


# Parts of the update outside of optimizers.
_NOT_OPTIMIZERS: Final = (
    Kind.SCALER_STEP,
    Kind.SCALER_UPDATE,
    Kind.CLIP_GRADIENTS,
    Kind.SCHEDULER_STEP,
)


def update_seconds(
    events: Events, nesting: Nesting, attribution: Attribution, window: Window
) -> dict[int, float]:
    """Returns the part of the ledger's `optimizer` in each optimizer's steps, s by its number."""
    is_step, is_apart = events.is_kind(Kind.OPTIMIZER_STEP), events.is_kind(*_NOT_OPTIMIZERS)
    in_loop = (events.start >= window.loop_start) & (events.start < window.loop_end)
    counted = np.flatnonzero(in_loop & (attribution.key == KEY["optimizer"]) & ~is_apart)
    # Each of them that is a step, or the innermost step or other update around it.
    around = counted.astype(np.int64)
    while (above := (around >= 0) & ~(is_step | is_apart)[around]).any():
        around[above] = nesting.parent[around[above]]
    is_in_step = (around >= 0) & is_step[around]
    counted, around = counted[is_in_step], around[is_in_step]
    own_ns = attribution.own_ns[counted]
    numbers, which = np.unique(events.site[around], return_inverse=True)
    sums = np.bincount(which, weights=own_ns)
    return {int(number): float(ns / 1e9) for number, ns in zip(numbers, sums, strict=True)}
