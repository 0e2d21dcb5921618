"""Reads the result of one run of a trial from its run directory."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import lexists
from pathlib import Path
from typing import Any, ClassVar, Final

from trainprof.analysis.pipeline.trial_pace import FreeSteps, alone_pace, free_pace, free_steps
from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.run.recording import manifest_of_first
from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import (
    FAILED,
    HUNG,
    INTERRUPTED,
    NOT_APPLIED,
    OK,
    OUT_OF_MEMORY,
    TIMED_OUT,
    TOO_FEW_STEPS,
)
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.analysis.timeline.step_series import RecordedSteps, read_recorded_steps, series_of
from trainprof.analysis.timeline.step_table import Paces, SeenSteps, StepTable
from trainprof.compare.comparability import DEVICE, GPU, ground_of
from trainprof.compare.compared_run import ComparedRun, without_saves
from trainprof.findings.summarize import summarize
from trainprof.launch.outcome import Outcome
from trainprof.launch.signals import ENDING
from trainprof.record.errors import TrainprofError
from trainprof.record.names import MAX_TIME
from trainprof.record.run_directory import RunDirectory, write_json
from trainprof.tune.trial import FirstEpoch, Measured, Trial
from trainprof.tune.trial_output import TrialNotes, last_words, read_trial_notes

NEVER_ALONE: Final = "the loader was never iterated without training"
DID_NOT_END: Final = "it did not exit, and was killed"
_FEWEST_BATCHES: Final = MIN_STEADY_STEPS  # of a loader alone
# Trials follow each other, alternating with baselines: a virtual machine's cores change less
# between them than between unrelated runs.
_TRIALS_WANDER: Final = 0.2
# A run killed this long after its last step, in seconds and in steps, hung.
_HANGS_AFTER_S: Final = 10.0
_HANGS_AFTER_STEPS: Final = 10
_OUT_OF_MEMORY_NAMES: Final = ("OutOfMemoryError", "MemoryError")


def measured(
    trial: Trial,
    number: int,
    directory: RunDirectory,
    ended: Outcome,
    *,
    is_overdue: bool,
    relative_to: Path,
) -> Measured:
    """Reads a trial that has ended, except its duration, and saves its summary."""
    summary = summarize(directory)
    save_json(directory.summary, to_jsonable(summary))
    outcome, detail = _outcome(summary, ended, directory.console, is_overdue=is_overdue)
    failed_after = None
    if outcome in (FAILED, TIMED_OUT) and summary.run.exit.was_limited:
        # All steps were measured.
        outcome, detail, failed_after = OK, None, detail or DID_NOT_END
    elif outcome == TIMED_OUT and (stood := _hung(trial, summary)) is not None:
        outcome, detail = HUNG, stood
    return read(
        trial,
        number,
        directory,
        summary,
        outcome=outcome,
        detail=detail,
        failed_after=failed_after,
        relative_to=relative_to,
    )


def _hung(trial: Trial, summary: RunSummary) -> str | None:
    """Returns how a killed run hung, None if it was still making steps."""
    wall_s, steps = summary.run.wall_s, _steps(trial, summary)
    what = "batch" if trial.data == "alone" else "step"
    if steps == 0:
        return f"no {what} in {wall_s:.0f} s"
    since_s = wall_s - summary.phases.initialization_s - summary.phases.training_s
    step_s = summary.phases.training_s / steps
    if since_s < max(_HANGS_AFTER_S, _HANGS_AFTER_STEPS * step_s):
        return None
    return f"no {what} in the last {since_s:.0f} s, after {steps}"


def read(
    trial: Trial,
    number: int,
    directory: RunDirectory,
    summary: RunSummary,
    *,
    relative_to: Path,
    outcome: str = OK,
    detail: str | None = None,
    failed_after: str | None = None,
) -> Measured:
    """Returns the result of a saved run."""
    recorded = read_recorded_steps(directory)
    series = None if recorded is None else series_of(recorded.steps)
    run = ComparedRun(summary, series, manifest_of_first(directory), str(directory.path))
    notes = read_trial_notes(directory)
    free = free_steps(recorded) if recorded is not None and trial.data == "free" else None
    seen = _seen(trial, run, recorded, free) if outcome == OK else None
    paces = _paces(trial, run, directory, seen) if outcome == OK else Paces()
    pace = paces.steps
    not_applied = _not_applied(trial, notes) if outcome == OK else None
    system = summary.system
    if not_applied is not None:
        outcome, detail = NOT_APPLIED, not_applied
    elif outcome == OK and pace is None:
        outcome = TOO_FEW_STEPS
        detail = _too_few(trial, without_saves(run).steady_steps())
    return Measured(
        trial=trial,
        number=number,
        directory=str(directory.path.relative_to(relative_to)),
        outcome=outcome,
        detail=detail,
        seconds=0.0,
        pace=pace,
        training_pace=paces.training,
        saves_s=without_saves(run).checkpoints_s if trial.data == "real" else 0.0,
        run_s=summary.run.wall_s if summary.run.exit.is_whole and trial.data == "real" else None,
        steps=_steps(trial, summary),
        training_s=summary.phases.training_s,
        was_cut=outcome in (TIMED_OUT, HUNG) or summary.run.exit.limit == MAX_TIME,
        failed_after=failed_after,
        losses=tuple(notes.losses),
        refused=notes.refused,
        # Files that it created and removed itself do not count.
        written=tuple(p for p, was_there in notes.written.items() if was_there or lexists(p)),
        read_bytes=_read_bytes(_feeding(trial, summary)),
        peak_memory_bytes=None
        if system is None
        else number_at(system.memory, "tree_rss_bytes", "max"),
        disturbance=run.disturbance() if system is not None else 0.0,
        ground=_ground(trial, run, outcome),
        seen=seen,
        is_least=free is not None and free.is_least,
        batches=_batches(summary),
        first_epochs=first_epochs_of(summary),
    )


def _not_applied(trial: Trial, notes: TrialNotes) -> str | None:
    """Returns why the change was not applied, None if it was."""
    if trial.data != "real" and notes.applied.get("data") != trial.data:
        # Without replayed batches there are no steps on them, noted or not.
        return notes.refused.get("data", NEVER_ALONE if trial.data == "alone" else None)
    if trial.overrides and notes.refused and not notes.applied:
        return "; ".join(notes.refused.values())
    return None


def _seen(
    trial: Trial, run: ComparedRun, recorded: RecordedSteps | None, free: FreeSteps | None
) -> SeenSteps | None:
    if free is not None:
        return SeenSteps(free.table, free.first, _free_paces)
    if recorded is None or trial.data != "real":
        return None
    return SeenSteps(recorded.steps, 0, lambda table: _real_paces(_ended_at(run, table)))


def _paces(
    trial: Trial, run: ComparedRun, directory: RunDirectory, seen: SeenSteps | None
) -> Paces:
    if trial.data == "alone":
        return Paces(_telling(alone_pace(directory, trial.sites), _FEWEST_BATCHES))
    if seen is not None:
        return seen.paces()
    return _real_paces(run) if trial.data == "real" else Paces()


def _free_paces(table: StepTable) -> Paces:
    pace = _telling(free_pace(table), MIN_STEADY_STEPS)
    return Paces(pace, pace)


def _ended_at(run: ComparedRun, table: StepTable) -> ComparedRun:
    """Returns a run with a part of its steps, as if it had ended there."""
    if run.series is not None and len(table) == run.series.steps:
        return run
    whole = run.summary.run
    ended = replace(whole, exit=replace(whole.exit, reason="limit"))
    summary = replace(run.summary, run=ended)
    return replace(run, summary=summary, series=series_of(table))


def _real_paces(run: ComparedRun) -> Paces:
    """Returns the paces of steps without checkpoints: how many a trial has is chance."""
    run = without_saves(run)
    if run.why_unusable() is not None:
        return Paces()
    return Paces(_in_turns(run.pace()), _in_turns(run.training_pace()))


def _in_turns(pace: Pace | None) -> Pace | None:
    return pace and replace(pace, wandering=min(pace.wandering, _TRIALS_WANDER))


def _too_few(trial: Trial, steady_steps: int) -> str:
    if trial.data == "free":
        return f"fewer than {MIN_STEADY_STEPS} steps on replayed batches"
    if trial.data == "alone":
        return f"fewer than {_FEWEST_BATCHES} batches"
    return f"{steady_steps} steady steps, {MIN_STEADY_STEPS} needed"


def _telling(pace: Pace | None, fewest: int) -> Pace | None:
    if pace is None or pace.steps_s is None or len(pace.steps_s) < fewest:
        return None
    return pace


def _outcome(
    summary: RunSummary, outcome: Outcome, console: Path, *, is_overdue: bool
) -> tuple[str, str | None]:
    if is_overdue:
        return TIMED_OUT, None
    end = summary.run.exit
    if outcome.interrupted or ENDING & set(outcome.signals_received):
        return INTERRUPTED, None
    detail = end.detail
    is_out = summary.out_of_memory is not None or (detail or "").startswith("out of memory")
    if is_out or any(name in (detail or "") for name in _OUT_OF_MEMORY_NAMES):
        return OUT_OF_MEMORY, _reason(summary, detail or "", console)
    if outcome.signal is not None:
        return FAILED, detail or f"ended by {signal.Signals(outcome.signal).name}"
    if outcome.status:
        return FAILED, _reason(summary, detail or f"exit status {outcome.status}", console)
    return OK, None


def _reason(summary: RunSummary, known: str, console: Path) -> str | None:
    """Returns how a script failed, with its own error message."""
    is_exception = summary.run.exit.reason == "exception"
    words = last_words(console, known if is_exception else None)
    if words is None:
        return known or None
    return words if is_exception or not known else f"{known}: {words}"


def _feeding(trial: Trial, summary: RunSummary) -> list[Loader]:
    """Returns the training loaders, or those of loader_alone."""
    if trial.data == "alone":
        return [loader for loader in summary.loaders if loader.site in trial.sites]
    return [loader for loader in summary.loaders if loader.role == TRAINING]


def _steps(trial: Trial, summary: RunSummary) -> int:
    if trial.data != "alone":
        return summary.training.steps
    return sum(loader.iterations for loader in _feeding(trial, summary))


def _read_bytes(loaders: Sequence[Loader]) -> float | None:
    sizes = [loader.fetch.read_bytes for loader in loaders if loader.fetch is not None]
    known = [float(size) for size in sizes if size is not None]
    return sum(known) if known else None


def _ground(trial: Trial, run: ComparedRun, outcome: str) -> dict[str, str]:
    ground = ground_of(run)
    if trial.data == "real" and outcome == OK:
        return ground
    # A loader alone uses no device, and a failed run may not have reached it.
    return {what: value for what, value in ground.items() if what not in (DEVICE, GPU)}


def _batches(summary: RunSummary) -> dict[str, float]:
    fetches = ((loader.site, loader.fetch) for loader in summary.loaders if loader.role == TRAINING)
    return {site: f.batch_bytes for site, f in fetches if f is not None and f.batch_bytes}


class CannotSave(TrainprofError):
    slug: ClassVar[str] = "cannot-save"
    exit_code: ClassVar[int] = 2


def save_json(path: Path, value: Any) -> None:
    """Writes a file of a `tune` run; CannotSave if the system refuses."""
    try:
        write_json(path, value)
    except OSError as error:
        why = "it is a directory" if path.is_dir() else error.strerror or str(error)
        raise CannotSave(
            f"cannot write {path}: {why}",
            hint="make room, then continue with --resume",
        ) from error


def first_epochs_of(summary: RunSummary) -> Mapping[str, FirstEpoch]:
    """Returns the first epoch of each stream, by the line that builds its loader."""
    first: dict[str, FirstEpoch] = {}
    for loader in sorted(summary.loaders, key=lambda each: each.id):
        if loader.role != TRAINING or not loader.is_iterable:
            continue
        if loader.ended_batches:
            first.setdefault(loader.site, FirstEpoch(loader.ended_batches[0], is_ended=True))
        elif loader.passes == 1 and not loader.ended:
            first.setdefault(loader.site, FirstEpoch(loader.iterations, is_ended=False))
    return first
