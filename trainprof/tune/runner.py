"""Runs each trial in its own process, recorded as its own run."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trainprof.analysis.summary.tune import FAILED
from trainprof.launch.options import RunOptions, TrialOptions
from trainprof.launch.run import run
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.sandbox.sandbox import (
    CACHES,
    Sandbox,
    remove_tree,
    scratch_directory,
    words_without_sandbox,
)
from trainprof.tune.trial import WARM_UP, Limits, Measured, Trial, argument_of, label_of
from trainprof.tune.trial_output import end_of_errors, refusal_in
from trainprof.tune.trial_reading import measured

WOULD_FILL: Final = "stopped because its files nearly filled the disk"
# Replaced by the trial's name in arguments of the script.
PLACEHOLDER: Final = "{trial}"
SCRATCH: Final = "scratch"

# Documented variables that keep experiment trackers offline.
_OFFLINE: Final = {
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "file://{cwd}/mlruns",
    "COMET_START_ONLINE": "false",
    "COMET_MODE": "OFFLINE",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
}


@dataclass(frozen=True, slots=True)
class Script:
    """The command that is tuned: SCRIPT ARGS, or with `module` its ARGS."""

    words: tuple[str, ...]
    module: str | None = None

    def for_trial(self, name: str) -> tuple[str, ...]:
        return tuple(word.replace(PLACEHOLDER, name) for word in self.words)


@dataclass(frozen=True, slots=True)
class ScriptRunner:
    """Runs trials of a script in the directory of a `tune` run, sandboxed if possible."""

    script: Script
    directory: RunDirectory
    interval_s: float
    sandbox: Sandbox | None

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        began = time.monotonic()
        label = label_of(trial, number)
        path = self.directory.trials / label
        scratch = self.directory.path / SCRATCH / label
        # Leftovers of a `tune` that was killed.
        for left in (path, scratch):
            remove_tree(left)
        self.directory.trials.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in (scratch, scratch.parent / CACHES):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        cwd = Path.cwd()
        if self.sandbox is None:
            cwd = scratch_directory(scratch, cwd, but_for=self.directory.path)
            before = words_without_sandbox(cwd)
        else:
            before = self.sandbox.words(scratch, path)
        options = RunOptions(
            words=self.script.for_trial(argument_of(trial, number)),
            module=self.script.module,
            output=path,
            interval_s=self.interval_s,
            max_steps=limits.steps if trial.data != "alone" else None,
            max_time_s=limits.seconds,
            trial=TrialOptions(
                loaders=trial.loader_arguments(),
                sites=trial.sites,
                data=trial.data,
                batches=limits.steps if trial.data == "alone" else None,
                epoch_batches=trial.epoch_batches,
                settings=trial.settings(),
                scratch=scratch if self.sandbox is None and trial.name == WARM_UP else None,
                enough_s=limits.enough_s,
                enough_steps=limits.enough_steps,
            ),
            before=before,
            environment={name: value.format(cwd=cwd) for name, value in _OFFLINE.items()},
            cwd=cwd,
            keeps_console=True,
            ended_after_s=limits.killed_after_s,
        )
        try:
            finished = run(options)
            record = RunDirectory(path)
            run_of_trial = measured(
                trial,
                number,
                record,
                finished.outcome,
                is_overdue=finished.is_overdue,
                relative_to=self.directory.path,
            )
            if finished.is_full:
                run_of_trial = replace(run_of_trial, outcome=FAILED, detail=WOULD_FILL, pace=None)
            was_failing = self.sandbox is not None and run_of_trial.outcome == FAILED
            if was_failing and (why := refusal_in(end_of_errors(record.console))):
                run_of_trial = replace(run_of_trial, detail=f"{run_of_trial.detail}. {why}")
        finally:
            remove_tree(scratch)
        took_s = time.monotonic() - began
        return replace(run_of_trial, seconds=took_s, left_running=finished.left_running)
