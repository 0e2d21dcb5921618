"""Turns a recorded run into its summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from trainprof.analysis.batch_making import DEFAULT_SLOW_SAMPLES, SlowSamples
from trainprof.analysis.delivery import worker_table
from trainprof.analysis.device_backlog import why_no_looks
from trainprof.analysis.device_idle import Meanwhile
from trainprof.analysis.device_memory import out_of_memory_of, why_no_memory, with_memory
from trainprof.analysis.device_verdict import DeviceEvidence
from trainprof.analysis.devices import device_of, meanwhile_of, several_devices
from trainprof.analysis.diagnosis.building import build_case
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose, least_gain
from trainprof.analysis.diagnosis.settings import rule_settings
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.ending import ending
from trainprof.analysis.epochs import epochs_of, evaluation_of
from trainprof.analysis.events import Events
from trainprof.analysis.facts import Facts, integer, number
from trainprof.analysis.faults import faults_of
from trainprof.analysis.feeding import epoch_starts
from trainprof.analysis.fetches import Details, FetchTable, fetch_table
from trainprof.analysis.found_syncs import found_syncs_of, why_none_found
from trainprof.analysis.gpu_usage import phases_of
from trainprof.analysis.inner_runs import inner_runs
from trainprof.analysis.ledger import Attribution, attribute, ledger, loop_seconds
from trainprof.analysis.line_times import has_timed_functions, line_cost
from trainprof.analysis.loader_bounds import LoaderModel, model_of, shortened, with_bounds
from trainprof.analysis.loaders import BatchMaking, loaders_of
from trainprof.analysis.looks import (
    LineNames,
    line_names,
    lines_of_training,
    looked_at,
    looks_of,
)
from trainprof.analysis.memory_figures import FoundSyncs
from trainprof.analysis.names import UNKNOWN_SITE, Sites
from trainprof.analysis.outliers import outliers
from trainprof.analysis.part import described, narrowed
from trainprof.analysis.passes import EVALUATION, TRAINING
from trainprof.analysis.pipeline import PipelineInputs
from trainprof.analysis.pipeline_fit import pipeline_inputs
from trainprof.analysis.ranks import across_ranks, common_evidence, rank_recordings, rank_row
from trainprof.analysis.rebuilt import renumbered
from trainprof.analysis.recording import Recording, read_recording
from trainprof.analysis.step_table import StepTable, step_table
from trainprof.analysis.summary import (
    Device,
    Epoch,
    Exit,
    Ledger,
    Loader,
    Overhead,
    Phases,
    Run,
    RunSummary,
    SyncPoint,
    System,
    Training,
    Transfer,
)
from trainprof.analysis.system import samples_between, system_summary
from trainprof.analysis.system_gpus import GpuContext, energy_of
from trainprof.analysis.system_processes import samples_by_pid, ticks_of
from trainprof.analysis.timeline import Timeline, build_timeline
from trainprof.analysis.torch_settings import torch_settings
from trainprof.analysis.traffic import placements, sync_points, transfers
from trainprof.analysis.training_part import trained_samples, training_of
from trainprof.analysis.training_process import (
    TrainingProcess,
    is_of_loader,
    training_processes,
)
from trainprof.analysis.verdict import Evidence, verdict
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import RECORD_BYTES, Kind

DEFAULT_WAIT_THRESHOLD_S: Final = 0.5
_OLDEST_GENERATION: Final = 2
_LOADERS_MODELLED: Final = 8
DEFAULT_INTERVAL_S: Final = 0.5
# A damaged manifest may hold any number: in ns, and times the batches, it must fit an int64.
LONGEST_THRESHOLD_S: Final = 86_400.0
# Wrapper, two clock reads and the record, in caches that torch's kernels have emptied: what
# benchmarks/overhead.py measured on a step of 8 events, 31 us. An estimate on other machines.
EVENT_COST_US: Final = 3.9
# To put a mark in a device's stream, look at those before it and record them: measured on the
# simulated device of the tests, whose own part is 1.2 us.
MARK_COST_US: Final = 5.3
# From here on the bounds of a device's time at work are said to be far apart.
WIDE_SHARE: Final = 0.25


def summarize(
    directory: RunDirectory,
    *,
    epoch: int | None = None,
    steps: tuple[int, int] | None = None,
    rules: Mapping[str, float] | None = None,
) -> RunSummary:
    """Returns what a run showed, or one training epoch or some steps of it.

    Args:
        directory: The run.
        epoch: 0-based index of a training epoch.
        steps: 0-based, the end excluded.
        rules: Thresholds of findings by name, in place of those of the run.

    Raises:
        NothingThere: If there is no such epoch, or no such steps.
    """
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    if of_ranks:
        placed = [replace(_judged_by(x, rules), directory=directory) for x in of_ranks]
        pairs = [(one, training_processes(one)[0]) for one in placed]
        joined = _joined([(_analysed(*pair, epoch, steps), *pair) for pair in pairs])
        return replace(joined, lines=line_cost([log for one in of_ranks for log in one.logs]))
    recording = _judged_by(read_recording(directory), rules)
    first, *others = training_processes(recording)
    if others and first.rank is not None and others[0].rank is not None:
        ranks = [first, *others]
        return _joined([(_analysed(recording, x, epoch, steps), recording, x) for x in ranks])
    apart = [rank_row(_analysed(recording, x, None, None).summary, x, recording) for x in others]
    return replace(_analysed(recording, first, epoch, steps).summary, trained_apart=apart)


def case_of(directory: RunDirectory) -> Case | None:
    """Returns what the findings of a run rest on, of several ranks of the first.

    None where there is none: lines were timed, or devices waited for.
    """
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    recording = of_ranks[0] if of_ranks else read_recording(directory)
    return _analysed(recording, training_processes(recording)[0], None, None).case


def _judged_by(recording: Recording, rules: Mapping[str, float] | None) -> Recording:
    if rules is None:
        return recording
    options = {**recording.section("options"), "rules": dict(rules)}
    return replace(recording, manifest={**recording.manifest, "options": options})


@dataclass(frozen=True, slots=True)
class _Shown:
    """A training process's summary, what its verdict rests on, and what its findings do."""

    summary: RunSummary
    evidence: Evidence
    case: Case | None


def _joined(ranks: list[tuple[_Shown, Recording, TrainingProcess]]) -> RunSummary:
    rows = [rank_row(shown.summary, process, recording) for shown, recording, process in ranks]
    told = verdict(common_evidence([shown.evidence for shown, _, _ in ranks]))
    joined = across_ranks([shown.summary for shown, _, _ in ranks], rows, told)
    first = ranks[0][1]
    if joined.system is None or any(recording is not first for _, recording, _ in ranks):
        return joined
    # One sampler saw the GPUs of all ranks: their samples are to be counted by it together.
    energy = energy_of(joined.system.gpus, joined.training.samples)
    return replace(joined, system=replace(joined.system, energy=energy))


def _analysed(
    recording: Recording,
    process: TrainingProcess,
    epoch: int | None,
    steps: tuple[int, int] | None,
) -> _Shown:
    start, end = _span(recording, process.events)
    recorded = end if process.stopped_ns is None else min(end, max(start, process.stopped_ns))
    timeline = build_timeline(
        process.events,
        process.facts,
        main_thread=process.main_thread,
        start=start,
        end=recorded,
    )
    if epoch is None and steps is None:
        return _summary(_Analysed(recording, process, timeline, start, end))
    part = narrowed(timeline, epoch, steps)
    whole = _Analysed(recording, process, part, start, end, described(epoch, steps))
    shown = _summary(whole)
    return replace(shown, summary=_counted_as_in_the_run(shown.summary, timeline, part))


def _counted_as_in_the_run(summary: RunSummary, whole: Timeline, part: Timeline) -> RunSummary:
    """Gives the steps and epochs of a part the numbers that they have in the whole run."""
    first_step = int(np.searchsorted(whole.steps.ends, part.window.start, side="right"))
    begins = epoch_starts(whole.passes)
    first_epoch = max(int(np.searchsorted(begins, part.window.start, side="right")) - 1, 0)
    return replace(
        summary,
        outliers=[
            replace(
                outlier,
                step=outlier.step + first_step,
                epoch=None if outlier.epoch is None else outlier.epoch + first_epoch,
            )
            for outlier in summary.outliers
        ],
        epochs=[
            replace(epoch, index=epoch.index + (first_epoch if epoch.stage == TRAINING else 0))
            for epoch in summary.epochs
        ],
    )


@dataclass(frozen=True, slots=True)
class _Analysed:
    """A recording with the timeline of its training process.

    Attributes:
        origin_ns, end_ns: Start and end of the run.
        part: The epoch or the steps that the timeline is narrowed to, in words, or None.
    """

    recording: Recording
    process: TrainingProcess
    timeline: Timeline
    origin_ns: int
    end_ns: int
    part: str | None = None

    @property
    def facts(self) -> Facts:
        return self.process.facts

    def sites(self) -> Sites:
        return self.facts.sites(self.recording.manifest.get("cwd"))

    def wait_threshold_s(self) -> float:
        options = self.recording.section("options")
        told = number(options.get("wait_threshold_s"), DEFAULT_WAIT_THRESHOLD_S)
        return told if 0 <= told <= LONGEST_THRESHOLD_S else DEFAULT_WAIT_THRESHOLD_S


def _summary(run: _Analysed) -> _Shown:
    timeline, recording, facts = run.timeline, run.recording, run.facts
    window, sites = timeline.window, run.sites()
    # First of all: of long runs the fetches and the ledger's tables would not fit side by side.
    loaders, samples, known_of = _loaders(run)
    attribution = attribute(
        timeline.events,
        timeline.nesting,
        timeline.segments,
        has_device=facts.device() is not None,
        graph_classes=facts.graph_classes(),
    )
    meanwhile = _meanwhile(run)
    if meanwhile is not None:
        attribution = replace(attribution, device_waits=meanwhile.waits())
    account = ledger(timeline.events, attribution, window)
    paused = meanwhile.backlog.steps_of(timeline.steps.ends) if meanwhile is not None else None
    steps = step_table(timeline, attribution, facts, paused)
    training = training_of(timeline, steps, samples)
    epochs = epochs_of(
        timeline.passes,
        timeline.all_events,
        origin_ns=run.origin_ns,
        threshold_ns=int(run.wait_threshold_s() * 1e9),
        learning=timeline.learning(),
        step_ends=timeline.steps.ends,
        on_thread=timeline.on_thread,
    )
    system = _system(run, epochs, training.samples)
    device = None
    if meanwhile is not None:
        device = device_of(meanwhile, attribution, steps.steady.mask, facts.device())
    devices = None if device is None else [device]
    copies = transfers(timeline.events, sites, meanwhile)
    syncs = sync_points(timeline.events, sites, meanwhile)
    evidence = _evidence(run, attribution, account, training, loaders, device, copies, syncs)
    found_syncs = found_syncs_of(run.process.details, sites)
    summary = RunSummary(
        run=_run(run, account),
        phases=Phases(
            (window.loop_start - window.start) / 1e9,
            (window.loop_end - window.loop_start) / 1e9,
            (window.end - window.loop_end) / 1e9,
        ),
        ledger=account,
        training=training,
        evaluation=evaluation_of(timeline.passes_here(), timeline.segments),
        epochs=epochs,
        loaders=loaders,
        transfers=copies,
        sync_points=syncs,
        devices=with_memory(
            devices,
            run.process.details,
            timeline,
            attribution,
            kind=str(run.facts.device()).partition(":")[0],
            warmup=training.warmup_excluded,
            is_part=run.part is not None,
        ),
        system=system,
        ranks=[],
        stragglers=[],
        outliers=outliers(
            steps.wall_ns,
            timeline.step_starts,
            steps.per_step,
            candidates=steps.candidates,
            epoch_of=steps.epoch_of,
            origin_ns=run.origin_ns,
            samples_between=lambda start, end: samples_between(
                recording.host_lines, recording.process_lines, start, end
            ),
        ),
        findings=[],
        verdict=verdict(evidence),
        overhead=_overhead(run, steps),
        wait_threshold_s=run.wait_threshold_s(),
        lines=line_cost(run.recording.logs),
        hot_lines=lines_of_training(
            looks_of(run.process.details, timeline.thread),
            timeline.events,
            timeline.nesting,
            attribution,
            window,
            evidence.training,
            LineNames(facts.texts, sites),
        ),
        placements=placements(timeline.events, sites) if facts.device() is not None else [],
        not_observed=_not_observed(run, system, training, devices) | _not_found(run, found_syncs),
        out_of_memory=out_of_memory_of(facts, recording.manifest.get("cwd")),
        found_syncs=found_syncs,
        faults=faults_of(recording, run.origin_ns),
    )
    case = _case(summary, evidence, steps, known_of, run)
    return _Shown(summary if case is None else _with_findings(summary, case), evidence, case)


def _case(
    summary: RunSummary,
    evidence: Evidence,
    steps: StepTable,
    known_of: Callable[[int], LoaderModel | None],
    run: _Analysed,
) -> Case | None:
    """None where lines were timed or devices waited for: that slows parts, and not alike."""
    if evidence.has_timed_lines or evidence.was_synchronized:
        return None
    return build_case(
        summary,
        training_s=evidence.training_s,
        training=evidence.training,
        known_of=known_of,
        checkpoint_site=evidence.checkpoint_site,
        steps=steps,
        settings=rule_settings(run.recording.section("options").get("rules")),
        full_collections=_full_collections(run.timeline),
        torch=torch_settings(run.facts, run.sites()),
    )


def _with_findings(summary: RunSummary, case: Case) -> RunSummary:
    findings = diagnose(case)
    return replace(
        summary,
        findings=findings,
        together=together(case, findings),
        findings_from=least_gain(case),
    )


def _full_collections(timeline: Timeline) -> int:
    events, window = timeline.events, timeline.window
    is_full = events.is_kind(Kind.GC) & (events.value == _OLDEST_GENERATION)
    return int((is_full & (events.start >= window.loop_start)).sum())


def _meanwhile(run: _Analysed) -> Meanwhile | None:
    """What the one device did; None where devices were waited for, or nothing tells."""
    if run.facts.device() is None or _synchronized(run) is not None:
        return None
    return meanwhile_of(run.process.details, run.timeline)


def _run(run: _Analysed, account: Ledger) -> Run:
    recording, device = run.recording, run.facts.device()
    manifest = recording.manifest
    versions = {str(k): str(v) for k, v in recording.section("versions").items()}
    command = manifest.get("command")
    started = recording.section("times").get("started_at")
    return Run(
        name=str(manifest.get("name") or recording.directory.path.name),
        command=[str(word) for word in command] if isinstance(command, list) else [],
        wall_s=account.wall_s if run.part is not None else (run.end_ns - run.origin_ns) / 1e9,
        exit=_exit(recording),
        versions=versions | run.facts.versions(),
        device_timing=_device_timing(run),
        rank=_first_known(integer(manifest.get("rank")), run.process.rank),
        world_size=_first_known(integer(manifest.get("world_size")), run.process.world_size),
        started_at=started if isinstance(started, str) else None,
        directory=_shown_directory(recording),
        part=run.part,
        device=device or "cpu",
    )


def _device_timing(run: _Analysed) -> str:
    if run.facts.device() is None:
        return "cpu"
    return "synchronized" if _synchronized(run) is not None else "async"


def _synchronized(run: _Analysed) -> tuple[int, float] | None:
    """Returns how often --cuda-sync waited for a device, and for how many seconds."""
    details = run.process.details
    told = details[details["kind"] == Kind.SYNCHRONIZED]
    if len(told) == 0:
        return None
    last = told[int(told["value"].argmax())]
    return int(last["value"]), (int(last["end"]) - int(last["start"])) / 1e9


def _first_known(told: int | None, otherwise: int | None) -> int | None:
    return otherwise if told is None else told


def _exit(recording: Recording) -> Exit:
    pid = recording.manifest.get("script_pid")
    return ending(recording, [x for x in recording.logs if x.pid == pid or x.role == "script"])


def _loaders(
    run: _Analysed,
) -> tuple[list[Loader], int | None, Callable[[int], LoaderModel | None]]:
    """Returns the loaders, how many samples were trained on, and the model of each by its id."""
    timeline, making = run.timeline, _batch_making(run)
    loaders = loaders_of(
        timeline.passes, timeline.on_thread, timeline.all_events, making, run.facts, run.sites()
    )
    # At once, and shortened: the series of a long run are large, and not to be kept.
    costliest = sorted(loaders, key=lambda one: -one.wait_total_s)[:_LOADERS_MODELLED]
    inputs = {one.id: _pipeline_inputs(run, making, one.id) for one in costliest}
    known = {number: shortened(one) for number, one in inputs.items() if one is not None}
    samples = trained_samples(timeline, making.fetches, run.facts)
    known_of = cache(lambda number: model_of(known.get(number)))
    return with_bounds(loaders, known_of), samples, known_of


def _batch_making(run: _Analysed) -> BatchMaking:
    first_of, process = run.timeline.first_of, run.process
    with_workers = {first_of.get(number, number) for number in run.facts.loaders_with_workers()}
    only = with_workers.pop() if len(with_workers) == 1 else 0
    own = _in_window(process.details, run)
    if first_of:
        own, of_loader = own.copy(), is_of_loader(own)
        own["site"][of_loader] = renumbered(own["site"][of_loader], first_of)
    workers = worker_table(own)
    tables, slow = [], []
    if process.logs:
        table = fetch_table(run.timeline.all_events, own, process.pid, 0)
        tables.append(replace(table, loader=renumbered(table.loader, first_of)))
        slow.append(SlowSamples.of_process(own, tables[-1]))
    looks = {
        (process.pid or 0, thread): (looks_of(own, thread), LineNames(run.facts.texts, run.sites()))
        for thread in looked_at(own)
    }
    window = run.timeline.window
    for log in process.workers:
        events = log.events
        if run.part is not None:
            inside = (events.start >= window.start) & (events.start < window.end)
            events = events.where(inside)
        pid = log.pid or 0
        of_worker = _in_window(log.details, run)
        table = fetch_table(events, of_worker, pid, 0)
        known = renumbered(table.loader, first_of)
        told = workers.loader_of(pid, table.start_ns)
        loader = np.where(told > 0, told, np.where(known > 0, known, only))
        tables.append(replace(table, loader=loader))
        slow.append(SlowSamples.of_process(of_worker, tables[-1]))
        for thread in looked_at(of_worker):
            names = line_names(log, run.recording.manifest.get("cwd"))
            looks[pid, thread] = looks_of(of_worker, thread), names
    fetches = FetchTable.joined(tables)
    ticks = ticks_of(run.recording.process_lines)
    in_workers = fetches.pid[fetches.worker > 0]
    asked = integer(run.recording.section("options").get("slow_samples"))
    return BatchMaking(
        fetches=fetches,
        slow=SlowSamples.joined(slow),
        details=own,
        ticks=ticks,
        samples=samples_by_pid(ticks, np.unique(in_workers).tolist()),
        origin_ns=run.origin_ns,
        slow_samples=DEFAULT_SLOW_SAMPLES if asked is None else max(asked, 0),
        looks=looks,
    )


def _pipeline_inputs(run: _Analysed, making: BatchMaking, loader: int) -> PipelineInputs | None:
    """None where lines were timed or devices waited for: parts are slowed, and not alike."""
    host = run.recording.section("host")
    cores = number(host.get("usable_cores"), 0.0) or number(host.get("cores"), 0.0)
    if cores <= 0 or _has_timed_lines(run.recording) or _synchronized(run) is not None:
        return None
    return pipeline_inputs(
        run.timeline,
        making.fetches,
        run.facts,
        loader,
        cores=cores,
        details=making.details,
        ticks=making.ticks,
        pid=run.process.pid,
    )


def _in_window(details: Details, run: _Analysed) -> Details:
    if run.part is None:
        return details
    window, start = run.timeline.window, details["start"]
    is_inside = (start >= window.start) & (start < window.end)
    is_worker = details["kind"] == Kind.WORKER
    found: Details = details[is_inside | is_worker]
    return found


def _system(run: _Analysed, epochs: list[Epoch], samples: int | None) -> System | None:
    recording, window = run.recording, run.timeline.window
    starts_ns = [run.origin_ns + round(epoch.start_s * 1e9) for epoch in epochs]
    lengths_ns = [round(epoch.seconds * 1e9) for epoch in epochs]
    not_sampled = recording.section("not_sampled").get("gpus")
    host = recording.section("host")
    interval = recording.section("options").get("interval_s")
    return system_summary(
        recording.host_lines,
        recording.process_lines,
        recording.gpu_lines,
        start_ns=window.start,
        end_ns=window.end,
        main_pid=integer(recording.manifest.get("script_pid")),
        interval_s=number(interval, DEFAULT_INTERVAL_S),
        usable_cores=number(host.get("usable_cores"), 0.0) or None,
        memory_limit_bytes=integer(host.get("memory_limit_bytes")),
        gpu_context=GpuContext(
            phases=phases_of(
                (window.start, window.end),
                (window.loop_start, window.loop_end),
                run.timeline.segments,
            ),
            epochs_ns=np.stack((starts_ns, np.add(starts_ns, lengths_ns)), axis=1).astype(np.int64),
            samples=samples,
        ),
        gpus_not_observed=not_sampled if isinstance(not_sampled, str) else None,
    )


def _evidence(
    run: _Analysed,
    attribution: Attribution,
    account: Ledger,
    training: Training,
    loaders: list[Loader],
    device: Device | None,
    copies: list[Transfer],
    syncs: list[SyncPoint],
) -> Evidence:
    timeline, window = run.timeline, run.timeline.window
    places = account.other_by_place
    training_s = (window.loop_end - window.loop_start) / 1e9
    evaluating = [x for x in loaders if x.role == EVALUATION]
    longest = max(evaluating, key=lambda x: x.wait_total_s, default=None)
    saves = timeline.events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    return Evidence(
        wall_s=account.wall_s,
        startup_s=account.seconds["startup"],
        training_s=training_s,
        training=loop_seconds(timeline.events, attribution, window),
        has_device=run.facts.device() is not None,
        steps=training,
        loaders=loaders,
        checkpoint_site=_longest_site(timeline.events.where(saves), run.sites()),
        evaluation_site=longest.site if longest is not None else None,
        other_place=max(places, key=lambda name: places[name]) if places else None,
        has_timed_lines=_has_timed_lines(run.recording),
        was_synchronized=_synchronized(run) is not None,
        device=DeviceEvidence.of(device, training_s) if device is not None else None,
        transfer_site=next((one.site for one in copies if one.exposed_s), None),
        sync_site=next((one.site for one in syncs if one.exposed_s), None),
    )


def _has_timed_lines(recording: Recording) -> bool:
    is_asked_for = bool(recording.section("options").get("lines"))
    return is_asked_for or any(map(has_timed_functions, recording.logs))


def _longest_site(events: Events, sites: Sites) -> str | None:
    if len(events) == 0:
        return None
    numbers, which = np.unique(events.site, return_inverse=True)
    totals = np.bincount(which, weights=events.end - events.start)
    name = sites[int(numbers[totals.argmax()])]
    return None if name == UNKNOWN_SITE else name


def _overhead(run: _Analysed, steps: StepTable) -> Overhead:
    records = sum(log.records for log in run.recording.logs)
    waits, waited_s = _synchronized(run) or (None, None)
    known = Overhead(records, records * RECORD_BYTES, None, None, waits, waited_s)
    if len(steps) == 0:
        return known
    window, starts = run.timeline.window, run.timeline.events.start
    in_loop = np.count_nonzero((starts >= window.loop_start) & (starts < window.loop_end))
    marks, put = run.process.details["kind"] == Kind.DEVICE_MARK, run.process.details["start"]
    marks_in_loop = np.count_nonzero(marks & (put >= window.loop_start) & (put < window.loop_end))
    cost_us = float(in_loop) * EVENT_COST_US + float(marks_in_loop) * MARK_COST_US
    per_step_us = cost_us / len(steps)
    mean_us = float(steps.wall_ns.mean()) / 1e3
    share = per_step_us / mean_us if mean_us > 0 else None
    return replace(known, per_step_us=per_step_us, share=share)


def _not_observed(
    run: _Analysed, system: System | None, training: Training, devices: list[Device] | None
) -> dict[str, str]:
    reasons: dict[str, str] = {}
    inside = inner_runs(run.recording.directory) if training.steps == 0 else []
    if inside:
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        reasons["training"] = f"recorded by the trainprof run inside this one: {inside[0]}{more}"
    elif not run.process.logs:
        reasons["training"] = (
            "no event was recorded: the script did not get as far as torch, or used it where "
            "trainprof does not reach (a cleared environment, python -I)"
        )
    elif training.steps == 0:
        reasons["training.step_s"] = "no parameter update and no backward was seen"
    if run.timeline.feeder() is not None and training.samples is None:
        reasons["training.samples"] = "the sampler does not tell how large a batch is"
    if system is None:
        reasons["system"] = "no sample was taken"
    elif run.facts.device() is not None and system.gpus_not_observed is not None:
        reasons["system.gpus"] = system.gpus_not_observed
    timing = _device_timing(run)
    if timing == "async" and not devices:
        reasons["devices"] = _why_no_device_time(run)
    elif timing == "async" and (wide := _why_wide(run, devices or [])) is not None:
        reasons["devices.busy_share"] = wide
    elif timing == "cpu" and run.recording.section("options").get("cuda_sync"):
        reasons["devices"] = "--cuda-sync had nothing to wait for: no accelerator was used"
    return reasons


def _not_found(run: _Analysed, found: FoundSyncs | None) -> dict[str, str]:
    """Returns why nothing is known of devices' memory, or of what --find-syncs looked for."""
    reasons = {"devices.memory": why_no_memory(run.facts)}
    if run.recording.section("options").get("find_syncs"):
        reasons["found_syncs"] = why_none_found(run.facts, found)
    return {field: reason for field, reason in reasons.items() if reason is not None}


def _why_wide(run: _Analysed, devices: list[Device]) -> str | None:
    """Returns why the bounds of a device's time at work are far apart, None where they are not."""
    wide = [x for x in devices if x.busy_share and x.busy_share[1] - x.busy_share[0] > WIDE_SHARE]
    if not wide:
        return None
    told = why_no_looks(run.facts, run.recording.section("options"), wide[0].looks)
    return f"known within wide bounds only: {told}"


def _why_no_device_time(run: _Analysed) -> str:
    if several_devices(run.process.details, run.timeline):
        return "several were used: how far each was at work is not told apart"
    if run.facts.launch_blocking():
        return (
            "CUDA_LAUNCH_BLOCKING=1: each call waits for the device, so phases hold its time as "
            "with --cuda-sync"
        )
    return "device time is not measured: host time alone; --cuda-sync measures it"


def _shown_directory(recording: Recording) -> str:
    """Returns the run directory as one would type it where the run was started."""
    path, cwd = str(recording.directory.path), recording.manifest.get("cwd")
    if isinstance(cwd, str) and path.startswith(cwd.rstrip(os.sep) + os.sep):
        return os.path.relpath(path, cwd)
    return path


def _span(recording: Recording, events: Events) -> tuple[int, int]:
    """Start and end of the run: as its parent saw them, else as far as anything was recorded."""
    times = recording.section("times")
    start, end = integer(times.get("spawned_ns")), integer(times.get("ended_ns"))
    own = [int(events.start[0]), int(events.end.max())] if len(events) else []
    seen = list(own)
    for log in recording.logs:
        seen += [t for kind, _, *pair, _ in log.marks if kind != Kind.CLOCK for t in pair if t]
    for lines in (recording.host_lines, recording.process_lines):
        if lines:
            seen += [int(lines[0]["t_ns"]), int(lines[-1]["t_ns"])]
    if start is None:
        start = min(seen, default=0)
    if end is None:
        end = max(seen, default=start)
    # A process that outlives the one that was started (a daemon) belongs to the run all the same.
    return min([start, *own]), max([start, end, *own])
