"""Builds a run's trace for Perfetto from its directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from trainprof.analysis.charts.events import loader_line
from trainprof.analysis.charts.machine import figures_of
from trainprof.analysis.device.activity import PHASES
from trainprof.analysis.device.devices import overlap_of
from trainprof.analysis.loading.workers import WorkerTable
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.run.run_numbers import FirstProcess, first_analysed
from trainprof.analysis.statistics.time_weighted import Window
from trainprof.analysis.summary.trace import (
    MAX_SLICES,
    Counter,
    Flows,
    Process,
    Slices,
    Thread,
    Trace,
)
from trainprof.analysis.timeline.events import Events, rows_of
from trainprof.analysis.timeline.iterations import EVALUATION, LOADER_CALLS, TRAINING, epoch_starts
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.trace.deliveries import Deliveries, batches_of, deliveries_of
from trainprof.analysis.trace.slices import Words, pieces_of, split, with_details
from trainprof.record.names import UNKNOWN_SITE
from trainprof.record.schema import Kind, Topic

if TYPE_CHECKING:
    from trainprof.analysis.loading.fetches import Details
    from trainprof.analysis.timeline.events import Int64, ProcessLog
    from trainprof.record.run_directory import RunDirectory

# Of a counter, about four for each pixel of a large screen.
_MOST_VALUES: Final = 20_000
# Slices around those of events on the training thread: epochs and steps.
_OUTLINE: Final = 2
# A fetch in a worker, and its collate call.
_PER_FETCH: Final = 2
_ROLES: Final = {TRAINING: "training ", EVALUATION: "validation "}
_PANELS: Final = {
    "cpu": "CPU",
    "gpu_utilization": "utilization",
    "gpu_memory": "memory",
    "gpu_power": "power",
}


def trace_of(
    directory: RunDirectory, *, epoch: int | None = None, steps: tuple[int, int] | None = None
) -> Trace:
    """Returns the trace of a run's training process, the first of several ranks, and its workers.

    Of a part of a run it has what began in it. Of a run with more than MAX_SLICES slices it has the
    first steps, and a note.

    Args:
        epoch: 0-based.
        steps: 0-based, the end excluded.

    Raises:
        NothingThere: If the run lacks that epoch or those steps.
    """
    process = first_analysed(directory, epoch=epoch, steps=steps)
    window = process.run.timeline.window
    until_ns, note = _fitting(process, window.start, window.end)
    return _Build(process, window.start, until_ns).trace(note)


def _fitting(process: FirstProcess, start: int, end: int) -> tuple[int, str | None]:
    """Returns until when a browser can open the trace, and a sentence if that is not all."""
    workers = [
        log.events.start[log.events.is_kind(Kind.FETCH)] for log in process.run.process.workers
    ]
    begun = [process.whole.all_events.start, *workers]
    per_event = [1, *[_PER_FETCH] * len(workers)]

    def count(until: Int64) -> Int64:
        edges = np.append(start, until)
        places = [n * np.searchsorted(x, edges) for n, x in zip(per_event, begun, strict=True)]
        total = np.sum(places, axis=0)
        slices: Int64 = total[1:] - total[0]
        return slices

    if count(np.array([end]))[0] <= MAX_SLICES:
        return end, None
    ends = process.run.timeline.steps.ends
    fitting = int(np.searchsorted(count(ends) + np.arange(len(ends)), MAX_SLICES))
    too_large = "more would be too large for a browser"
    if fitting == 0:
        times = np.concatenate([x[np.searchsorted(x, start) :] for x in begun])
        until = int(np.partition(times, MAX_SLICES // _PER_FETCH)[MAX_SLICES // _PER_FETCH])
        seconds = (until - start) / 1e9
        return until, f"The trace has the first {seconds:.0f} s: {too_large}."
    first = process.first_step
    return int(ends[fitting - 1]), (
        f"The trace has steps {first + 1:,} to {first + fitting:,} of {first + len(ends):,}:"
        f" {too_large}. Choose others by --steps A:B."
    )


@dataclass(slots=True)
class _Lane:
    """A track of threads, by pid and number, that ran one after the other."""

    fetches: bool
    end_ns: int = 0
    slices: list[Slices] = field(default_factory=list)
    threads: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Build:
    """Collects the tracks of a run from `start_ns` to `until_ns`.

    Attributes:
        tids: Of the threads so far, by pid (0 for the training process) and number.
        fetching: That of each worker's thread that fetches, by pid.
    """

    process: FirstProcess
    start_ns: int
    until_ns: int
    tids: dict[tuple[int, int], int] = field(default_factory=dict)
    fetching: dict[int, int] = field(default_factory=dict)

    def trace(self, note: str | None) -> Trace:
        training = self._training(deliveries := deliveries_of(self.process.run.process))
        workers = list(self._workers(deliveries))
        machine = self._machine()
        processes = [training, *self._device(), *workers, *machine]
        return Trace(processes=processes, flows=self._flows(deliveries), note=note)

    @property
    def _origin_ns(self) -> int:
        """Of a damaged log, events may seem to begin before the run."""
        return min(self.process.run.origin_ns, self.process.whole.window.start)

    def _thread(self, pid: int, number: int, name: str, slices: list[Slices]) -> Thread:
        tid = self.tids.setdefault((pid, number), len(self.tids) + 1)
        return Thread(tid=tid, name=name, slices=slices)

    def _here(self, events: Events) -> Events:
        first, last = np.searchsorted(events.start, [self.start_ns, self.until_ns])
        return rows_of(events, slice(int(first), int(last)))

    def _details_here(self, details: Details) -> Details:
        start = details["start"]
        rows: Details = details[(start >= self.start_ns) & (start < self.until_ns)]
        return rows

    # the training process

    def _training(self, deliveries: Deliveries) -> Process:
        run, timeline = self.process.run, self.process.whole
        # Those in the training process have their call around them.
        words = Words(
            run.metadata, run.sites(), self._loader, lambda starts: np.full(len(starts), -1)
        )
        events = words.displayed(self._here(timeline.all_events))
        details = self._details_here(run.process.details)
        outline, cuts = self._outline()
        pinning = set(details["thread"][details["kind"] == Kind.PIN].tolist())
        numbers = {timeline.thread, *np.unique(events.thread).tolist(), *pinning}
        main = run.process.main_thread
        threads = []
        for number in sorted(numbers, key=lambda n: (n != timeline.thread, n != main, n)):
            is_training = number == timeline.thread
            own = with_details(
                events.where(events.thread == number), details[details["thread"] == number]
            )
            pieces = pieces_of(own, *((cuts, self.until_ns) if is_training else ()))
            slices = list(words.slices(pieces, self._origin_ns, _OUTLINE if is_training else 0))
            if is_training:
                name = "training thread" if number != main else "main thread: training"
                slices = [*outline, *slices]
            elif number == main:
                name = "main thread"
            elif number in pinning:
                name = f"thread {number}: pin memory"
            elif own.is_kind(*LOADER_CALLS, Kind.FETCH).any():
                name = f"thread {number}: loads data"
            else:
                name = f"thread {number}"
            if slices:
                threads.append(self._thread(0, number, name, slices))
        return Process(name=self._name(), threads=threads)

    def _name(self) -> str:
        run = self.process.run
        manifest = run.recording.manifest
        script = manifest.get("script")
        name = os.path.basename(script) if isinstance(script, str) else "training process"
        rank = manifest.get("rank") if run.process.rank is None else run.process.rank
        return f"{name}, rank {rank}" if self.process.has_ranks else name

    def _loader(self, number: int) -> str:
        return loader_line(self.process.run, number)

    def _outline(self) -> tuple[list[Slices], Int64]:
        """Returns epochs, steps and validation as slices, and when they begin and end, ascending.

        A step in which an epoch begins, or validation runs, is two slices: its time is their sum.
        """
        timeline, window = self.process.whole, self.process.whole.window
        begins = np.maximum(epoch_starts(timeline.loaders), window.loop_start)
        begins = begins[begins < window.loop_end]
        epochs = np.arange(len(begins))
        ends = np.append(begins[1:], window.loop_end)[: len(begins)]
        slices = [
            self._shown("startup", [window.start], [window.loop_start], 0),
            self._shown("epoch", begins, ends, 0, epochs + 1),
            self._shown("shutdown", [window.loop_end], [window.end], 0),
        ]
        edges = np.unique([window.start, window.loop_start, window.loop_end, window.end, *begins])
        segments = timeline.segments
        _, start, end = split(segments[:, 0], segments[:, 1], edges)
        slices.append(self._shown("evaluation", start, end, 1))
        edges = np.unique(np.concatenate([edges, segments.ravel()]))
        step, start, end = split(timeline.step_starts, timeline.steps.ends, edges)
        is_step = ~within(segments, start)
        step, start, end = step[is_step], start[is_step], end[is_step]
        if len(begins):
            number = np.searchsorted(begins, start, side="right")
            for has_epoch in (False, True):
                chosen = (number > 0) == has_epoch
                args = {"epoch": number[chosen]} if has_epoch else {}
                slices.append(
                    self._shown("step", start[chosen], end[chosen], 1, step[chosen] + 1, args)
                )
        else:
            slices.append(self._shown("step", start, end, 1, step + 1))
        cuts = np.unique(np.concatenate([edges, start, end, [self.until_ns]]))
        return [x for x in slices if len(x)], cuts

    def _shown(
        self,
        name: str,
        start: Int64 | list[int],
        end: Int64 | list[int],
        depth: int,
        number: Int64 | None = None,
        args: dict[str, Int64] | None = None,
    ) -> Slices:
        """Returns slices of the outline, those in the trace's time."""
        begins = np.clip(start, self.start_ns, self.until_ns)
        ns = np.clip(end, self.start_ns, self.until_ns) - begins
        is_here = ns > 0
        return Slices(
            name=name,
            start_ns=begins[is_here] - self._origin_ns,
            ns=ns[is_here],
            depth=np.full(int(is_here.sum()), depth),
            number=None if number is None else number[is_here],
            args={label: column[is_here] for label, column in (args or {}).items()},
        )

    # workers

    def _workers(self, deliveries: Deliveries) -> Iterator[Process]:
        """Yields a process for each worker of each loader; those of later epochs continue it."""
        process = self.process.run.process
        table = WorkerTable.of(process.details)
        groups: dict[tuple[int, int], list[ProcessLog]] = {}
        for log in process.workers:
            fetches = log.events.is_kind(Kind.FETCH) & (log.events.flags > 0)
            numbers = log.events.flags[fetches]
            first_ns = log.events.start[fetches][:1]
            loader = int(table.loader_of(log.pid or 0, first_ns)[0]) if len(numbers) else 0
            loader = self.process.whole.first_of.get(loader, loader)
            # A process without a fetch is not a worker.
            worker = int(numbers[0]) - 1 if len(numbers) else -(log.pid or 0)
            groups.setdefault((loader, worker), []).append(log)
        for (loader, worker), logs in sorted(groups.items()):
            threads = self._threads_of(logs, deliveries)
            if not threads:
                continue
            name = f"worker {worker}" if worker >= 0 else f"process {-worker}"
            if loader:
                name += f" of the {self._described(loader, [x for x, _ in groups if x])}"
            yield Process(name=name, threads=threads)

    def _described(self, loader: int, others: list[int]) -> str:
        """Returns a loader in words, with a number if others were built there for the same use."""
        roles = {p.loader: p.role for p in self.process.whole.loaders}
        words = {
            x: f"{_ROLES.get(roles.get(x, ''), '')}loader at {self._loader(x)}"
            for x in sorted({loader, *others})
        }
        alike = [x for x, each in words.items() if each == words[loader]]
        number = f" ({alike.index(loader) + 1})" if len(alike) > 1 else ""
        return words[loader] + number

    def _threads_of(self, logs: list[ProcessLog], deliveries: Deliveries) -> list[Thread]:
        """Returns tracks of processes: one for all that run one after the other."""
        lanes: list[_Lane] = []
        for log in sorted(logs, key=lambda x: int(x.events.start[0]) if len(x.events) else 0):
            pid = log.pid or 0
            metadata = Metadata({topic: log.texts_of(topic) for topic in Topic})
            sites = metadata.sites(self.process.run.recording.manifest.get("cwd"))
            words = Words(
                metadata, sites, lambda _: UNKNOWN_SITE, partial(batches_of, deliveries, pid)
            )
            events = words.displayed(self._here(log.events))
            details = self._details_here(log.details)
            for number in np.unique(events.thread).tolist():
                own = with_details(
                    events.where(events.thread == number),
                    details[details["thread"] == number],
                )
                pieces, fetches = pieces_of(own), bool(own.is_kind(Kind.FETCH).any())
                first_ns = int(own.start[0])
                lane = next(
                    (x for x in lanes if x.fetches == fetches and x.end_ns <= first_ns), None
                )
                if lane is None:
                    lanes.append(lane := _Lane(fetches))
                lane.end_ns = int(pieces.end_ns.max())
                lane.slices += words.slices(pieces, self._origin_ns, 0)
                lane.threads.append((pid, number))
        tracks = []
        for lane in sorted(lanes, key=lambda x: not x.fetches):
            name = "fetches" if lane.fetches else "other threads"
            track = self._thread(*lane.threads[0], name, lane.slices)
            self.tids.update(dict.fromkeys(lane.threads, track.tid))
            if lane.fetches:
                self.fetching.update((pid, track.tid) for pid, _ in lane.threads)
            tracks.append(track)
        return tracks

    def _flows(self, deliveries: Deliveries) -> Flows:
        """Returns the batches of which both ends are in the trace."""
        calls = self.process.whole.all_events
        calls = self._here(calls.where(calls.is_kind(Kind.LOADER_NEXT)))
        place = np.searchsorted(calls.start, deliveries.next_start_ns)
        is_here = place < len(calls)
        place = np.minimum(place, max(len(calls) - 1, 0))
        if len(calls):
            is_here &= calls.start[place] == deliveries.next_start_ns
        is_here &= (deliveries.start_ns >= self.start_ns) & (
            deliveries.next_end_ns <= self.until_ns
        )
        # As the call begins, or after the fetch does: later, a slice inside it would be joined.
        to_ns = np.maximum(deliveries.next_start_ns, deliveries.start_ns + 1)
        is_here &= (deliveries.start_ns < deliveries.end_ns) & (to_ns < deliveries.next_end_ns)
        here = rows_of(deliveries, is_here)
        threads = calls.thread[place[is_here]].tolist()
        return Flows(
            from_tid=np.array([self.fetching[pid] for pid in here.pid.tolist()], dtype=np.int64),
            from_ns=here.start_ns - self._origin_ns,
            to_tid=np.array([self.tids[0, thread] for thread in threads], dtype=np.int64),
            to_ns=to_ns[is_here] - self._origin_ns,
        )

    # device and machine

    def _device(self) -> Iterator[Process]:
        """Yields the GPU with its phases and copies, where its time was measured."""
        run, timeline = self.process.run, self.process.run.timeline
        overlap = overlap_of(run)
        if overlap is None:
            return
        activity, events = overlap.activity, timeline.events
        phases = events.where(events.is_kind(*PHASES))
        first, last, is_known = activity.marks.ends_of(phases)
        copies = events.where(activity.copies.event)
        spans = np.concatenate(
            [
                np.stack((activity.reached_ns[first], activity.reached_ns[last]), axis=1)[is_known],
                activity.copies.spans,
            ]
        )
        is_here = (spans[:, 1] > spans[:, 0]) & (spans[:, 0] >= self.start_ns)
        is_here &= spans[:, 0] < self.until_ns
        columns = {
            name: np.concatenate([getattr(phases, name)[is_known], getattr(copies, name)])[is_here]
            for name in ("kind", "flags", "thread", "site", "value")
        }
        start, end = spans[is_here].T
        work = Events(start=start, end=end, **columns).where(np.lexsort((-end, start)))
        words = Words(run.metadata, run.sites(), self._loader, lambda starts: starts)
        slices = list(words.slices(pieces_of(work), self._origin_ns, 0))
        if slices:
            thread = self._thread(-1, activity.index, "work on the device", slices)
            yield Process(name=f"device {run.metadata.device()}", threads=[thread])

    def _machine(self) -> Iterator[Process]:
        window = Window(self.start_ns, self.until_ns)
        counters = []
        for name, panel, unit, observed in figures_of(self.process.run, window):
            start, values = observed.start_ns, observed.values
            if len(values) > _MOST_VALUES:
                edges = np.linspace(self.start_ns, self.until_ns, _MOST_VALUES + 1).astype(np.int64)
                start, (values, _) = edges[:-1], observed.in_bins(edges)
                start, values = start[~np.isnan(values)], values[~np.isnan(values)]
            words = (name, _PANELS.get(panel, panel))
            if len(values):
                counters.append(
                    Counter(
                        name=" ".join(words if panel.startswith("gpu_") else words[::-1]),
                        unit=unit,
                        start_ns=start - self._origin_ns,
                        values=values,
                    )
                )
        if counters:
            yield Process(name="machine", counters=counters)
