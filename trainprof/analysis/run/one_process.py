"""One training process in numbers, which findings and verdict rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainprof.analysis.device.devices import DevicePart, device_part, overlap_of
from trainprof.analysis.device.host_waits import costliest_in_training, idle_during_s
from trainprof.analysis.distributed.collectives import (
    COMMUNICATION,
    Collectives,
    RankSteps,
    collectives_of,
    python_ns,
)
from trainprof.analysis.lines.times import line_cost
from trainprof.analysis.loading.loaders import LoaderPart, loader_part
from trainprof.analysis.machine.processes import (
    copied_by_workers,
    memory_growth,
    room_of,
    ticks_of,
)
from trainprof.analysis.machine.system import system_of
from trainprof.analysis.model.compilations import compilations_of, compiling_in_training
from trainprof.analysis.model.torch_settings import TorchSettings, torch_settings
from trainprof.analysis.pipeline.fit import LoaderModel
from trainprof.analysis.pipeline.recorded_epoch import free_data
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.evidence import (
    NAMED_FROM_SHARE,
    DeviceEvidence,
    Evidence,
    called_for_at,
    is_over_loaders,
    is_waiting,
)
from trainprof.analysis.run.metadata import Notes
from trainprof.analysis.run.recording import faults_of
from trainprof.analysis.run.run_part import (
    not_observed,
    overhead_part,
    run_part,
    training_of,
)
from trainprof.analysis.stacks.hot_lines import WorkerFetches
from trainprof.analysis.stacks.loop_code import StacksPart, stacks_part
from trainprof.analysis.stacks.loss_in_loop import sampled_loop
from trainprof.analysis.stacks.outside_loop import startup_and_shutdown
from trainprof.analysis.summary.code import Compilation, OutsideLoop, hottest
from trainprof.analysis.summary.device import CopiedPages, MemoryGrowth, SyncPoint, Transfer
from trainprof.analysis.summary.levels import MANY_STEPS
from trainprof.analysis.summary.loader import Loader, cost_s
from trainprof.analysis.summary.run import UNJUDGED, Phases, System, Training
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.iterations import TRAINING, epoch_starts
from trainprof.analysis.timeline.ledger import update_calls, update_seconds
from trainprof.analysis.timeline.step_table import StepTable, attributed, shares_of_steps
from trainprof.analysis.timeline.timeline_part import TimelinePart, timeline_part


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """A training process in numbers.

    Attributes:
        summary: Without findings and verdict.
        evidence: What its verdict rests on.
        model_of: Returns the pipeline model of a loader, by its id.
        steps_shares: By loader id, the share of the steps' time that it feeds.
        backwards: Runs of the autograd engine in training.
        clips_gradients: By torch.nn.utils, which does not support sparse ones.
        rules: Thresholds from the manifest, as the user set them.
        rank_steps: For comparison with other ranks; None on a GPU.
        first_step: Number of steps before this part of a run.
    """

    summary: RunSummary
    evidence: Evidence
    model_of: Callable[[int], LoaderModel | None]
    steps: StepTable
    steps_shares: Mapping[int, float] = field(default_factory=dict)
    torch: TorchSettings = field(default_factory=TorchSettings)
    backwards: int = 0
    full_collections: int = 0
    clips_gradients: bool = False
    notes: Notes = field(default_factory=Notes)
    rules: Any = None
    rank_steps: RankSteps | None = None
    first_step: int = 0


@dataclass(frozen=True, slots=True)
class _Parts:
    loading: LoaderPart
    time: TimelinePart
    training: Training
    system: System | None
    device: DevicePart
    compilations: list[Compilation]
    torch: TorchSettings
    stacks: StacksPart
    collectives: Collectives
    startup: OutsideLoop | None
    shutdown: OutsideLoop | None


def numbers_of(run: Analysed) -> ProcessNumbers:
    """Returns a training process in numbers."""
    timeline, details = run.timeline, run.process.details
    # First: fetches and the ledger's tables of a long run would not fit in memory together.
    loading = loader_part(run)
    overlap = overlap_of(run)
    waits = None if overlap is None else overlap.waits()
    loop = sampled_loop(run, attributed(timeline, run.metadata, waits))
    time = timeline_part(run, loop.parts.attribution)
    steps = time.steps
    collectives = collectives_of(details, timeline, time.attribution, run.sites())
    training = training_of(timeline, steps, loading.samples, free_data(timeline, details))
    span = timeline.window.start, timeline.window.end
    system = system_of(run.recording, run.host, span, training.samples)
    compiling = compiling_in_training(timeline)
    device = device_part(run, time, overlap, system, compiling)
    worked = None if overlap is None else overlap.least
    compilations = compilations_of(timeline, run.sites(), worked)
    updates_s = update_seconds(timeline.events, timeline.nesting, time.attribution, timeline.window)
    calls = update_calls(timeline.events, timeline.nesting, timeline.window)
    torch = torch_settings(run.metadata, run.sites(), updates_s, calls)
    stacks = stacks_part(
        run,
        time,
        loop,
        collectives,
        is_compiled=bool(compilations),
        detects_anomalies=torch.detects_anomalies,
        step_s=training.per_step_s or {},
        fetches=_worker_fetches(loading, training),
    )
    parts = _Parts(
        *(loading, time, training, system, device, compilations, torch, stacks, collectives),
        *startup_and_shutdown(run, time.attribution),
    )
    summary = _summary(run, parts)
    return ProcessNumbers(
        summary=summary,
        evidence=_evidence(run, parts),
        model_of=loading.known_of,
        steps=steps,
        steps_shares=shares_of_steps(timeline, steps),
        torch=torch,
        backwards=time.backwards,
        full_collections=time.full_collections,
        clips_gradients=time.clips_gradients,
        notes=Notes(run.metadata.environment(), run.sites()),
        rules=run.recording.section("options").get("rules"),
        rank_steps=_rank_steps(run, time, collectives, summary.run.rank),
    )


def _summary(run: Analysed, parts: _Parts) -> RunSummary:
    window, time, device, stacks = run.timeline.window, parts.time, parts.device, parts.stacks
    loss = time.attribution.loss
    return RunSummary(
        run=run_part(run, time.account),
        phases=Phases(
            (window.loop_start - window.start) / 1e9,
            (window.loop_end - window.loop_start) / 1e9,
            (window.end - window.loop_end) / 1e9,
        ),
        ledger=time.account,
        training=parts.training,
        evaluation=time.evaluation,
        epochs=time.epochs,
        loaders=parts.loading.loaders,
        transfers=device.transfers,
        sync_points=device.sync_points,
        devices=device.devices,
        system=parts.system,
        ranks=[],
        stragglers=[],
        outliers=time.outliers.longest,
        outlier_count=time.outliers.count,
        findings=[],
        verdict=UNJUDGED,
        overhead=overhead_part(run, time.steps),
        wait_threshold_s=run.wait_threshold_s(),
        lines=line_cost(run.recording.logs),
        hot_lines=stacks.hot_lines,
        part_lines=stacks.part_lines,
        python_in_model=stacks.python_in_model,
        element_reads=stacks.element_reads,
        loss_in_loop_s=None if loss is None else loss.seconds,
        loss_by_place={} if loss is None else loss.by_place(),
        once_in_loop_s=stacks.once_s,
        startup=parts.startup,
        shutdown=parts.shutdown,
        beside_share=stacks.beside_share,
        placements=device.placements,
        not_observed=not_observed(
            run, parts.system, parts.training, device.timed, device.found_syncs
        ),
        out_of_memory=device.out_of_memory,
        found_syncs=device.found_syncs,
        optimizers=parts.torch.used,
        compilations=parts.compilations,
        emptied_caches=device.emptied_caches,
        collectives=parts.collectives.by_line,
        memory_growth=_growth(run, parts.training.warmup_excluded, parts.system),
        copied_pages=_copied_pages(run, parts.loading.loaders),
        torch_threads=parts.torch.threads,
        numerics=parts.torch.numerics,
        faults=faults_of(run.recording, run.origin_ns),
    )


def _evidence(run: Analysed, parts: _Parts) -> Evidence:
    window, time, device, stacks = run.timeline.window, parts.time, parts.device, parts.stacks
    spent_s, loaders, training = time.spent_s, parts.loading.in_loop, parts.training
    training_s = (window.loop_end - window.loop_start) / 1e9
    longest = _evaluated_loader(loaders, spent_s["evaluation"], training)
    rest, loss = time.account.other_by_place, time.attribution.loss
    line = hottest(stacks.part_lines, "other")
    loss_line = hottest(stacks.part_lines, "loss")
    is_wait = line is not None and line.share >= NAMED_FROM_SHARE and is_waiting(line)
    return Evidence(
        wall_s=time.account.wall_s,
        startup_s=time.account.seconds["startup"],
        startup=parts.startup,
        training_s=training_s,
        training=spent_s,
        has_device=run.metadata.device() is not None,
        steps=training,
        loaders=loaders,
        checkpoints=time.checkpoints,
        evaluation_site=None if longest is None else longest.site,
        evaluation_call=called_for_at(stacks.part_lines) if longest is None else longest.called_at,
        evaluation_wait_share=0.0 if longest is None else _waited_share(longest),
        other_place=max(rest, key=lambda name: rest[name], default=None),
        has_timed_lines=run.has_timed_lines(),
        was_synchronized=run.synchronized() is not None,
        device=None if device.timed is None else DeviceEvidence.of(device.timed, training_s),
        transfer_site=_costliest_site(device.transfers),
        sync_site=_costliest_site(device.sync_points),
        collectives=parts.collectives.by_line,
        waits_at=line.site if line is not None and is_wait else None,
        python_in_model=stacks.python_in_model,
        loss_in_loop_s=0.0 if loss is None else loss.seconds,
        loss_at=None if loss_line is None else loss_line.site,
        few_steps=time.steps if training.steady_steps < MANY_STEPS else None,
    )


def _evaluated_loader(loaders: list[Loader], spent_s: float, training: Training) -> Loader | None:
    """Returns evaluation's main loader; None where most of it uses none."""
    # With inference alone, its loader is all there is to name.
    if training.steps and not is_over_loaders(loaders, spent_s):
        return None
    evaluating = [loader for loader in loaders if loader.evaluation_s > 0]
    return max(evaluating, key=lambda loader: loader.evaluation_s, default=None)


def _waited_share(loader: Loader) -> float:
    waited_s = loader.evaluation_wait_s if loader.role == TRAINING else cost_s(loader)
    return waited_s / loader.evaluation_s


def _costliest_site(rows: Sequence[Transfer | SyncPoint]) -> str | None:
    """Returns the line that cost training most, None where the GPU did not wait."""
    costliest, _ = costliest_in_training(rows)
    return costliest.site if costliest is not None and idle_during_s(costliest) > 0 else None


def _copied_pages(run: Analysed, loaders: list[Loader]) -> CopiedPages | None:
    with_workers = [loader for loader in loaders if loader.num_workers]
    if not with_workers:
        return None
    return copied_by_workers(ticks_of(run.recording.process_lines), run.process.pid, with_workers)


def _growth(run: Analysed, warmup: int, system: System | None) -> MemoryGrowth | None:
    if system is None:
        return None
    return memory_growth(
        ticks_of(run.recording.process_lines),
        run.process.pid,
        run.timeline.steps.ends,
        warmup,
        room_of(system.memory, system.last_sample),
        epoch_starts(run.timeline.loaders),
    )


def _worker_fetches(part: LoaderPart, training: Training) -> list[WorkerFetches]:
    """Returns what the workers of training's loaders were sampled at."""
    seen = []
    for loader in part.in_loop:
        fetch, workers = loader.fetch, loader.num_workers
        if loader.role != TRAINING or not workers or fetch is None or fetch.wall_s is None:
            continue
        whole_s = workers * (training.without_evaluation_s or 0.0)
        busy = min(fetch.n * fetch.wall_s.mean / whole_s, 1.0) if whole_s > 0 else 0.0
        seen.append(WorkerFetches(part.making_of[loader.id], busy))
    return seen


def _rank_steps(
    run: Analysed, time: TimelinePart, collectives: Collectives, rank: int | None
) -> RankSteps | None:
    if run.metadata.device() is not None:
        return None
    steps = time.steps
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
