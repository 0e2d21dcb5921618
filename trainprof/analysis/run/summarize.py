"""Turns a recorded run into its summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from trainprof.analysis.lines.times import line_cost
from trainprof.analysis.loading.recreated_loaders import BuiltLoaders
from trainprof.analysis.machine.cores import (
    HostPart,
    are_ranks,
    parts_of_processes,
    parts_of_recordings,
)
from trainprof.analysis.run.analysed import Analysed, described, narrowed
from trainprof.analysis.run.ending import hung_of
from trainprof.analysis.run.joined_ranks import joined_ranks
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.one_process import Shown, summary_of
from trainprof.analysis.run.ranks import rank_recordings, rank_row
from trainprof.analysis.run.recording import Recording, read_recording
from trainprof.analysis.run.training_process import TrainingProcess, training_processes
from trainprof.analysis.summary.finding import Finding
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.events import MAX_APART_NS, Events
from trainprof.analysis.timeline.iterations import TRAINING, epoch_starts
from trainprof.analysis.timeline.timeline import Timeline, build_timeline
from trainprof.findings.run_context import Case
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind


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
    is_whole = epoch is None and steps is None
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    if of_ranks:
        placed = [replace(_judged_by(x, rules), directory=directory) for x in of_ranks]
        pairs = [(one, training_processes(one)[0]) for one in placed]
        parts = parts_of_recordings(pairs)
        joined = joined_ranks(
            [(_analysed(*x, epoch, steps, y), *x) for x, y in zip(pairs, parts, strict=True)]
        )
        joined = replace(joined, lines=line_cost([log for one in of_ranks for log in one.logs]))
        return _with_hung(joined, placed, [process for _, process in pairs]) if is_whole else joined
    recording = _judged_by(read_recording(directory), rules)
    processes = training_processes(recording)
    parts = parts_of_processes(recording, processes)
    if are_ranks(processes):
        joined = joined_ranks(
            [
                (_analysed(recording, one, epoch, steps, part), recording, one)
                for one, part in zip(processes, parts, strict=True)
            ]
        )
        return _with_hung(joined, [recording], processes) if is_whole else joined
    apart = [
        rank_row(_analysed(recording, one, None, None, part).summary, one, recording)
        for one, part in zip(processes[1:], parts[1:], strict=True)
    ]
    first = _analysed(recording, processes[0], epoch, steps, parts[0]).summary
    first = replace(first, trained_apart=apart)
    return _with_hung(first, [recording], processes) if is_whole else first


def _with_hung(
    summary: RunSummary, recordings: list[Recording], processes: list[TrainingProcess]
) -> RunSummary:
    step = summary.training.step_s
    step_s = None if step is None else step.p50
    return replace(summary, hung=hung_of(recordings, processes, summary.run.exit, step_s=step_s))


def case_of(directory: RunDirectory) -> Case | None:
    """Returns what the findings of a run rest on, of several ranks of the first.

    None where there is none: lines were timed, or devices waited for.
    """
    of_ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    if of_ranks:
        pairs = [(one, training_processes(one)[0]) for one in of_ranks]
        return _analysed(*pairs[0], None, None, parts_of_recordings(pairs)[0]).case
    recording = read_recording(directory)
    processes = training_processes(recording)
    part = parts_of_processes(recording, processes)[0]
    return _analysed(recording, processes[0], None, None, part).case


def _judged_by(recording: Recording, rules: Mapping[str, float] | None) -> Recording:
    if rules is None:
        return recording
    options = {**recording.section("options"), "rules": dict(rules)}
    return replace(recording, manifest={**recording.manifest, "options": options})


def _analysed(
    recording: Recording,
    process: TrainingProcess,
    epoch: int | None,
    steps: tuple[int, int] | None,
    host: HostPart,
) -> Shown:
    start, end = _span(recording, process.events)
    recorded = end if process.stopped_ns is None else min(end, max(start, process.stopped_ns))
    timeline = build_timeline(
        process.events,
        process.metadata,
        BuiltLoaders.of(process.details),
        main_thread=process.main_thread,
        start=start,
        end=recorded,
    )
    if epoch is None and steps is None:
        return summary_of(Analysed(recording, process, timeline, start, end, host))
    part = narrowed(timeline, epoch, steps)
    whole = Analysed(recording, process, part, start, end, host, described(epoch, steps))
    shown = summary_of(whole)
    return replace(shown, summary=_counted_as_in_the_run(shown.summary, timeline, part))


def _counted_as_in_the_run(summary: RunSummary, whole: Timeline, part: Timeline) -> RunSummary:
    """Gives the steps and epochs of a part the numbers that they have in the whole run."""
    first_step = int(np.searchsorted(whole.steps.ends, part.window.start, side="right"))
    begins = epoch_starts(whole.loaders)
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
        findings=[_shown_by(finding, first_step) for finding in summary.findings],
        passed_over=[
            replace(passed, finding=_shown_by(passed.finding, first_step))
            for passed in summary.passed_over
        ],
    )


def _shown_by(finding: Finding, first_step: int) -> Finding:
    """Returns a finding of a part by the numbers that its steps have in the whole run."""
    steps = [{**step, "step": step["step"] + first_step} for step in finding.steps]
    return replace(finding, steps=steps)


def _span(recording: Recording, events: Events) -> tuple[int, int]:
    """Start and end of the run: as its parent saw them, else as far as anything was recorded."""
    times = recording.section("times")
    own = [int(events.start[0]), int(events.end.max())] if len(events) else []
    seen = list(own)
    for log in recording.logs:
        seen += [t for kind, _, *pair, _ in log.marks if kind != Kind.CLOCK for t in pair if t]
    for lines in (recording.host_lines, recording.process_lines):
        if lines:
            seen += [int(lines[0]["t_ns"]), int(lines[-1]["t_ns"])]
    # What lies a year from the process's own events is damage.
    around = own[0] if own else None
    seen = [t for t in seen if around is None or abs(t - around) < MAX_APART_NS]
    start, end = (
        ns if ns is not None and (around is None or abs(ns - around) < MAX_APART_NS) else None
        for ns in (integer(times.get("spawned_ns")), integer(times.get("ended_ns")))
    )
    if start is None:
        start = min(seen, default=0)
    if end is None:
        end = max(seen, default=start)
    # A process that outlives the one that was started (a daemon) belongs to the run all the same.
    return min([start, *own]), max([start, end, *own])
