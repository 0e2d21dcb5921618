"""What a summary says of the run itself, and of what recording it cost."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.ending import ending_of_run
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.summary.run import Exit, Ledger, Overhead, Run
from trainprof.analysis.timeline.step_table import StepTable
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


def _first_known(told: int | None, otherwise: int | None) -> int | None:
    return otherwise if told is None else told


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
