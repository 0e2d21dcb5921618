"""The summary's run, throughput, cost of recording, and what was not observed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.device.activity import several_devices
from trainprof.analysis.pipeline.recorded_epoch import FreeData
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.ending import ending_of_run
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.recording import Recording, inner_runs
from trainprof.analysis.summary.device import Device, FoundSyncs
from trainprof.analysis.summary.distribution import statistics_s
from trainprof.analysis.summary.run import Ledger, Overhead, Run, System, Training
from trainprof.analysis.timeline.iterations import (
    epoch_starts,
    feeding_iterations,
)
from trainprof.analysis.timeline.ledger import within
from trainprof.analysis.timeline.step_table import StepTable, are_all_fed
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import RECORD_BYTES, Kind

# What an event takes by itself, with its record in a cache, where no run measured it.
EVENT_US: Final = 0.2
# What it takes more in a step: there it has a wrapper, and torch's kernels have evicted all of it.
# Measured with the hooks in Python, in C: between benchmarks/step_cost.py and overhead.py. It waits
# for memory, and so varies less from day to day than a clock read does.
EVICTED_US: Final = (4.0, 1.2)
# Of a value read from a CPU tensor right after others: hook_cost.py measures it.
TIMES_REPEATED: Final = (2.5, 1.0)
# To record a CUDA event, query those before it and record them: measured on the simulated device of
# the tests, whose part is 1.2 us.
MARK_COST_US: Final = 5.3
# From here on the bounds of a GPU's busy share are reported as wide.
_WIDE_SHARE: Final = 0.25
TOO_FEW_STEPS: Final = "too few optimizer steps"


def run_part(run: Analysed, account: Ledger) -> Run:
    recording, device = run.recording, run.metadata.device()
    manifest = recording.manifest
    versions = {str(k): str(v) for k, v in recording.section("versions").items()}
    command, started = manifest.get("command"), recording.section("times").get("started_at")
    rank, world_size = integer(manifest.get("rank")), integer(manifest.get("world_size"))
    return Run(
        name=str(manifest.get("name") or recording.directory.path.name),
        command=[str(word) for word in command] if isinstance(command, list) else [],
        wall_s=account.wall_s if run.part is not None else (run.end_ns - run.origin_ns) / 1e9,
        exit=ending_of_run(recording, run.process.logs),
        versions=versions | run.metadata.versions(),
        device_timing=run.device_timing(),
        rank=run.process.rank if rank is None else rank,
        world_size=run.process.world_size if world_size is None else world_size,
        started_at=started if isinstance(started, str) else None,
        directory=_shown_directory(recording),
        part=run.part,
        device=device or "cpu",
    )


def overhead_part(run: Analysed, steps: StepTable) -> Overhead:
    records = sum(log.records for log in run.recording.logs)
    waits, waited_s = run.synchronized() or (None, None)
    header = next((log.header for log in run.process.logs), {})
    in_c = header.get("in_c")
    known = Overhead(
        records,
        records * RECORD_BYTES,
        None,
        None,
        waits,
        waited_s,
        run.metadata.looked_s(),
        in_c if isinstance(in_c, bool) else None,
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
    event_ns = header.get("event_ns")
    event_us = event_ns / 1e3 if isinstance(event_ns, int | float) else EVENT_US
    cost_us = float(in_loop - repeated) * (event_us + EVICTED_US[known.in_c is True])
    cost_us += float(repeated) * event_us * TIMES_REPEATED[known.in_c is True]
    cost_us += float(marks_in_loop) * MARK_COST_US
    per_step_us = cost_us / len(steps)
    mean_us = float(steps.wall_ns.mean()) / 1e3
    share = per_step_us / mean_us if mean_us > 0 else None
    return replace(known, per_step_us=per_step_us, share=share)


def _shown_directory(recording: Recording) -> str:
    """Returns the run directory relative to where the run was started."""
    path, cwd = str(recording.directory.path), recording.manifest.get("cwd")
    if isinstance(cwd, str) and path.startswith(cwd.rstrip(os.sep) + os.sep):
        return os.path.relpath(path, cwd)
    return path


def training_of(
    timeline: Timeline,
    steps: StepTable,
    samples: int | None,
    free: FreeData | None,
) -> Training:
    """Returns steps and throughput.

    Args:
        samples: As `trained_samples` counts them.
        free: Batches that a trial skipped preparing, which have no count of samples.
    """
    iterations = _iterations(timeline)
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


def _iterations(timeline: Timeline) -> int:
    """Batches of the feeding loaders; without one, backwards of a single optimizer, or steps."""
    events, steps = timeline.events, len(timeline.steps.ends)
    feeding = feeding_iterations(timeline.loaders, timeline.learning(), timeline.steps.ends)
    if feeding:
        return sum(int(p.batches[counted].sum()) for p, counted in feeding)
    optimizers = np.unique(events.site[events.is_kind(Kind.OPTIMIZER_STEP)])
    if timeline.steps.source != "optimizer" or len(optimizers) > 1:
        return steps
    backward = events.is_kind(Kind.BACKWARD)
    # A closure runs its backward several times for the same batch.
    outermost = backward & (timeline.nesting.parent < 0) & ~within(timeline.segments, events.start)
    return max(steps, int(outermost.sum()))


def not_observed(
    run: Analysed,
    system: System | None,
    training: Training,
    timed: Device | None,
    found_syncs: FoundSyncs | None,
) -> dict[str, str]:
    """Returns, by their path, why fields of the summary are empty."""
    reasons: dict[str, str] = {}
    inside = inner_runs(run.recording.directory) if training.steps == 0 else []
    if inside:
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        reasons["training"] = f"recorded by the trainprof run inside this one: {inside[0]}{more}"
    elif not run.process.logs:
        reasons["training"] = (
            "no event recorded: torch was not imported, or in a process that trainprof cannot "
            "reach (python -I, cleared environment)"
        )
    elif training.steps == 0:
        reasons["training.step_s"] = "no backward and no optimizer call seen"
    if run.timeline.feeder() is not None and training.samples is None:
        reasons["training.samples"] = (
            "batch sizes are unknown for this sampler"
            if are_all_fed(run.timeline)
            else "some steps took no batch from a loader (itertools.cycle repeats the first epoch "
            "from memory)"
        )
    if system is None:
        reasons["system"] = "no sample taken"
    elif run.metadata.device() is not None and system.gpus_not_observed is not None:
        reasons["system.gpus"] = system.gpus_not_observed
    timing = run.device_timing()
    if timing == "async" and timed is None:
        reasons["devices"] = _why_no_device_time(run)
    elif timing == "async" and timed is not None and _is_wide(timed):
        reasons["devices.busy_share"] = (
            "wide bounds: whether the GPU is idle between kernel launches is unknown without a "
            "driver's report"
        )
    elif timing == "cpu" and run.recording.section("options").get("cuda_sync"):
        reasons["devices"] = "--cuda-sync had no effect: no GPU was used"
    if no_memory := run.metadata.environment_text("no_device_memory"):
        reasons["devices.memory"] = no_memory
    if run.recording.section("options").get("find_syncs"):
        no_syncs = run.metadata.environment_text("no_found_syncs")
        if no_syncs or found_syncs is None:
            reasons["found_syncs"] = no_syncs or TOO_FEW_STEPS
    return reasons


def _is_wide(device: Device) -> bool:
    low, high = device.busy_share or (0.0, 0.0)
    return high - low > _WIDE_SHARE


def _why_no_device_time(run: Analysed) -> str:
    if several_devices(run.process.details, run.timeline):
        return "one process used several GPUs: their times cannot be separated"
    if run.metadata.launch_blocking():
        return "CUDA_LAUNCH_BLOCKING=1: each call waits for the GPU, so host times include its time"
    return "GPU time is not measured on this device; --cuda-sync measures it"
