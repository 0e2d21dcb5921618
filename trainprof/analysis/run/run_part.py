"""A summary's run, training and overhead: how it ran, how fast, and what recording cost."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.loading.loaders import samples_of
from trainprof.analysis.pipeline.recorded_epoch import FreeData
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.ending import ending_of_run
from trainprof.analysis.run.metadata import Metadata, integer
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.summary.distribution import statistics_s
from trainprof.analysis.summary.run import Exit, Ledger, Overhead, Run, Training
from trainprof.analysis.timeline.events import Bool
from trainprof.analysis.timeline.iterations import (
    LoaderIterations,
    epoch_starts,
    feeding_iterations,
)
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.timeline.step_table import StepTable, are_all_fed
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import RECORD_BYTES, Kind

# Wrapper, two clock reads and the record, in caches that torch's kernels have emptied: what
# benchmarks/step_cost.py measured on a step of 8 events, 19 us, where the clock is slow 27. An
# estimate on other machines.
EVENT_COST_US: Final = 3.0
# A value read from a tensor on the host, when others were read just before: what hook_cost.py
# measures of `item`, 0.75 us, where the clock is slow 1.2.
REPEATED_READ_COST_US: Final = 1.0
# To put a mark in a device's stream, look at those before it and record them: measured on the
# simulated device of the tests, whose own part is 1.2 us.
MARK_COST_US: Final = 5.3


def run_part(run: Analysed, account: Ledger) -> Run:
    recording, device = run.recording, run.metadata.device()
    manifest = recording.manifest
    versions = {str(k): str(v) for k, v in recording.section("versions").items()}
    command = manifest.get("command")
    started = recording.section("times").get("started_at")
    return Run(
        name=str(manifest.get("name") or recording.directory.path.name),
        command=[str(word) for word in command] if isinstance(command, list) else [],
        wall_s=account.wall_s if run.part is not None else (run.end_ns - run.origin_ns) / 1e9,
        exit=_exit(run),
        versions=versions | run.metadata.versions(),
        device_timing=run.device_timing(),
        rank=_first_known(integer(manifest.get("rank")), run.process.rank),
        world_size=_first_known(integer(manifest.get("world_size")), run.process.world_size),
        started_at=started if isinstance(started, str) else None,
        directory=_shown_directory(recording),
        part=run.part,
        device=device or "cpu",
    )


def overhead_part(run: Analysed, steps: StepTable) -> Overhead:
    records = sum(log.records for log in run.recording.logs)
    waits, waited_s = run.synchronized() or (None, None)
    known = Overhead(
        records, records * RECORD_BYTES, None, None, waits, waited_s, run.metadata.looked_s()
    )
    if len(steps) == 0:
        return known
    window, events = run.timeline.window, run.timeline.events
    starts = events.start
    is_in_loop = (starts >= window.loop_start) & (starts < window.loop_end)
    in_loop = np.count_nonzero(is_in_loop)
    reads = np.count_nonzero(is_in_loop & events.is_kind(Kind.SYNC) & (events.end == starts))
    repeated = max(reads - len(steps), 0)
    marks, put = run.process.details["kind"] == Kind.DEVICE_MARK, run.process.details["start"]
    marks_in_loop = np.count_nonzero(marks & (put >= window.loop_start) & (put < window.loop_end))
    cost_us = float(in_loop - repeated) * EVENT_COST_US + float(repeated) * REPEATED_READ_COST_US
    cost_us += float(marks_in_loop) * MARK_COST_US
    per_step_us = cost_us / len(steps)
    mean_us = float(steps.wall_ns.mean()) / 1e3
    share = per_step_us / mean_us if mean_us > 0 else None
    return replace(known, per_step_us=per_step_us, share=share)


def _first_known(first: int | None, otherwise: int | None) -> int | None:
    return otherwise if first is None else first


def _exit(run: Analysed) -> Exit:
    recording, pid = run.recording, run.recording.manifest.get("script_pid")
    own = [log for log in recording.logs if log.pid == pid or log.role == "script"]
    return ending_of_run(recording, own, run.process.logs)


def _shown_directory(recording: Recording) -> str:
    """Returns the run directory as one would type it where the run was started."""
    path, cwd = str(recording.directory.path), recording.manifest.get("cwd")
    if isinstance(cwd, str) and path.startswith(cwd.rstrip(os.sep) + os.sep):
        return os.path.relpath(path, cwd)
    return path


def training_of(
    timeline: Timeline,
    steps: StepTable,
    samples: int | None,
    metadata: Metadata,
    free: FreeData | None = None,
) -> Training:
    """Returns what was trained and how fast.

    Args:
        samples: As `trained_samples` counts them; in steps that no loader feeds nobody does.
        free: What was free; nobody counts the samples of batches that are not made.
    """
    iterations = _iterations(timeline, _feeding(timeline))
    if free is not None or (iterations < len(steps) and not are_all_fed(timeline)):
        samples = None
    steady = steps.steady.mask
    wall = steps.wall_ns[steady]
    per_step = None
    if len(wall):
        per_step = {key: float(ns[steady].mean() / 1e9) for key, ns in steps.per_step.items()}
        per_step.update(evaluation=0.0, startup=0.0, shutdown=0.0)
    loop_ns = timeline.window.loop_end - timeline.window.loop_start
    trained_s = (loop_ns - timeline.evaluated_in_loop_ns()) / 1e9
    return Training(
        steps=len(steps),
        iterations=iterations,
        epochs=len(epoch_starts(timeline.loaders)),
        samples=samples,
        samples_per_s=samples / trained_s if samples and trained_s > 0 else None,
        step_source=timeline.steps.source,
        step_s=statistics_s(wall),
        per_step_s=per_step,
        warmup_excluded=steps.steady.warmup,
        steady_steps=len(wall),
        steady_s=float(wall.sum() / 1e9),
        without_evaluation_s=trained_s,
        free_from_step=free.first_step if free is not None else None,
    )


def _feeding(timeline: Timeline) -> list[tuple[LoaderIterations, Bool]]:
    return feeding_iterations(timeline.loaders, timeline.learning(), timeline.steps.ends)


def trained_samples(timeline: Timeline, fetches: FetchTable, metadata: Metadata) -> int | None:
    """Counts the samples of all iterations; None where one of the loaders does not tell."""
    total = 0
    for p, counted in _feeding(timeline):
        if not counted.any():
            continue
        samples = samples_of(p, counted, timeline.all_events, fetches, metadata)
        if samples is None:
            return None
        total += samples
    return total or None


def _iterations(timeline: Timeline, feeding: list[tuple[LoaderIterations, Bool]]) -> int:
    """Batches of the feeding loaders; without one, backwards of a single optimizer, or steps."""
    events = timeline.events
    if feeding:
        return sum(int(p.batches[counted].sum()) for p, counted in feeding)
    steps = len(timeline.steps.ends)
    optimizers = np.unique(events.site[events.is_kind(Kind.OPTIMIZER_STEP)])
    if timeline.steps.source != "optimizer" or len(optimizers) > 1:
        return steps
    backward = events.is_kind(Kind.BACKWARD)
    # Those of a closure are run again for one and the same batch.
    outermost = backward & (timeline.nesting.parent < 0) & ~within(timeline.segments, events.start)
    return max(steps, int(outermost.sum()))
