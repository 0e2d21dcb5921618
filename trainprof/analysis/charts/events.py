"""The longest things that happened in a run: where step time went at a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.summary.charts import MAX_EVENTS, Events
from trainprof.analysis.timeline.evaluation import evaluated_stretches
from trainprof.analysis.timeline.iterations import EVALUATION, TRAINING
from trainprof.analysis.timeline.ledger import loads_samples, within
from trainprof.analysis.timeline.steady_state import slow_from_ns, slow_steps
from trainprof.record.schema import COLLECTIVES, Kind, SyncFlag, TransferFlag

if TYPE_CHECKING:
    from trainprof.analysis.loading.batch_preparation import BatchPreparation
    from trainprof.analysis.run.analysed import Analysed
    from trainprof.analysis.run.run_numbers import FirstProcess
    from trainprof.analysis.summary.charts import Integers
    from trainprof.analysis.timeline.events import Bool, Int64
    from trainprof.analysis.timeline.step_table import StepTable

_WHICH_CALL: Final = ~np.uint8(
    SyncFlag.ON_CPU | SyncFlag.IN_CHAIN | SyncFlag.BY_TORCH | SyncFlag.BY_LIBRARY
)
_SYNCS: Final = {int(flag): flag.name.lower() for flag in SyncFlag}
_DIRECTIONS: Final = (TransferFlag.H2D, TransferFlag.D2H, TransferFlag.D2D)


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest events of one kind, at most MAX_EVENTS, longest first.

    Attributes:
        count: How many there were.
    """

    kind: str
    count: int
    start_ns: Int64
    ns: Int64
    labels: list[str]

    @classmethod
    def of(cls, kind: str, start_ns: Int64, ns: Int64, label_of: Callable[[int], str]) -> Longest:
        """Chooses them; `label_of` describes one by its place."""
        if len(ns) > MAX_EVENTS:
            chosen = np.argpartition(-ns, MAX_EVENTS)[:MAX_EVENTS]
        else:
            chosen = np.arange(len(ns))
        chosen = chosen[np.lexsort((chosen, -ns[chosen]))]
        labels = [label_of(place) for place in chosen.tolist()]
        return cls(kind, len(ns), start_ns[chosen], ns[chosen], labels)

    def first(self, count: int) -> Longest:
        few = slice(count)
        return Longest(self.kind, self.count, self.start_ns[few], self.ns[few], self.labels[few])


def slow_fetches(run: Analysed, preparation: BatchPreparation) -> Longest:
    """Returns the fetches that took much longer than others of their loader."""
    table, slow = preparation.fetches, preparation.slow
    is_slow = np.zeros(len(table), dtype=bool)
    for loader in np.unique(table.loader).tolist():
        own = table.loader == loader
        is_slow |= own & (table.wall_ns >= slow_from_ns(table.wall_ns[own]))
    rows = np.flatnonzero(is_slow)
    longest_first = np.argsort(-slow.took_ns, kind="stable")

    def described(place: int) -> str:
        row = int(rows[place])
        start, end = table.start_ns[row], table.start_ns[row] + table.wall_ns[row]
        worker = int(table.worker[row])
        label = f"{loader_line(run, int(table.loader[row]))} "
        label += f"worker {worker - 1}" if worker else "training process"
        inside = (slow.pid == table.pid[row]) & (slow.start_ns >= start) & (slow.start_ns < end)
        sample = next(iter(longest_first[inside[longest_first]].tolist()), None)
        if sample is None:
            return label
        what = "sample" if slow.is_index[sample] else "sample at place"
        return f"{label}, {what} {int(slow.value[sample])}"

    return Longest.of("slow fetch", table.start_ns[rows], table.wall_ns[rows], described)


def loader_line(run: Analysed, loader: int) -> str:
    """Returns the line that created a loader."""
    site = run.metadata.loader(loader).get("site")
    return run.sites()[site if isinstance(site, int) else 0]


def events_of(process: FirstProcess, steps: StepTable, fetches: Longest) -> Events:
    """Returns the longest events; each kind has a fair share of MAX_EVENTS."""
    run = process.run
    seen = [x for x in (_outliers(run, steps), fetches, *_calls(run)) if x.count]
    left = MAX_EVENTS
    kept: dict[str, Longest] = {}
    for place, each in enumerate(sorted(seen, key=lambda x: x.count)):
        kept[each.kind] = each.first(left // (len(seen) - place))
        left -= len(kept[each.kind].ns)
    chosen = [kept[each.kind] for each in seen]
    nothing = np.empty(0, dtype=np.int64)
    start = np.concatenate([nothing, *(x.start_ns for x in chosen)])
    ns = np.concatenate([nothing, *(x.ns for x in chosen)])
    texts = [text for x in chosen for text in x.labels]
    labels = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    order = np.argsort(start, kind="stable")
    kinds = np.repeat(np.arange(len(chosen)), [len(x.ns) for x in chosen])
    return Events(
        kinds=[x.kind for x in chosen],
        kind=kinds.astype(np.uint8)[order],
        labels=list(labels),
        label=np.array([labels[text] for text in texts], dtype=np.int32)[order],
        start_s=(start[order] - run.origin_ns) / 1e9,
        seconds=(ns[order] / 1e9).astype(np.float32),
        step=_steps_of(process, start[order]),
        dropped={x.kind: x.count - len(x.ns) for x in chosen if x.count > len(x.ns)},
    )


def _steps_of(process: FirstProcess, times: Int64) -> Integers:
    timeline = process.run.timeline
    ends = timeline.steps.ends
    step = np.searchsorted(ends, times, side="right")
    inside = (step < len(ends)) & ~within(timeline.segments, times)
    if len(ends):
        inside &= times >= timeline.step_starts[0]
    numbers: Integers = np.where(inside, step + process.first_step, -1).astype(np.int32)
    return numbers


def _outliers(run: Analysed, steps: StepTable) -> Longest:
    slow = slow_steps(steps.wall_ns, steps.candidates)
    names = list(steps.per_step)
    typical = [
        np.median(ns[steps.candidates]) if len(slow) else 0 for ns in steps.per_step.values()
    ]
    excess = [ns[slow] - usual for ns, usual in zip(steps.per_step.values(), typical, strict=True)]
    grew = np.argmax(excess, axis=0) if len(slow) else slow
    start = run.timeline.step_starts[slow]
    return Longest.of("outlier", start, steps.wall_ns[slow], lambda at: names[int(grew[at])])


def _calls(run: Analysed) -> Iterator[Longest]:
    """Yields the calls of the training thread, kind by kind."""
    timeline, sites = run.timeline, run.sites()
    events, nesting, segments = timeline.events, timeline.nesting, timeline.segments

    def of(kind: str, which: Bool, described: Callable[[int], str] = lambda _: "") -> Longest:
        rows = np.flatnonzero(which)
        start, ns = events.start[rows], events.end[rows] - events.start[rows]

        def label_of(place: int) -> str:
            row = int(rows[place])
            return f"{described(row)} at {sites[events.site[row]]}".removeprefix(" at ")

        return Longest.of(kind, start, ns, label_of)

    def outermost(which: Bool) -> Bool:
        return which & ~nesting.inside(which) if which.any() else which

    threshold_ns = int(run.wait_threshold_s() * 1e9)
    training = [p.loader for p in timeline.loaders_here() if p.role == TRAINING]
    waits = events.is_kind(Kind.LOADER_NEXT) & (events.end - events.start >= threshold_ns)
    asked = events.where(np.flatnonzero(waits)[np.isin(events.site[waits], training)])
    lines = [loader_line(run, int(loader)) for loader in asked.site]
    yield Longest.of("slow batch", asked.start, asked.end - asked.start, lines.__getitem__)
    # Of tensors on the host nothing is waited for.
    syncs = events.is_kind(Kind.SYNC) & ~events.has(SyncFlag.ON_CPU)
    yield of("sync", syncs, lambda row: _SYNCS.get(int(events.flags[row] & _WHICH_CALL), "sync"))
    copies = events.is_kind(Kind.TRANSFER)
    yield of("transfer", copies, lambda row: _direction(int(events.flags[row])))
    saves = events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    saves &= ~loads_samples(events, nesting)
    names = {int(Kind.CHECKPOINT_SAVE): "save", int(Kind.CHECKPOINT_LOAD): "load"}
    yield of("checkpoint", outermost(saves), lambda row: names[int(events.kind[row])])
    collected = events.where(events.is_kind(Kind.GC))
    took = collected.end - collected.start
    yield Longest.of(
        *("gc", collected.start, took), lambda at: f"generation {int(collected.value[at])}"
    )
    yield of("compile", outermost(events.is_kind(Kind.COMPILE)))
    took = segments[:, 1] - segments[:, 0]
    yield Longest.of("evaluation", segments[:, 0], took, evaluated_lines(run).__getitem__)
    yield _recorded(run, "collective", Kind.COLLECTIVE)
    yield _recorded(run, "empty_cache", Kind.CACHE_EMPTIED)


def _recorded(run: Analysed, kind: str, which: Kind) -> Longest:
    """Returns the training thread's calls that are details of its events."""
    details, window, sites = run.process.details, run.timeline.window, run.sites()
    rows = details[(details["kind"] == which) & (details["thread"] == run.timeline.thread)]
    rows = rows[(rows["start"] >= window.start) & (rows["start"] < window.end)]

    def label_of(place: int) -> str:
        site, number = sites[int(rows["site"][place])], int(rows["flags"][place])
        if which is not Kind.COLLECTIVE:
            return site
        return f"{COLLECTIVES[number] if number < len(COLLECTIVES) else kind} at {site}"

    return Longest.of(kind, rows["start"], rows["end"] - rows["start"], label_of)


def _direction(flags: int) -> str:
    return next((flag.name for flag in _DIRECTIONS if flags & flag and flag.name), "copy")


def evaluated_lines(run: Analysed) -> list[str]:
    """Returns for each stretch of evaluation the line of its loader, "" where it has none."""
    timeline = run.timeline
    names = [""] * len(timeline.segments)
    for p in timeline.loaders_here():
        if p.of_stage(EVALUATION).any():
            line = loader_line(run, p.loader)
            _, stretches = evaluated_stretches(p, timeline.events, timeline.segments)
            for stretch in stretches.tolist():
                names[stretch] = names[stretch] or line
    return names
