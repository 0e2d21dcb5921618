"""The loaders of a summary, with the preparation of their batches and what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import numpy as np

from trainprof.analysis.loading.batch_preparation import (
    DEFAULT_SLOW_SAMPLES,
    SlowSamples,
    StateSamples,
    with_sampled_reading,
)
from trainprof.analysis.loading.fetches import Details, FetchTable, copying_loaders, fetch_table
from trainprof.analysis.loading.loaders import BatchMaking, loaders_in_loop, loaders_of
from trainprof.analysis.loading.recreated_loaders import renumbered
from trainprof.analysis.loading.workers import (
    WorkerStream,
    WorkerTable,
    recorded_stream,
    recorded_threads,
)
from trainprof.analysis.machine.processes import samples_by_pid, ticks_of
from trainprof.analysis.pipeline.bounds import PipelineInputs
from trainprof.analysis.pipeline.fit import LoaderModel, model_of, pipeline_inputs
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.metadata import Metadata, integer, number
from trainprof.analysis.run.run_part import trained_samples
from trainprof.analysis.run.training_process import is_of_loader
from trainprof.analysis.stacks.hot_lines import FetchSamples, fetch_samples
from trainprof.analysis.stacks.samples import (
    LineNames,
    StackSamples,
    line_names,
    sampled_threads,
    thread_samples,
)
from trainprof.analysis.summary.loader import Loader, LoaderBound, WorkerThreads
from trainprof.analysis.timeline.events import Events, ProcessLog, joined_tables
from trainprof.analysis.timeline.iterations import EVALUATION, TRAINING
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.record.schema import Kind, Topic

_LOADERS_MODELLED: Final = 8
MAX_BOUNDS: Final = 4
_OF_WORKER: Final = (Topic.ENVIRONMENT, Topic.SITE)


@dataclass(frozen=True, slots=True)
class LoaderPart:
    """The loaders of a run.

    Attributes:
        in_loop: As the training phase has them, without those that have no epoch in it.
        samples: How many were trained on.
        known_of: Returns the model of a loader, by its id.
        making_of: Stack samples of its workers' fetches, by id of a loader that feeds training.
    """

    loaders: list[Loader]
    in_loop: list[Loader]
    samples: int | None
    known_of: Callable[[int], LoaderModel | None]
    making_of: Mapping[int, FetchSamples]


def loader_part(run: Analysed) -> LoaderPart:
    timeline, making = run.timeline, _batch_making(run)
    loaders = loaders_of(run, making)
    costliest = sorted(loaders, key=lambda loader: -loader.wait_total_s)[:_LOADERS_MODELLED]
    known = {loader.id: _pipeline_inputs(run, making, loader.id) for loader in costliest}
    samples = trained_samples(timeline, making.fetches, run.metadata)
    known_of = cache(lambda number: model_of(known.get(number)))
    loaders = with_bounds(loaders, known_of)
    in_loop = loaders_in_loop(run, making, loaders)
    making_of = {
        loader.id: fetch_samples(making.fetches, loader.id, making.stack_samples)
        for loader in in_loop
        if loader.num_workers and loader.role == TRAINING
    }
    return LoaderPart(loaders, in_loop, samples, known_of, making_of)


def with_bounds(
    loaders: list[Loader], known_of: Callable[[int], LoaderModel | None]
) -> list[Loader]:
    """Returns all loaders, those that were waited for most with what bounds them."""
    eligible = [
        loader
        for loader in loaders
        if loader.role in (TRAINING, EVALUATION) and loader.iterations >= MIN_STEADY_STEPS
    ]
    ranked = sorted(eligible, key=lambda loader: (loader.role != TRAINING, -loader.wait_total_s))
    bounds = {loader.id: _bound_of(known_of(loader.id)) for loader in ranked[:MAX_BOUNDS]}
    return [replace(loader, bound=bounds.get(loader.id)) for loader in loaders]


def _bound_of(model: LoaderModel | None) -> LoaderBound | None:
    """The model is not exact: a limit that the run went below is the measured step."""
    if model is None:
        return None
    bound, measured_s = model.now.bound, model.measured.step_s
    return LoaderBound(
        by=bound.name,
        wait_cause=bound.wait_cause,
        parts_s=bound.parts_s,
        limits_s={name: min(s, measured_s) for name, s in bound.limits_s.items()},
        step_s=model.now.step_s.mid,
        measured_step_s=measured_s,
    )


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


def _batch_making(run: Analysed) -> BatchMaking:
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
    return BatchMaking(
        fetches=fetches,
        slow=joined_tables(SlowSamples, recorded.slow),
        details=own,
        samples=samples_by_pid(ticks, [pid, *np.unique(in_workers).tolist()]),
        origin_ns=run.origin_ns,
        slow_samples=DEFAULT_SLOW_SAMPLES if asked is None else max(asked, 0),
        stack_samples=recorded.stacks,
        copying=frozenset(recorded.copying),
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


def _pipeline_inputs(run: Analysed, making: BatchMaking, loader: int) -> PipelineInputs | None:
    """None where lines were timed or devices waited for: parts are slowed, and not alike."""
    host = run.recording.section("host")
    cores = run.host.cores.usable or number(host.get("cores"), 0.0)
    if cores <= 0 or run.has_timed_lines() or run.synchronized() is not None:
        return None
    return pipeline_inputs(
        run.timeline,
        making.fetches,
        run.metadata,
        loader,
        cores=cores,
        ranks=run.host.ranks,
        details=making.details,
        samples=making.samples.get(run.process.pid or 0, []),
    )


def _in_window(details: Details, run: Analysed) -> Details:
    if run.part is None:
        return details
    window, start = run.timeline.window, details["start"]
    is_inside = (start >= window.start) & (start < window.end)
    rows: Details = details[is_inside | (details["kind"] == Kind.WORKER)]
    return rows
