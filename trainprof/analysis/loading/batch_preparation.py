"""How batches are prepared: what processes recorded of fetches, and sums of it by loader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.fetches import (
    Details,
    FetchTable,
    Float64,
    copying_loaders,
    fetch_table,
    innermost_around,
)
from trainprof.analysis.loading.recreated_loaders import renumbered
from trainprof.analysis.loading.workers import (
    WorkerStream,
    WorkerTable,
    recorded_stream,
    recorded_threads,
)
from trainprof.analysis.machine.processes import (
    Samples,
    Tick,
    resources_of,
    samples_by_pid,
    ticks_of,
)
from trainprof.analysis.run.metadata import Metadata, integer
from trainprof.analysis.run.training_process import is_of_loader
from trainprof.analysis.stacks.samples import (
    LineNames,
    StackSamples,
    line_names,
    sampled_threads,
    thread_samples,
)
from trainprof.analysis.summary.distribution import statistics_s
from trainprof.analysis.summary.loader import Fetch, WorkerThreads
from trainprof.analysis.timeline.events import (
    Bool,
    Events,
    Int32,
    Int64,
    ProcessLog,
    joined_tables,
    rows_of,
)
from trainprof.record.schema import Kind, SlowSampleFlag, Topic

if TYPE_CHECKING:
    from trainprof.analysis.run.analysed import Analysed
    from trainprof.analysis.statistics.time_weighted import Line
    from trainprof.analysis.timeline.iterations import LoaderIterations

DEFAULT_SLOW_SAMPLES: Final = 10
# Too few samples of the state do not show how long a process was in each.
MIN_STATES: Final = 20
_WAITING: Final = "D"
_OF_WORKER: Final = (Topic.ENVIRONMENT, Topic.SITE)
# A copy of a million rows would be slow.
_BLOCK: Final = 1 << 16
_SUMMED: Final = (
    *("wall_s", "running_s", "runnable_s", "throttled_s", "reading_s", "asleep_s", "cpu_s"),
    *("read_bytes", "major_faults"),
)


@dataclass(frozen=True, slots=True)
class SlowSamples:
    """The samples that took longest in each process, shape (n,).

    Attributes:
        loader, pid, worker: As in `FetchTable`, of the fetch that requested it.
        value: The index requested; its place in the batch if that is not a number.
        kept_off_ns: For how long that fetch could have run and no core was free; NaN if unknown.
    """

    loader: Int64
    pid: Int32
    worker: Int32
    start_ns: Int64
    took_ns: Int64
    value: Int64
    is_index: Bool
    kept_off_ns: Float64

    @staticmethod
    def of_process(details: Details, table: FetchTable) -> SlowSamples:
        tables = []
        details = details[details["kind"] == Kind.SLOW_SAMPLE]
        for thread in np.unique(details["thread"]).tolist():
            samples = details[details["thread"] == thread]
            fetch = np.flatnonzero(table.thread == thread)
            fetch = fetch[np.argsort(table.start_ns[fetch], kind="stable")]
            start = table.start_ns[fetch]
            begun = np.searchsorted(start, samples["start"], side="right") - 1
            around = innermost_around(samples["end"], start + table.wall_ns[fetch], begun)
            samples, rows = samples[around >= 0], fetch[around[around >= 0]]
            tables.append(
                SlowSamples(
                    loader=table.loader[rows],
                    pid=table.pid[rows],
                    worker=table.worker[rows],
                    start_ns=samples["start"],
                    took_ns=samples["end"] - samples["start"],
                    value=samples["value"],
                    is_index=(samples["flags"] & SlowSampleFlag.IS_INDEX) > 0,
                    kept_off_ns=table.delay_ns[rows],
                )
            )
        return joined_tables(SlowSamples, tables)


@dataclass(frozen=True, slots=True)
class BatchPreparation:
    """What is known of how batches were prepared and delivered, for all loaders.

    Attributes:
        details: Of the process that trains.
        samples: Of the process that trains and of workers, by pid.
        slow_samples: How many of them to list.
        stack_samples: Of threads that fetch, with the names of lines, by pid and thread.
        copying: Loaders whose fetches copy between devices, or whose batches are on one.
    """

    fetches: FetchTable
    slow: SlowSamples
    details: Details
    samples: Mapping[int, Samples]
    origin_ns: int
    slow_samples: int
    stack_samples: Mapping[tuple[int, int], tuple[StackSamples, LineNames]]
    copying: frozenset[int]
    threads: Mapping[int, WorkerThreads | None]
    streams: Mapping[int, WorkerStream]

    def within(self, p: LoaderIterations, chosen: Bool) -> BatchPreparation:
        """Returns it with no fetches but those of the chosen epochs over one loader."""
        fetches, slow = self.fetches, self.slow
        mine = (fetches.loader == p.loader) & p.among(chosen, fetches.start_ns)
        slow_here = (slow.loader == p.loader) & p.among(chosen, slow.start_ns)
        return replace(self, fetches=fetches.rows(mine), slow=rows_of(slow, slow_here))


def fetch_of(preparation: BatchPreparation, p: LoaderIterations) -> Fetch | None:
    """Sums up the fetches of one loader, None where none was seen."""
    table, samples = preparation.fetches, preparation.samples
    is_mine = table.loader == p.loader
    if not is_mine.any():
        return None
    mine = table if is_mine.all() else table.rows(is_mine)
    batch_bytes = mine.batch_bytes[~np.isnan(mine.batch_bytes)]
    tensors = mine.batch_tensors[~np.isnan(mine.batch_tensors)]
    workers = [_worker(process, p, _resources(process, samples)) for process in _by_process(mine)]
    per_sample = (mine.wall_ns - mine.collate_ns) / np.maximum(mine.samples, 1)
    return Fetch(
        n=len(mine),
        wall_s=statistics_s(mine.wall_ns),
        **usage_of(mine),
        samples=int(mine.samples.sum(dtype=np.int64)),
        batch_bytes=float(batch_bytes.mean()) if len(batch_bytes) else None,
        batch_tensors=float(tensors.mean()) if len(tensors) else None,
        dataset_s=int((mine.wall_ns - mine.collate_ns).sum()) / 1e9,
        collate_s=int(mine.collate_ns.sum()) / 1e9,
        typical_sample_s=float(np.median(per_sample)) / 1e9,
        slow_samples=_slowest(preparation, p.loader),
        per_worker=sorted(
            workers, key=lambda row: (row["worker"] is not None, row["worker"], row["pid"])
        ),
        batch_bytes_error=_standard_error(batch_bytes),
    )


def _standard_error(sizes: Float64) -> float | None:
    return float(sizes.std(ddof=1)) / len(sizes) ** 0.5 if len(sizes) > 1 else None


def _slowest(preparation: BatchPreparation, loader: int) -> list[dict[str, Any]]:
    slow = preparation.slow
    rows = np.flatnonzero(slow.loader == loader)
    rows = rows[np.argsort(-slow.took_ns[rows], kind="stable")][: preparation.slow_samples]
    slowest = []
    for row in rows.tolist():
        number, value = int(slow.worker[row]), int(slow.value[row])
        kept_off_s = float(min(slow.kept_off_ns[row], slow.took_ns[row]) / 1e9)
        is_index = bool(slow.is_index[row])
        slowest.append(
            {
                "index": value if is_index else None,
                "place_in_batch": None if is_index else value,
                "seconds": float(slow.took_ns[row] / 1e9),
                "kept_off_s": None if np.isnan(slow.kept_off_ns[row]) else kept_off_s,
                "at_s": float((slow.start_ns[row] - preparation.origin_ns) / 1e9),
                "worker": number - 1 if number else None,
                "pid": int(slow.pid[row]),
            }
        )
    return slowest


def _by_process(table: FetchTable) -> Iterator[FetchTable]:
    """Yields the fetches of each process, in order of start."""
    order = np.lexsort((table.start_ns, table.worker, table.pid))
    is_next = (np.diff(table.pid[order]) != 0) | (np.diff(table.worker[order]) != 0)
    if not is_next.any() and (np.diff(order) > 0).all():
        yield table  # of a long run without workers the copy would be large
        return
    for rows in np.split(order, np.flatnonzero(is_next) + 1):
        yield table.rows(rows)


def _resources(table: FetchTable, samples: Mapping[int, Samples]) -> dict[str, Any]:
    """Returns what a worker used while it prepared batches; {} of the main process."""
    if not table.worker[0]:
        return {}
    start, end = int(table.start_ns[0]), int((table.start_ns + table.wall_ns).max())
    return resources_of(samples.get(int(table.pid[0]), []), start, end)


def _worker(table: FetchTable, p: LoaderIterations, resources: dict[str, Any]) -> dict[str, Any]:
    pid, number = int(table.pid[0]), int(table.worker[0])
    start, wall = table.start_ns, table.wall_ns
    # Of each epoch it was there from its first fetch on; between epochs it is asked nothing.
    in_epoch = p.number_at(start)
    served, first_of_epoch = np.unique(in_epoch, return_index=True)
    served, first_of_epoch = served[served >= 0], first_of_epoch[served >= 0]
    asked_ns = int((p.end[served] - start[first_of_epoch]).sum())
    began = int(p.start[served[0]] if len(served) else start[0])
    return {
        "worker": number - 1 if number else None,
        "pid": pid,
        "n": len(wall),
        "seconds": float(wall.sum() / 1e9),
        "mean_s": float(wall.mean() / 1e9),
        "busy_share": min(float(wall.sum()) / asked_ns, 1.0) if number and asked_ns > 0 else None,
        "first_fetch_s": float((start[0] - began) / 1e9) if number else None,
        **usage_of(table),
        **resources,
    }


def running_ns(table: FetchTable) -> Float64:
    """Returns what of each fetch's wall time something ran, NaN if not measured."""
    delay, reading = np.nan_to_num(table.delay_ns), np.nan_to_num(table.reading_ns)
    own = np.minimum(table.cpu_ns, table.wall_ns)
    # While a worker sleeps, others may work for it: a decoder with threads of its own. Where the
    # model is trained, torch's threads spin for a while after each operation.
    asleep = np.maximum(table.wall_ns - own - delay - reading, 0)
    others = np.where(table.worker > 0, np.maximum(table.process_cpu_ns - table.cpu_ns, 0), 0)
    running: Float64 = own + np.minimum(others, asleep)
    return running


def usage_of(table: FetchTable) -> dict[str, Any]:
    """Sums up fetches: figures of `Fetch` by name, None where the kernel reports nothing.

    The first five partition the fetches' wall time: what is unknown is in asleep_s.
    """
    measured = np.flatnonzero(table.stands_for > 0)
    total, is_known = dict.fromkeys(_SUMMED, 0.0), dict.fromkeys(_SUMMED, False)
    for begin in range(0, len(measured), _BLOCK):
        rows = table.rows(measured[begin : begin + _BLOCK])
        for name, values in _parts(rows).items():
            total[name] += float((rows.stands_for * np.nan_to_num(values)).sum())
            is_known[name] |= not np.isnan(values).all()
    scale = float(table.wall_ns.sum()) / total["wall_s"] if total["wall_s"] else 0.0
    figures: dict[str, Any] = {
        name: total[name] * scale / (1e9 if name.endswith("_s") else 1) if is_known[name] else None
        for name in _SUMMED[1:]
    }
    for name in ("read_bytes", "major_faults"):
        figures[name] = None if figures[name] is None else round(figures[name])
    return {**figures, "measured": len(measured)}


def _parts(table: FetchTable) -> dict[str, Float64]:
    """Returns what each measured fetch consists of, ns, and what it read; NaN if unknown."""
    wall, running = table.wall_ns.astype(np.float64), running_ns(table)
    left, is_known = wall - running, ~np.isnan(table.delay_ns)
    waiting = np.minimum(np.nan_to_num(table.delay_ns), left)
    throttled = np.minimum(np.nan_to_num(table.throttled_ns), waiting)
    reading = np.minimum(np.nan_to_num(table.reading_ns), left - waiting)
    parts = (
        wall,
        running,
        np.where(is_known, waiting - throttled, np.nan),
        np.where(is_known, throttled, np.nan),
        np.where(np.isnan(table.reading_ns), np.nan, reading),
        left - waiting - reading,
        np.nan_to_num(table.process_cpu_ns),
        table.read_bytes,
        table.major_faults,
    )
    return dict(zip(_SUMMED, parts, strict=True))


@dataclass(frozen=True, slots=True)
class StateSamples:
    """States of processes' main threads, shape (n,), in order of pid and time.

    `is_waiting` for storage, or for something else that can't be interrupted.
    """

    pid: Int64
    t_ns: Int64
    is_waiting: Bool

    @staticmethod
    def of(pids: Collection[int], ticks: Sequence[Tick], lines: Sequence[Line]) -> StateSamples:
        """Returns those of some processes; of each the more frequent `lines`, if there are any."""
        by_text = {str(pid): pid for pid in pids}
        rows: list[tuple[int, int, bool]] = []
        for line in lines:
            states = line.get("states")
            for text, state in states.items() if isinstance(states, dict) else ():
                if text in by_text:
                    rows.append((by_text[text], line["t_ns"], state == _WAITING))
        others = set(pids) - {pid for pid, _, _ in rows}
        rows += [
            (pid, tick.t_ns, process["state"] == _WAITING)
            for tick in ticks
            for (pid, _), process in tick.processes.items()
            if pid in others and "state" in process
        ]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
        columns = columns[np.lexsort((columns[:, 1], columns[:, 0]))].T
        return StateSamples(columns[0], columns[1], columns[2] > 0)

    def of_process(self, pid: int) -> tuple[Int64, Bool]:
        """Returns times and states of one process."""
        begin, end = np.searchsorted(self.pid, [pid, pid + 1])
        return self.t_ns[begin:end], self.is_waiting[begin:end]


def with_sampled_reading(
    table: FetchTable, states_of: Callable[[Collection[int]], StateSamples], main_thread: int | None
) -> FetchTable:
    """Returns fetches with their `reading_ns`, where the kernel did not report it.

    Of the fetches that read something, the share of samples in which the process waited is the
    share of their time. Other fetches waited for something else. In the process that trains only
    the main thread is sampled.
    """
    has_read = (np.nan_to_num(table.read_bytes) > 0) | (np.nan_to_num(table.major_faults) > 0)
    if not has_read.any() or not np.isnan(table.reading_ns).all():
        return table
    states = states_of(np.unique(table.pid[has_read]).tolist())
    is_seen = (table.stands_for > 0) & ((table.worker > 0) | (table.thread == main_thread))
    reading = table.reading_ns.copy()
    for loader in np.unique(table.loader[has_read & is_seen]).tolist():
        mine = np.flatnonzero((table.loader == loader) & is_seen)
        read = mine[has_read[mine]]
        sampled, waiting = _sampled(table, read, states)
        if sampled < MIN_STATES:
            continue
        rows = table.rows(read)
        known = running_ns(rows) + np.nan_to_num(rows.delay_ns)
        asleep = np.maximum(np.nan_to_num(rows.wall_ns - known), 0.0)
        waited_ns = waiting / sampled * float(table.wall_ns[read].sum())
        reading[mine] = 0.0
        reading[read] = asleep * min(waited_ns / max(float(asleep.sum()), 1.0), 1.0)
    return replace(table, reading_ns=reading)


def _sampled(
    table: FetchTable, rows: npt.NDArray[np.intp], states: StateSamples
) -> tuple[int, int]:
    """Returns the number of samples inside some fetches, and how many of those waited."""
    sampled = waiting = 0
    for pid in np.unique(table.pid[rows]).tolist():
        of_process = rows[table.pid[rows] == pid]
        start = np.sort(table.start_ns[of_process])
        end = np.sort(table.start_ns[of_process] + table.wall_ns[of_process])
        t_ns, is_waiting = states.of_process(pid)
        # Inside a fetch: more have begun than have ended.
        inside = np.searchsorted(start, t_ns, "right") > np.searchsorted(end, t_ns, "left")
        sampled += int(inside.sum())
        waiting += int((inside & is_waiting).sum())
    return sampled, waiting


@dataclass(slots=True)
class _Recorded:
    """What the processes of a run recorded of fetches, process by process."""

    tables: list[FetchTable] = field(default_factory=list)
    slow: list[SlowSamples] = field(default_factory=list)
    copying: set[int] = field(default_factory=set)
    threads: dict[int, WorkerThreads | None] = field(default_factory=dict)
    streams: dict[int, WorkerStream] = field(default_factory=dict)
    stacks: dict[tuple[int, int], tuple[StackSamples, LineNames]] = field(default_factory=dict)

    def add(self, table: FetchTable, events: Events, details: Details) -> None:
        self.tables.append(table)
        self.copying |= copying_loaders(events, table)
        self.slow.append(SlowSamples.of_process(details, table))


def batch_preparation(run: Analysed) -> BatchPreparation:
    first_of, process, events = run.timeline.first_of, run.process, run.timeline.all_events
    own, recorded, pid = _in_window(process.details, run), _Recorded(), process.pid or 0
    if first_of:
        own, of_loader = own.copy(), is_of_loader(own)
        own["site"][of_loader] = renumbered(own["site"][of_loader], first_of)
    if process.logs:
        table = fetch_table(events, own, process.pid, 0)
        table = replace(table, loader=renumbered(table.loader, first_of))
        recorded.add(table, events, own)
    recorded.streams[pid] = recorded_stream(run.metadata.environment())
    for thread in sampled_threads(own):
        names = LineNames(run.metadata.texts, run.sites())
        recorded.stacks[pid, thread] = thread_samples(own, thread), names
    workers = WorkerTable.of(own)
    for log in process.workers:
        _add_worker(recorded, log, workers, run)
    fetches = FetchTable.joined(recorded.tables)
    ticks = ticks_of(run.recording.process_lines)
    fetches = with_sampled_reading(
        fetches,
        lambda pids: StateSamples.of(pids, ticks, run.recording.state_lines),
        process.main_thread,
    )
    in_workers = fetches.pid[fetches.worker > 0]
    asked = integer(run.recording.section("options").get("slow_samples"))
    return BatchPreparation(
        fetches=fetches,
        slow=joined_tables(SlowSamples, recorded.slow),
        details=own,
        samples=samples_by_pid(ticks, [pid, *np.unique(in_workers).tolist()]),
        origin_ns=run.origin_ns,
        slow_samples=DEFAULT_SLOW_SAMPLES if asked is None else max(asked, 0),
        stack_samples=recorded.stacks,
        copying=frozenset(recorded.copying) | run.metadata.loaders_of_device_batches(),
        threads=recorded.threads,
        streams=recorded.streams,
    )


def _add_worker(recorded: _Recorded, log: ProcessLog, workers: WorkerTable, run: Analysed) -> None:
    """Adds what one worker recorded; its loader is that of its iterator, or the only one."""
    events, first_of, window = log.events, run.timeline.first_of, run.timeline.window
    if run.part is not None:
        events = events.where((events.start >= window.start) & (events.start < window.end))
    pid, details = log.pid or 0, _in_window(log.details, run)
    table = fetch_table(events, details, pid, 0)
    known, by_worker = renumbered(table.loader, first_of), workers.loader_of(pid, table.start_ns)
    with_workers = {first_of.get(number, number) for number in run.metadata.loaders_with_workers()}
    only = with_workers.pop() if len(with_workers) == 1 else 0
    loader = np.where(by_worker > 0, by_worker, np.where(known > 0, known, only))
    recorded.add(replace(table, loader=loader), events, details)
    cwd = run.recording.manifest.get("cwd")
    metadata = Metadata({topic: log.texts_of(topic) for topic in _OF_WORKER})
    environment = metadata.environment()
    recorded.threads[pid] = recorded_threads(environment, metadata.sites(cwd))
    recorded.streams[pid] = recorded_stream(environment)
    for thread in sampled_threads(details):
        recorded.stacks[pid, thread] = thread_samples(details, thread), line_names(log, cwd)


def _in_window(details: Details, run: Analysed) -> Details:
    if run.part is None:
        return details
    window, start = run.timeline.window, details["start"]
    is_inside = (start >= window.start) & (start < window.end)
    rows: Details = details[is_inside | (details["kind"] == Kind.WORKER)]
    return rows
