"""Several training processes as one run: ranks, and processes that train separately."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from trainprof.analysis.run.ending import ending, recorded_ending
from trainprof.analysis.run.evidence import DeviceEvidence, Evidence
from trainprof.analysis.run.recording import Recording, read_recording
from trainprof.analysis.run.training_process import TrainingProcess
from trainprof.analysis.summary.code import Collective, PythonInModel, UnsharedData
from trainprof.analysis.summary.device import MemoryGrowth
from trainprof.analysis.summary.run import Exit, Ledger, Phases, Training
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.record.run_directory import RunDirectory


def rank_recordings(directory: RunDirectory) -> list[Recording]:
    """Returns the recordings of `RunDirectory.last_attempts`."""
    return [read_recording(attempt) for attempt in directory.last_attempts()]


def rank_row(summary: RunSummary, process: TrainingProcess, recording: Recording) -> dict[str, Any]:
    """Returns a process's figures: {rank, host, pid, steps, step_s, ledger, exit}."""
    step = summary.training.step_s
    is_script = process.pid == recording.manifest.get("script_pid")
    end = ending(recording, process.logs) if is_script else _own_ending(process)
    host = recording.section("host").get("name")
    return {
        "rank": summary.run.rank,
        "host": host if isinstance(host, str) else None,
        "pid": process.pid or None,
        "steps": summary.training.steps,
        "step_s": dataclasses.asdict(step) if step is not None else None,
        "ledger": {"wall_s": summary.ledger.wall_s, "seconds": dict(summary.ledger.seconds)},
        "exit": dataclasses.asdict(end),
    }


def across_ranks(summaries: Sequence[RunSummary], rows: list[dict[str, Any]]) -> RunSummary:
    """Returns the run of several ranks: ledger, phases and parts of a step are their means.

    Samples and devices are those of all ranks; other sections are the first rank's.
    """
    first = summaries[0]
    sizes = [summary.run.world_size for summary in summaries if summary.run.world_size]
    return replace(
        first,
        run=replace(
            first.run,
            rank=None,
            world_size=max([len(summaries), *sizes]),
            wall_s=max(summary.run.wall_s for summary in summaries),
            exit=_first_failure([summary.run.exit for summary in summaries]),
        ),
        phases=Phases(
            fmean(summary.phases.initialization_s for summary in summaries),
            fmean(summary.phases.training_s for summary in summaries),
            fmean(summary.phases.finalization_s for summary in summaries),
        ),
        ledger=Ledger(
            fmean(summary.ledger.wall_s for summary in summaries),
            _mean_by_key([summary.ledger.seconds for summary in summaries]),
            _mean_by_key([summary.ledger.other_by_place for summary in summaries]),
        ),
        training=_training([summary.training for summary in summaries]),
        devices=[device for summary in summaries for device in summary.devices or ()] or None,
        ranks=rows,
        out_of_memory=next((own.out_of_memory for own in summaries if own.out_of_memory), None),
        collectives=_mean_collectives([summary.collectives for summary in summaries]),
        memory_growth=_most_growth(summaries),
        copied_pages=max(
            (own.copied_pages for own in summaries if own.copied_pages is not None),
            key=lambda copied: copied.last_bytes,
            default=None,
        ),
        unshared=_unshared(summaries),
        faults=common_faults([summary.faults for summary in summaries]),
    )


def common_faults(each: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(fault for faults in each for fault in faults))


def _most_growth(summaries: Sequence[RunSummary]) -> MemoryGrowth | None:
    """Returns the growth of the rank that grows most; all ranks share the free memory."""
    grown = [own.memory_growth for own in summaries if own.memory_growth is not None]
    most = max(grown, key=lambda own: own.bytes_per_step, default=None)
    return None if most is None else replace(most, room_bytes=None)


def _unshared(summaries: Sequence[RunSummary]) -> list[UnsharedData]:
    """Returns the training loaders that draw the whole dataset on every rank."""
    drawn = [
        {loader.site: loader.draws_all for loader in summary.loaders if loader.role == TRAINING}
        for summary in summaries
    ]
    return [
        UnsharedData(site, samples, len(summaries))
        for site, samples in drawn[0].items()
        if samples and all(others.get(site) == samples for others in drawn)
    ]


def common_evidence(each: Sequence[Evidence]) -> Evidence:
    """Returns the evidence of all ranks: mean times, and all loaders."""
    return replace(
        each[0],
        wall_s=fmean(evidence.wall_s for evidence in each),
        startup_s=fmean(evidence.startup_s for evidence in each),
        training_s=fmean(evidence.training_s for evidence in each),
        training=_mean_by_key([evidence.training for evidence in each]),
        has_device=any(evidence.has_device for evidence in each),
        steps=_training([evidence.steps for evidence in each]),
        loaders=[loader for evidence in each for loader in evidence.loaders],
        loss_in_loop_s=fmean(evidence.loss_in_loop_s for evidence in each),
        device=_common_device([evidence.device for evidence in each]),
        collectives=_mean_collectives([evidence.collectives for evidence in each]),
        python_in_model=_common_python([evidence.python_in_model for evidence in each]),
        ranks=len(each),
    )


def _common_python(each: Sequence[PythonInModel | None]) -> PythonInModel | None:
    """None unless all ranks have it; then the first's, with mean times."""
    known = [own for own in each if own is not None]
    if not known or len(known) < len(each):
        return None
    return replace(known[0], seconds=_mean_by_key([own.seconds for own in known]))


def _mean_collectives(each: Sequence[Sequence[Collective]]) -> list[Collective]:
    """Returns them by line, with their mean time: the last rank does not wait."""
    named = {(line.site, line.function): line for collectives in each for line in collectives}
    spent = dict.fromkeys(named, 0.0)
    for line in (line for collectives in each for line in collectives):
        spent[line.site, line.function] += line.seconds / len(each)
    lines = [replace(line, seconds=spent[key]) for key, line in named.items()]
    return sorted(lines, key=lambda line: -line.seconds)


def _common_device(each: Sequence[DeviceEvidence | None]) -> DeviceEvidence | None:
    known = [own for own in each if own is not None]
    return DeviceEvidence.common(known) if len(known) == len(each) else None


def _training(each: Sequence[Training]) -> Training:
    per_step = [training.per_step_s for training in each if training.per_step_s is not None]
    samples = [training.samples for training in each if training.samples is not None]
    total = sum(samples) if len(samples) == len(each) else None
    # Where the first rank evaluates alone, the others' rates would count waiting for it.
    trained_s = each[0].without_evaluation_s
    return replace(
        each[0],
        per_step_s=_mean_by_key(per_step) if per_step else None,
        samples=total,
        samples_per_s=total / trained_s if total and trained_s else None,
    )


def _mean_by_key(each: Sequence[dict[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for own in each for key in own)
    return {key: fmean(own.get(key, 0.0) for own in each) for key in keys}


def _first_failure(exits: Sequence[Exit]) -> Exit:
    """Returns the end of the first rank that failed, else of one ended by a limit."""
    failed = [end for end in exits if end.reason not in ("completed", "limit") or end.status]
    return next(iter([*failed, *(end for end in exits if not end.is_whole)]), exits[0])


def _own_ending(process: TrainingProcess) -> Exit:
    """Returns the end of a process that trainprof did not start, by its last record."""
    end = recorded_ending(process.logs)
    if end is not None:
        return end
    return Exit(None, None, "unknown", "no end recorded: killed, os._exit, or still running")
