"""A recorded run in numbers: of each training process, and of all together."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from trainprof.analysis.distributed.collectives import stragglers
from trainprof.analysis.lines.times import line_cost
from trainprof.analysis.machine.cores import (
    HostPart,
    are_ranks,
    parts_of_processes,
    parts_of_recordings,
)
from trainprof.analysis.machine.gpus import energy_of
from trainprof.analysis.run.analysed import Analysed, described, narrowed
from trainprof.analysis.run.ending import hung_of
from trainprof.analysis.run.evidence import Evidence
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.one_process import ProcessNumbers, numbers_of
from trainprof.analysis.run.ranks import across_ranks, common_evidence, rank_recordings, rank_row
from trainprof.analysis.run.recording import Recording, read_recording
from trainprof.analysis.run.training_process import TrainingProcess, training_processes
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.events import MAX_APART_NS, Events
from trainprof.analysis.timeline.iterations import TRAINING, epoch_starts
from trainprof.analysis.timeline.timeline import Timeline, build_timeline
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """A run in numbers.

    Attributes:
        summary: Without findings and verdict; of all ranks together.
        ranks: Its training processes if they are ranks of one training; else the first alone.
    """

    summary: RunSummary
    evidence: Evidence
    ranks: list[ProcessNumbers]

    def worst_rank(self) -> ProcessNumbers | None:
        """Returns the rank that the others wait for longest, or None."""
        late = self.summary.stragglers[0]["rank"] if self.summary.stragglers else None
        steps_of_rank = (x for x in self.ranks if x.rank_steps and x.rank_steps.rank == late)
        return next(steps_of_rank, None)


def run_numbers(
    directory: RunDirectory, *, epoch: int | None = None, steps: tuple[int, int] | None = None
) -> RunNumbers:
    """Returns a run in numbers, or one training epoch or some steps of it.

    Args:
        epoch: 0-based index of a training epoch.
        steps: 0-based, the end excluded.

    Raises:
        NothingThere: If the run lacks that epoch or those steps.
    """
    by_rank, pairs, hosts = _that_trained(directory)
    if by_rank or are_ranks([process for _, process in pairs]):
        each = [_numbers(*x, host, epoch, steps) for x, host in zip(pairs, hosts, strict=True)]
        run = _joined(each, pairs)
        if by_rank:
            logs = [log for recording in by_rank for log in recording.logs]
            run = replace(run, summary=replace(run.summary, lines=line_cost(logs)))
    else:
        apart = [
            rank_row(_numbers(*x, host).summary, x[1], x[0])
            for x, host in zip(pairs[1:], hosts[1:], strict=True)
        ]
        first = _numbers(*pairs[0], hosts[0], epoch, steps)
        run = RunNumbers(replace(first.summary, trained_apart=apart), first.evidence, [first])
    if epoch is not None or steps is not None:
        return run
    step = run.summary.training.step_s
    hung = hung_of(
        by_rank or [pairs[0][0]],
        [process for _, process in pairs],
        run.summary.run.exit,
        step_s=None if step is None else step.p50,
    )
    return replace(run, summary=replace(run.summary, hung=hung))


def first_process(directory: RunDirectory) -> ProcessNumbers:
    """Returns a run's training process in numbers, the first of several ranks."""
    _, pairs, hosts = _that_trained(directory)
    return _numbers(*pairs[0], hosts[0])


@dataclass(frozen=True, slots=True)
class FirstProcess:
    """A run's training process, the first of several ranks, or a part of its timeline.

    Attributes:
        whole: The timeline of the run, of which `run` may have a part.
        first_step, first_epoch: Number of steps and epochs before that part.
        has_ranks: It is one of several.
    """

    run: Analysed
    whole: Timeline
    first_step: int
    first_epoch: int
    has_ranks: bool


def first_analysed(
    directory: RunDirectory, *, epoch: int | None = None, steps: tuple[int, int] | None = None
) -> FirstProcess:
    """Returns what `run_numbers` sums up, of the first process.

    Raises:
        NothingThere: If the run lacks that epoch or those steps.
    """
    by_rank, pairs, hosts = _that_trained(directory)
    run, whole = _analysed(*pairs[0], hosts[0], epoch, steps)
    has_ranks = len(by_rank) > 1 or are_ranks([process for _, process in pairs])
    return FirstProcess(run, whole, *_counted_before(whole, run.timeline), has_ranks)


def _that_trained(
    directory: RunDirectory,
) -> tuple[list[Recording], list[tuple[Recording, TrainingProcess]], list[HostPart]]:
    """Returns recordings of ranks, if any; the training processes; and each one's host."""
    by_rank = _recordings_of_ranks(directory)
    if by_rank:
        pairs = [(recording, training_processes(recording)[0]) for recording in by_rank]
        return by_rank, pairs, parts_of_recordings(pairs)
    recording = read_recording(directory)
    processes = training_processes(recording)
    pairs = [(recording, process) for process in processes]
    return by_rank, pairs, parts_of_processes(recording, processes)


def _recordings_of_ranks(directory: RunDirectory) -> list[Recording]:
    """Returns the recordings of ranks that each had their own trainprof, as of one run."""
    ranks = [] if directory.manifest.exists() else rank_recordings(directory)
    return [replace(recording, directory=directory) for recording in ranks]


def _joined(
    ranks: list[ProcessNumbers], pairs: list[tuple[Recording, TrainingProcess]]
) -> RunNumbers:
    rows = [
        rank_row(rank.summary, process, recording)
        for rank, (recording, process) in zip(ranks, pairs, strict=True)
    ]
    summary = across_ranks([rank.summary for rank in ranks], rows)
    steps = [rank.rank_steps for rank in ranks if rank.rank_steps is not None]
    late = stragglers(steps) if len(steps) == len(ranks) else []
    summary = replace(summary, stragglers=[asdict(straggler) for straggler in late])
    first = pairs[0][0]
    if summary.system is not None and all(recording is first for recording, _ in pairs):
        # One sampler saw the GPUs of all ranks: count their samples together.
        energy = energy_of(summary.system.gpus, summary.training.samples)
        summary = replace(summary, system=replace(summary.system, energy=energy))
    return RunNumbers(summary, common_evidence([rank.evidence for rank in ranks]), ranks)


def _numbers(
    recording: Recording,
    process: TrainingProcess,
    host: HostPart,
    epoch: int | None = None,
    steps: tuple[int, int] | None = None,
) -> ProcessNumbers:
    run, whole = _analysed(recording, process, host, epoch, steps)
    numbers = numbers_of(run)
    return numbers if run.part is None else _counted_as_in_the_run(numbers, whole, run.timeline)


def _analysed(
    recording: Recording,
    process: TrainingProcess,
    host: HostPart,
    epoch: int | None,
    steps: tuple[int, int] | None,
) -> tuple[Analysed, Timeline]:
    """Returns a process, or a part of it, and the timeline of the whole."""
    start, end = _span(recording, process.events)
    recorded = end if process.stopped_ns is None else min(end, max(start, process.stopped_ns))
    whole = build_timeline(process, start, recorded)
    if epoch is None and steps is None:
        return Analysed(recording, process, whole, start, end, host), whole
    part, words = narrowed(whole, epoch, steps), described(epoch, steps)
    return Analysed(recording, process, part, start, end, host, words), whole


def _counted_before(whole: Timeline, part: Timeline) -> tuple[int, int]:
    """Returns the number of steps and of epochs before a part of a run."""
    if part is whole:
        return 0, 0
    first_step = int(np.searchsorted(whole.steps.ends, part.window.start, side="right"))
    begins = epoch_starts(whole.loaders)
    # A part may begin between the end of an epoch's last step and the next one's start.
    first = next(iter(epoch_starts(part.loaders)), part.window.start)
    return first_step, max(int(np.searchsorted(begins, first, side="right")) - 1, 0)


def _counted_as_in_the_run(
    numbers: ProcessNumbers, whole: Timeline, part: Timeline
) -> ProcessNumbers:
    """Numbers the steps and epochs of a part as in the whole run."""
    first_step, first_epoch = _counted_before(whole, part)
    summary = numbers.summary
    outliers = [
        replace(
            outlier,
            step=outlier.step + first_step,
            epoch=None if outlier.epoch is None else outlier.epoch + first_epoch,
        )
        for outlier in summary.outliers
    ]
    epochs = [
        replace(epoch, index=epoch.index + (first_epoch if epoch.stage == TRAINING else 0))
        for epoch in summary.epochs
    ]
    return replace(
        numbers,
        summary=replace(summary, outliers=outliers, epochs=epochs),
        first_step=first_step,
    )


def _span(recording: Recording, events: Events) -> tuple[int, int]:
    """Start and end of the run: from its parent, else from the first and last record."""
    times = recording.section("times")
    own = [int(events.start[0]), int(events.end.max())] if len(events) else []
    seen = list(own)
    for log in recording.logs:
        seen += [t for kind, _, *pair, _ in log.marks if kind != Kind.CLOCK for t in pair if t]
    for lines in (recording.host_lines, recording.process_lines):
        if lines:
            seen += [int(lines[0]["t_ns"]), int(lines[-1]["t_ns"])]
    # Times a year from the process's events are damage.
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
    # A process that outlives the script (a daemon) still belongs to the run.
    return min([start, *own]), max([start, end, *own])
