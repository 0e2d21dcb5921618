"""What one training process recorded, in numbers: findings and verdict are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Any

import numpy as np

from trainprof.analysis.device.device_part import DevicePart, device_part, overlap_of
from trainprof.analysis.distributed.collectives import (
    COMMUNICATION,
    Collectives,
    RankSteps,
    collectives_of,
    python_ns,
)
from trainprof.analysis.lines.times import line_cost
from trainprof.analysis.loading.loader_summary import LoaderPart, loader_part
from trainprof.analysis.machine.machine_part import growth_part, system_part
from trainprof.analysis.model.compilations import compiling_in_training
from trainprof.analysis.model.model_part import ModelPart, model_part
from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.pipeline.fit import LoaderModel
from trainprof.analysis.pipeline.recorded_epoch import free_data
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.evidence import Evidence, evidence_of
from trainprof.analysis.run.metadata import Notes
from trainprof.analysis.run.missing import faults_of, not_found, not_observed
from trainprof.analysis.run.run_part import overhead_part, run_part, training_of
from trainprof.analysis.stacks.hot_lines import WorkerFetches
from trainprof.analysis.stacks.stacks_part import StacksPart, stacks_part
from trainprof.analysis.summary.run import UNJUDGED, Phases, System, Training
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.step_table import StepTable, shares_of_steps
from trainprof.analysis.timeline.timeline_part import TimelinePart, timeline_part


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """A training process in numbers.

    Attributes:
        summary: Without findings and verdict.
        evidence: What its verdict rests on.
        model_of: Returns the pipeline model of a loader, by its id.
        steps: Of the training phase.
        steps_shares: Of training's steps, by their time, those that a loader feeds, by its id.
        torch: How it was set.
        backwards: Runs of the autograd engine in training.
        full_collections: How often the garbage collector walked all objects in training.
        clips_gradients: By torch.nn.utils, which takes no sparse ones.
        notes: Of probes that have a rule of their own.
        rules: Thresholds that the user has set, as the manifest has them.
        rank_steps: For comparing them with those of other ranks; None where a device computes.
        first_step: Of a part of a run: how many steps came before it.
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
    model: ModelPart
    stacks: StacksPart
    collectives: Collectives


def numbers_of(run: Analysed) -> ProcessNumbers:
    """Returns what a training process recorded, in numbers."""
    timeline, details = run.timeline, run.process.details
    # First of all: of long runs the fetches and the ledger's tables would not fit side by side.
    loading = loader_part(run)
    overlap = overlap_of(run)
    time = timeline_part(run, None if overlap is None else overlap.waits())
    steps = time.steps
    collectives = collectives_of(details, timeline, time.attribution, run.sites())
    training = training_of(
        timeline, steps, loading.samples, run.metadata, free_data(timeline, details)
    )
    system = system_part(run, training.samples)
    compiling = compiling_in_training(details, timeline)
    device = device_part(run, time, overlap, system, compiling)
    model = model_part(run, time, overlap, compiling)
    stacks = stacks_part(
        run,
        time,
        model,
        collectives,
        compiling,
        step_s=training.per_step_s or {},
        fetches=_worker_fetches(loading, training),
    )
    evidence = evidence_of(
        run,
        time,
        training,
        loading.in_loop,
        device,
        stacks,
        collectives.by_line,
        compiling.total_ns() / 1e9,
    )
    parts = _Parts(loading, time, training, system, device, model, stacks, collectives)
    summary = _summary(run, parts)
    return ProcessNumbers(
        summary=summary,
        evidence=evidence,
        model_of=loading.known_of,
        steps=steps,
        steps_shares=shares_of_steps(timeline, steps),
        torch=model.torch,
        backwards=time.backwards,
        full_collections=time.full_collections,
        clips_gradients=time.clips_gradients,
        notes=Notes(run.metadata.environment(), run.sites()),
        rules=run.recording.section("options").get("rules"),
        rank_steps=_rank_steps(run, time, collectives, summary.run.rank),
    )


def _summary(run: Analysed, parts: _Parts) -> RunSummary:
    window, time, device, stacks = run.timeline.window, parts.time, parts.device, parts.stacks
    loss = stacks.loss_by_place
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
        loss_in_loop_s=None if loss is None else fsum(loss.values()),
        loss_by_place=loss or {},
        once_in_loop_s=stacks.once_s,
        beside_share=stacks.beside_share,
        placements=device.placements,
        not_observed=not_observed(run, parts.system, parts.training, device.timed)
        | not_found(run, device.found_syncs),
        out_of_memory=device.out_of_memory,
        found_syncs=device.found_syncs,
        compilations=parts.model.compilations,
        emptied_caches=device.emptied_caches,
        collectives=parts.collectives.by_line,
        memory_growth=growth_part(run, parts.training.warmup_excluded, parts.system),
        torch_threads=parts.model.torch.threads,
        numerics=parts.model.torch.numerics,
        faults=faults_of(run.recording, run.origin_ns),
    )


def _worker_fetches(part: LoaderPart, training: Training) -> list[WorkerFetches]:
    """Returns what the workers of the loaders that feed training were seen at."""
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
