"""Estimates a search from an earlier run of the same script, before the first trial."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from trainprof.analysis.summary.tune import OK
from trainprof.findings.saved import saved_summary
from trainprof.launch.manifest import script_sha256
from trainprof.launch.placement import RUNS
from trainprof.launch.target import Target
from trainprof.record.files import read_run_json
from trainprof.record.masking import masked_argv
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.candidates import Plan
from trainprof.tune.search import too_short
from trainprof.tune.trial import WARM_UP, Measured, Trial
from trainprof.tune.trial_limits import (
    LEAST_LONG_STEPS,
    budget_of_a_change,
    duration,
    plan_sentence,
    steps_of_trials,
    trial_s,
)
from trainprof.tune.trial_reading import read

_NEWEST: Final = 20  # runs that are searched for one of the same script
_MOST_STEPS: Final = 20_000  # more take seconds to analyse


def plan_ahead(
    target: Target,
    budget_s: float,
    trial_steps: int | None,
    plan_of: Callable[[RunDirectory, Measured], Plan],
) -> str:
    """Returns the plan in a sentence; CannotTune if the budget is too small for one change."""
    recorded = _earlier_run(target)
    if recorded is None:
        return f"plan: the first run measures how many trials fit (budget: {duration(budget_s)})"
    directory, first = recorded
    steps = trial_steps or steps_of_trials(first, budget_s)
    takes_s = trial_s(first, steps) or first.seconds
    least_s = trial_s(first, trial_steps or min(first.steps, LEAST_LONG_STEPS)) or takes_s
    if 2 * least_s > budget_s:
        took = f"an earlier run made {first.steps} steps in {duration(first.seconds)}"
        raise too_short(budget_s, took, budget_of_a_change(takes_s, takes_s))
    plan = plan_of(directory, first)
    names = [candidate.name for candidate in plan.candidates]
    return plan_sentence(names, bool(plan.sites), takes_s, budget_s)


def _earlier_run(target: Target) -> tuple[RunDirectory, Measured] | None:
    """Returns the newest recording of the same command and script that shows its pace."""
    command, digest = masked_argv(target.words), script_sha256(target)
    runs: list[Path] = []
    with contextlib.suppress(OSError):
        newest = sorted(Path(RUNS).iterdir(), key=lambda path: -path.lstat().st_mtime_ns)
        runs = [path for path in newest if not path.is_symlink()][:_NEWEST]
    for path in runs if digest is not None else ():
        directory = RunDirectory(path)
        manifest = read_run_json(directory.manifest)
        if not isinstance(manifest, dict) or "kind" in manifest:
            continue
        if (manifest.get("command"), manifest.get("script_sha256")) != (command, digest):
            continue
        summary = saved_summary(directory)
        if summary is None or summary.training.steps > _MOST_STEPS:
            continue
        run = read(
            Trial(WARM_UP),
            1,
            directory,
            summary,
            outcome=OK,
            detail=None,
            failed_after=None,
            relative_to=path.parent,
        )
        if run.pace is not None:
            return directory, replace(run, seconds=summary.run.wall_s)
    return None
