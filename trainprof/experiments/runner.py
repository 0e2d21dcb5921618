"""Runs trials: each in a process of its own, recorded as a run of its own."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trainprof.analysis.tuning import BASELINE, FAILED, INTERRUPTED
from trainprof.experiments.prepared_files import hint_of_missing_file, prepared_files
from trainprof.experiments.reading import Ended, measured
from trainprof.experiments.trial import Limits, Measured, Trial
from trainprof.launch.manifest import NS
from trainprof.launch.options import RunOptions, TrialOptions
from trainprof.launch.run import run
from trainprof.record.names import SCRATCH_INDEX
from trainprof.record.run_directory import RunDirectory

NOT_REACHED: Final = (
    "trainprof got into no Python of it, so that nothing it wrote or removed was kept from your "
    "files"
)
# What a command ends with that started nothing, a Python that cannot keep writes apart included.
_NOT_STARTED: Final = 125
# In an argument of the script: what each trial puts its own name in place of.
PLACEHOLDER: Final = "{trial}"
SCRATCH: Final = "scratch"
# A file's name may have 255 bytes, and some are put before and behind it.
_LONGEST_NAME: Final = 120


@dataclass(frozen=True, slots=True)
class Script:
    """The command that is tuned: SCRIPT ARGS, or with `module` its ARGS."""

    words: tuple[str, ...]
    module: str | None = None

    def for_trial(self, name: str) -> tuple[str, ...]:
        return tuple(word.replace(PLACEHOLDER, name) for word in self.words)


class ScriptRunner:
    """Runs trials of a script under a `tune` run's directory.

    Args:
        script: What is run.
        directory: Of the `tune` run.
        interval_s: The sampler's interval.
    """

    def __init__(self, script: Script, directory: RunDirectory, *, interval_s: float) -> None:
        self._script = script
        self._directory = directory
        self._interval_s = interval_s

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        began = time.monotonic()
        label = label_of(trial, number)
        path = self._directory.trials / label
        # What another `tune` had begun and did not end.
        shutil.rmtree(path, ignore_errors=True)
        self._directory.trials.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path / SCRATCH
        options = RunOptions(
            words=self._script.for_trial(argument_of(trial, number)),
            module=self._script.module,
            output=path,
            interval_s=self._interval_s,
            max_steps=limits.steps if trial.data != "alone" else None,
            max_time_s=limits.seconds,
            trial=TrialOptions(
                loaders=trial.loader_arguments(),
                sites=trial.sites,
                data=trial.data,
                batches=limits.steps if trial.data == "alone" else None,
                pass_batches=trial.pass_batches,
                settings=trial.settings(),
                scratch=scratch,
                enough_s=limits.enough_s,
                enough_steps=limits.enough_steps,
            ),
            keeps_console=True,
            ended_after_s=limits.killed_after_s,
        )
        spawned_ns = time.time_ns()
        try:
            finished = run(options)
            found = measured(
                trial,
                number,
                RunDirectory(path),
                Ended(finished.outcome, finished.is_overdue),
                relative_to=self._directory.path,
            )
            if not (scratch / SCRATCH_INDEX).exists():
                found = _not_reached(found, finished.outcome.status)
            found = _with_files(found, RunDirectory(path), scratch, spawned_ns)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return replace(found, seconds=time.monotonic() - began, left_running=finished.left_running)


def _not_reached(run: Measured, status: int | None) -> Measured:
    """Returns a trial in which nothing of ours was ahead of the script: it is not to be rerun."""
    if run.outcome == INTERRUPTED or status == _NOT_STARTED:
        return run
    why = f"{run.detail}; {NOT_REACHED}" if run.outcome == FAILED and run.detail else NOT_REACHED
    return replace(run, outcome=FAILED, detail=why, pace=None, training_pace=None)


def _with_files(run: Measured, directory: RunDirectory, scratch: Path, spawned_ns: int) -> Measured:
    """Adds what a trial prepared, and what that has to do with its failing."""
    try:
        cwd = Path.cwd()
    except OSError:  # somebody removed it
        return run
    if run.outcome == FAILED:
        hint = hint_of_missing_file(directory.console, scratch, cwd)
        return run if hint is None else replace(run, detail=f"{run.detail or FAILED}; {hint}")
    if run.trial.name != BASELINE:
        return run
    first_batch_ns = spawned_ns + int(run.startup_s * NS)
    return replace(run, prepared=prepared_files(scratch, cwd, until_ns=first_batch_ns))


def label_of(trial: Trial, number: int) -> str:
    """Returns a trial's name as a file's: the first run of it has its plain name."""
    plain = re.sub(r"[^A-Za-z0-9._=,-]+", "_", trial.name)[:_LONGEST_NAME]
    return plain if number == 1 else f"{plain}.{number}"


def argument_of(trial: Trial, number: int) -> str:
    """Returns a trial's name as it may stand in an argument: letters, digits, `-` and `_`.

    Hydra and mmengine take what stands around a `=` or a `,` apart.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", trial.name.replace("=", "-"))[:_LONGEST_NAME]
    return plain if number == 1 else f"{plain}-run{number}"
