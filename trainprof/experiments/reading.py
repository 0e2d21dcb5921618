"""Reads what one run of a trial showed, from its run directory."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trainprof.analysis.comparable_facts import DEVICE, ground_of
from trainprof.analysis.compared_run import ComparedRun, read_compared_run
from trainprof.analysis.ending import MAX_TIME
from trainprof.analysis.facts import number_at
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.speedup import Pace
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.summarize import summarize
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.summary_json import to_jsonable
from trainprof.analysis.trial_notes import read_trial_notes
from trainprof.analysis.trial_pace import alone_pace, free_pace
from trainprof.analysis.tuning import (
    FAILED,
    INTERRUPTED,
    NOT_APPLIED,
    OK,
    OUT_OF_MEMORY,
    TIMED_OUT,
    TOO_FEW_STEPS,
)
from trainprof.experiments.last_words import last_words
from trainprof.experiments.trial import Measured, Trial
from trainprof.launch.outcome import Outcome
from trainprof.launch.signals import ENDING
from trainprof.record.run_directory import RunDirectory, write_json

# Of a pass's batches that are drawn alone; fewer tell nothing.
_FEWEST_BATCHES: Final = MIN_STEADY_STEPS
# Trials follow one another, in turns with the script as it is: a virtual machine's cores wander
# less between those than between any two runs.
_TRIALS_WANDER: Final = 0.2
_OUT_OF_MEMORY_NAMES: Final = ("OutOfMemoryError", "MemoryError")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a trial's script came to its end, as its parent saw it."""

    outcome: Outcome
    is_overdue: bool


def measured(
    trial: Trial,
    number: int,
    directory: RunDirectory,
    ended: Ended,
    *,
    relative_to: Path,
) -> Measured:
    """Reads a trial that has ended, and saves its summary as `run` does.

    Returns:
        What it showed; how long it took is for its runner to tell.
    """
    summary = summarize(directory)
    write_json(directory.summary, to_jsonable(summary))
    outcome, detail = _outcome(summary, ended, directory.console)
    failed_after = None
    if outcome == FAILED and summary.run.exit.after_limit is not None:
        # What was to be measured was: who comes then may miss what the whole training writes.
        outcome, detail, failed_after = OK, None, detail
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


def read(
    trial: Trial,
    number: int,
    directory: RunDirectory,
    summary: RunSummary,
    *,
    outcome: str,
    detail: str | None,
    failed_after: str | None,
    relative_to: Path,
) -> Measured:
    """Returns what a saved run of a trial showed."""
    run = read_compared_run(directory, summary)
    notes = read_trial_notes(directory)
    pace, training_pace = _paces(trial, run, directory, summary) if outcome == OK else (None, None)
    if outcome == OK and notes.refused and not notes.applied and trial.overrides:
        outcome, detail = NOT_APPLIED, "; ".join(notes.refused.values())
    elif outcome == OK and pace is None:
        outcome = TOO_FEW_STEPS
        detail = _too_few(trial, run.steady_steps())
    return Measured(
        trial=trial,
        number=number,
        directory=str(directory.path.relative_to(relative_to)),
        outcome=outcome,
        detail=detail,
        seconds=0.0,
        pace=pace,
        training_pace=training_pace,
        run_s=summary.run.wall_s if summary.run.exit.is_whole and trial.data == "real" else None,
        steps=summary.training.steps,
        training_s=summary.phases.training_s,
        was_cut=outcome == TIMED_OUT or summary.run.exit.limit == MAX_TIME,
        failed_after=failed_after,
        losses=tuple(notes.losses),
        refused=notes.refused,
        uncontained=tuple(notes.uncontained),
        copied=notes.copied,
        figures=_figures(summary),
        conditions=_conditions(run),
        ground=_ground(trial, run, outcome),
    )


def _paces(
    trial: Trial, run: ComparedRun, directory: RunDirectory, summary: RunSummary
) -> tuple[Pace | None, Pace | None]:
    """Returns that of steady steps, or of a loader's batches, and that of training."""
    if trial.data == "alone":
        return _telling(alone_pace(directory, trial.sites), _FEWEST_BATCHES), None
    if trial.data == "free":
        pace = _telling(free_pace(directory), MIN_STEADY_STEPS)
        return pace, pace
    if not run.is_telling():
        return None, None
    return _in_turns(run.pace()), _in_turns(run.training_pace())


def _in_turns(pace: Pace | None) -> Pace | None:
    return pace and replace(pace, wandering=min(pace.wandering, _TRIALS_WANDER))


def _too_few(trial: Trial, steady_steps: int) -> str:
    if trial.data == "free":
        return f"under {MIN_STEADY_STEPS} steps on free data, which begins after the batches kept"
    if trial.data == "alone":
        return f"under {_FEWEST_BATCHES} batches"
    return f"steady steps: {steady_steps}; it takes {MIN_STEADY_STEPS}"


def _telling(pace: Pace | None, fewest: int) -> Pace | None:
    if pace is None or pace.steps_s is None or len(pace.steps_s) < fewest:
        return None
    return pace


def _outcome(summary: RunSummary, ended: Ended, console: Path) -> tuple[str, str | None]:
    outcome, end = ended.outcome, summary.run.exit
    if ended.is_overdue:
        return TIMED_OUT, None
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
    """Returns how a script failed, with what it wrote of that itself."""
    is_exception = summary.run.exit.reason == "exception"
    told = last_words(console, known if is_exception else None)
    if told is None:
        return known or None
    return told if is_exception or not known else f"{known}: {told}"


def _figures(summary: RunSummary) -> dict[str, float]:
    system = summary.system
    found: dict[str, float | None] = {
        "read_bytes": _read_bytes(summary),
        "device_peak_bytes": _device_peak(summary),
    }
    if system is not None:
        found["peak_memory_bytes"] = number_at(system.memory, "tree_rss_bytes", "max")
        found["cpu_percent"] = number_at(system.cpu, "tree_percent", "mean")
    return {name: value for name, value in found.items() if value is not None}


def _device_peak(summary: RunSummary) -> float | None:
    peaks = [
        float(device.memory.peak_allocated_bytes)
        for device in summary.devices or ()
        if device.memory is not None and device.memory.peak_allocated_bytes is not None
    ]
    return max(peaks, default=None)


def _read_bytes(summary: RunSummary) -> float | None:
    told = [
        loader.fetch.read_bytes
        for loader in summary.loaders
        if loader.role == TRAINING and loader.fetch is not None
    ]
    known = [float(one) for one in told if one is not None]
    return sum(known) if known else None


def _ground(trial: Trial, run: ComparedRun, outcome: str) -> dict[str, str]:
    found = ground_of(run)
    if trial.data != "real" or outcome != OK:
        # A loader alone has nothing to do on it, and one that failed may not have come so far.
        found.pop(DEVICE, None)
    return found


def _conditions(run: ComparedRun) -> dict[str, float]:
    system = run.summary.system
    cpu = system.cpu if system is not None else {}
    told = {
        "cpu_mhz": number_at(cpu, "cpu_mhz", "mean"),
        "stolen_share": number_at(cpu, "stolen_share"),
        "throttled_share": number_at(cpu, "throttled_share"),
        "disturbance": run.disturbance() if system is not None else None,
    }
    return {name: value for name, value in told.items() if value is not None}
