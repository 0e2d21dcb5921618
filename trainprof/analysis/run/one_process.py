"""Turns what one training process recorded into its summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, Final

import numpy as np

from trainprof.analysis.device.activity import Overlap
from trainprof.analysis.device.devices import device_of, device_overlap
from trainprof.analysis.device.host_waits import (
    emptied_caches,
    found_syncs_of,
    held_back,
    placements,
    sync_points,
    transfers,
)
from trainprof.analysis.device.kernel_share import kernel_share
from trainprof.analysis.device.memory import out_of_memory_of, with_memory
from trainprof.analysis.distributed.collectives import (
    COMMUNICATION,
    Collectives,
    RankSteps,
    collectives_of,
    python_ns,
)
from trainprof.analysis.lines.times import line_cost
from trainprof.analysis.loading.loader_steps import shares_of_steps
from trainprof.analysis.loading.loader_summary import LoaderPart, loader_part
from trainprof.analysis.machine.processes import memory_growth, room_of, ticks_of
from trainprof.analysis.machine.system import samples_between, system_summary
from trainprof.analysis.model.compilations import compilations_of, compiling_in_training
from trainprof.analysis.model.torch_settings import TorchSettings, torch_settings
from trainprof.analysis.pipeline.fit import LoaderModel
from trainprof.analysis.pipeline.recorded_epoch import free_data
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.evidence import evidence_of, rule_settings_of
from trainprof.analysis.run.faults import faults_of
from trainprof.analysis.run.metadata import Notes, integer, number
from trainprof.analysis.run.run_part import overhead_part, run_part, training_of
from trainprof.analysis.run.unobserved import not_found, not_observed
from trainprof.analysis.stacks.hot_lines import (
    WorkerFetches,
    hottest,
    hottest_lines,
    lines_of_training,
)
from trainprof.analysis.stacks.loop_code import python_once, torch_in_loop
from trainprof.analysis.stacks.python_in_model import element_reads, python_in_model
from trainprof.analysis.stacks.samples import (
    LineNames,
    PartsOfLoop,
    concurrent_share,
    thread_samples,
)
from trainprof.analysis.summary.device import MemoryGrowth
from trainprof.analysis.summary.run import Phases, System, Training
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.epochs import epochs_of, evaluation_of
from trainprof.analysis.timeline.iterations import TRAINING, epoch_starts
from trainprof.analysis.timeline.ledger import attribute, ledger, update_seconds, within
from trainprof.analysis.timeline.steady_state import outliers
from trainprof.analysis.timeline.step_table import StepTable, step_table
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.analysis.verdict.headline import Evidence, verdict
from trainprof.findings.combined_speedup import together
from trainprof.findings.context_builder import build_case
from trainprof.findings.diagnose import diagnose
from trainprof.findings.loop import python_in_loop, slow_validation
from trainprof.findings.ranking import least_gain
from trainprof.findings.run_context import NAMED_FROM_SHARE, Case
from trainprof.record.schema import Kind

_OLDEST_GENERATION: Final = 2
DEFAULT_INTERVAL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Shown:
    """A training process's summary, what its verdict rests on, and what its findings do.

    Attributes:
        steps: For comparing them with those of other ranks; None where a device computes.
    """

    summary: RunSummary
    evidence: Evidence
    case: Case | None
    steps: RankSteps | None = None


def summary_of(run: Analysed) -> Shown:
    timeline, recording, metadata = run.timeline, run.recording, run.metadata
    window, sites = timeline.window, run.sites()
    # First of all: of long runs the fetches and the ledger's tables would not fit side by side.
    part = loader_part(run)
    loaders = part.loaders
    attribution = attribute(
        timeline.events,
        timeline.nesting,
        timeline.segments,
        has_device=metadata.device() is not None,
        graph_classes=metadata.graph_classes(),
    )
    overlap = _overlap(run)
    if overlap is not None:
        attribution = replace(attribution, device_waits=overlap.waits())
    account = ledger(timeline.events, attribution, window)
    steps = step_table(timeline, attribution, metadata)
    collectives = collectives_of(run.process.details, timeline, attribution, sites)
    free = free_data(timeline, run.process.details)
    training = training_of(timeline, steps, part.samples, metadata, free)
    epochs = epochs_of(
        timeline, origin_ns=run.origin_ns, threshold_ns=int(run.wait_threshold_s() * 1e9)
    )
    system = _system(run, training.samples)
    compiling = compiling_in_training(run.process.details, timeline)
    device = None
    settled = (max(_settled_ns(timeline, steps), window.loop_start), window.loop_end)
    if overlap is not None:
        gpus = system.gpus if system is not None else []
        activity = overlap.activity
        driver = kernel_share(recording.gpu_lines, gpus, activity.index, settled, activity.first_ns)
        device = device_of(overlap, attribution, steps.steady, metadata.device(), compiling, driver)
    devices = None if device is None else [device]
    copies = transfers(timeline.events, sites, overlap)
    syncs = sync_points(
        timeline.events,
        sites,
        overlap,
        {k: (ns - run.origin_ns) / 1e9 for k, ns in metadata.reads_counted_until().items()},
        None if overlap is None else held_back(overlap, run.process.details, settled[0]),
    )
    evidence = evidence_of(run, attribution, account, training, part.in_loop, device, copies, syncs)
    evidence = replace(evidence, collectives=collectives.by_line)
    stack_samples, names = (
        thread_samples(run.process.details, timeline.thread),
        LineNames(metadata.texts, sites),
    )
    parts = PartsOfLoop(timeline.events, timeline.nesting, attribution, window)
    own_ns = python_ns(steps.per_step, collectives)
    once = python_once(parts, compiling, own_ns, timeline.steps.ends, steps.steady.warmup)
    lasting = evidence.training | {"other": max(evidence.training["other"] - once.seconds, 0.0)}
    lines = lines_of_training(
        stack_samples, parts, lasting, names, steps=len(steps), once=once.spans
    )
    until = metadata.reads_counted_until()
    by_torch = torch_in_loop(stack_samples, parts, evidence.training, names, lines, until)
    part_lines, loss = by_torch.lines, by_torch.loss_by_place
    loss_s = min(fsum((loss or {}).values()), lasting["other"])
    rest = python_in_loop.places_of_rest(account.other_by_place, loss or {}, loss_s)
    most = max(rest, key=lambda name: rest[name], default=None)
    evidence = replace(evidence, loss_in_loop_s=loss_s, other_place=most)
    line = hottest(part_lines, "other")
    if line is not None and line.share >= NAMED_FROM_SHARE and python_in_loop.is_waiting(line):
        evidence = replace(evidence, waits_at=line.site)
    if evidence.evaluation_site is None:
        evidence = replace(evidence, evaluation_call=slow_validation.called_for_at(part_lines))
    found_syncs = found_syncs_of(run.process.details, sites)
    worked = overlap.least if overlap is not None else None
    compilations = compilations_of(run.process.details, timeline, sites, worked)
    evidence = replace(evidence, compiling_s=compiling.total_ns() / 1e9)
    updates_s = update_seconds(timeline.events, timeline.nesting, attribution, window, compiling)
    torch = torch_settings(metadata, sites, updates_s)
    settled_ns = _settled_ns(timeline, steps)
    in_model = reads = None
    if not (compilations or torch.detects_anomalies):
        in_model = python_in_model(
            stack_samples, parts, evidence.training, names, settled_ns=settled_ns
        )
        evidence = replace(evidence, python_in_model=in_model)
    if not compilations:
        reads = element_reads(parts, evidence.training, sites, until, settled_ns=settled_ns)
    slow = outliers(
        steps.wall_ns,
        timeline.step_starts,
        steps.per_step,
        candidates=steps.candidates,
        epoch_of=steps.epoch_of,
        origin_ns=run.origin_ns,
        samples_between=lambda start, end: samples_between(
            recording.host_lines, recording.process_lines, start, end
        ),
    )
    summary = RunSummary(
        run=run_part(run, account),
        phases=Phases(
            (window.loop_start - window.start) / 1e9,
            (window.loop_end - window.loop_start) / 1e9,
            (window.end - window.loop_end) / 1e9,
        ),
        ledger=account,
        training=training,
        evaluation=evaluation_of(timeline),
        epochs=epochs,
        loaders=loaders,
        transfers=copies,
        sync_points=syncs,
        devices=with_memory(
            devices,
            run.process.details,
            timeline,
            kind=str(run.metadata.device()).partition(":")[0],
            warmup=training.warmup_excluded,
            is_part=run.part is not None,
        ),
        system=system,
        ranks=[],
        stragglers=[],
        outliers=slow.longest,
        outlier_count=slow.count,
        findings=[],
        verdict=verdict(evidence),
        overhead=overhead_part(run, steps),
        wait_threshold_s=run.wait_threshold_s(),
        lines=line_cost(run.recording.logs),
        hot_lines=hottest_lines(
            stack_samples,
            parts,
            training.per_step_s or {},
            names,
            _worker_fetches(part, training),
            settled_ns=settled_ns,
        ),
        part_lines=part_lines,
        python_in_model=in_model,
        element_reads=reads,
        loss_in_loop_s=None if loss is None else fsum(loss.values()),
        loss_by_place=loss or {},
        once_in_loop_s=once.seconds,
        beside_share=concurrent_share(stack_samples, parts),
        placements=placements(timeline.events, sites) if metadata.device() is not None else [],
        not_observed=not_observed(run, system, training, devices) | not_found(run, found_syncs),
        out_of_memory=out_of_memory_of(metadata, recording.manifest.get("cwd")),
        found_syncs=found_syncs,
        compilations=compilations,
        emptied_caches=[]
        if overlap is None
        else emptied_caches(run.process.details, timeline, attribution, sites, overlap.most),
        collectives=collectives.by_line,
        memory_growth=_memory_growth(run, training, system),
        torch_threads=torch.threads,
        numerics=torch.numerics,
        faults=faults_of(recording, run.origin_ns),
    )
    case = _case(summary, evidence, steps, part.known_of, run, torch)
    shown = summary if case is None else _with_findings(summary, case)
    return Shown(shown, evidence, case, _rank_steps(run, steps, collectives, shown.run.rank))


def _worker_fetches(part: LoaderPart, training: Training) -> list[WorkerFetches]:
    """Returns what the workers of the loaders that feed training were seen at."""
    found = []
    for loader in part.in_loop:
        fetch, workers = loader.fetch, loader.num_workers
        if loader.role != TRAINING or not workers or fetch is None or fetch.wall_s is None:
            continue
        whole_s = workers * (training.without_evaluation_s or 0.0)
        busy = min(fetch.n * fetch.wall_s.mean / whole_s, 1.0) if whole_s > 0 else 0.0
        found.append(WorkerFetches(part.making_of[loader.id], busy))
    return found


def _settled_ns(timeline: Timeline, steps: StepTable) -> int:
    """Returns when warm-up was over; the first step is always part of it."""
    last = min(max(steps.steady.warmup, 1), len(steps)) - 1
    return int(timeline.steps.ends[last]) if last >= 0 else timeline.window.start


def _rank_steps(
    run: Analysed, steps: StepTable, collectives: Collectives, rank: int | None
) -> RankSteps | None:
    if run.metadata.device() is not None:
        return None
    evaluated = run.timeline.steps.ends - run.timeline.step_starts - steps.wall_ns
    return RankSteps(
        rank=rank or 0,
        spent={
            **steps.per_step,
            "evaluation": evaluated,
            "checkpoint": np.maximum(steps.per_step["checkpoint"] - collectives.in_checkpoints, 0),
            "other": python_ns(steps.per_step, collectives),
            COMMUNICATION: collectives.per_step + collectives.in_checkpoints,
        },
    )


def _case(
    summary: RunSummary,
    evidence: Evidence,
    steps: StepTable,
    known_of: Callable[[int], LoaderModel | None],
    run: Analysed,
    torch: TorchSettings,
) -> Case | None:
    """None where lines were timed or devices waited for: that slows parts, and not alike."""
    if evidence.has_timed_lines or evidence.was_synchronized:
        return None
    return build_case(
        summary,
        training_s=evidence.training_s,
        training=evidence.training,
        loaders=evidence.loaders,
        known_of=known_of,
        checkpoints=evidence.checkpoints,
        steps=steps,
        settings=rule_settings_of(run),
        full_collections=_full_collections(run.timeline),
        clips_gradients=bool(run.timeline.events.is_kind(Kind.CLIP_GRADIENTS).any()),
        backwards=_backwards(run.timeline),
        torch=torch,
        notes=Notes(run.metadata.environment(), run.sites()),
        steps_shares=shares_of_steps(run.timeline, steps),
    )


def _with_findings(summary: RunSummary, case: Case) -> RunSummary:
    faults = list(summary.faults)

    def failed(rule: str, error: Exception) -> None:
        faults.append(f"the rule {rule} failed: {type(error).__name__}: {error}")

    diagnosis = diagnose(case, failed=failed)
    return replace(
        summary,
        findings=diagnosis.findings,
        passed_over=diagnosis.passed_over,
        faults=faults,
        together=together(case, diagnosis.findings),
        findings_from=least_gain(case.noise),
    )


def _backwards(timeline: Timeline) -> int:
    """Counts runs of the autograd engine, a closure's too; one inside another is part of it."""
    events, parent = timeline.events, timeline.nesting.parent
    is_run = events.is_kind(Kind.BACKWARD)
    is_inside = (parent >= 0) & is_run[np.maximum(parent, 0)]
    begun = events.start >= timeline.window.loop_start
    counted = is_run & ~is_inside & begun & ~within(timeline.segments, events.start)
    return int(counted.sum())


def _full_collections(timeline: Timeline) -> int:
    events, window = timeline.events, timeline.window
    is_full = events.is_kind(Kind.GC) & (events.value == _OLDEST_GENERATION)
    return int((is_full & (events.start >= window.loop_start)).sum())


def _overlap(run: Analysed) -> Overlap | None:
    """What the one device did; None where devices were waited for, or nothing tells."""
    if run.metadata.device() is None or run.synchronized() is not None:
        return None
    return device_overlap(run.process.details, run.timeline)


def _system(run: Analysed, samples: int | None) -> System | None:
    recording, window = run.recording, run.timeline.window
    not_sampled = recording.section("not_sampled").get("gpus")
    host, cores = run.host, run.host.cores
    interval = recording.section("options").get("interval_s")
    system = system_summary(
        recording.host_lines,
        recording.process_lines,
        recording.gpu_lines,
        start_ns=window.start,
        end_ns=window.end,
        main_pid=integer(recording.manifest.get("script_pid")),
        interval_s=number(interval, DEFAULT_INTERVAL_S),
        usable_cores=cores.usable,
        physical_cores=cores.physical,
        core_numbers=cores.numbers,
        memory_limit_bytes=integer(recording.section("host").get("memory_limit_bytes")),
        trained_samples=samples,
        gpus_not_observed=not_sampled if isinstance(not_sampled, str) else None,
    )
    if system is None:
        return None
    beside: dict[str, Any] = {}
    if host.recorded_on != cores.numbers:
        beside["recorded_on"] = list(host.recorded_on)
    if host.ranks > 1:
        beside["ranks"] = host.ranks
    if host.others_percent != 0:
        beside["other_ranks_percent"] = host.others_percent
    return replace(system, cpu=system.cpu | beside) if beside else system


def _memory_growth(run: Analysed, training: Training, system: System | None) -> MemoryGrowth | None:
    if system is None:
        return None
    return memory_growth(
        ticks_of(run.recording.process_lines),
        run.process.pid,
        run.timeline.steps.ends,
        training.warmup_excluded,
        room_of(system.memory, system.last_sample),
        epoch_starts(run.timeline.loaders),
    )
