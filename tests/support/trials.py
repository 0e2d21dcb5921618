"""Trials of `tune` inside this process: what they are asked for, and what they noted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.session import Recorder

from trainprof.analysis.pipeline.trial_pace import free_pace, free_steps
from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.timeline.step_series import read_recorded_steps
from trainprof.inside.catalogue import default_probes
from trainprof.inside.session import Session
from trainprof.launch.options import TrialOptions
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Topic
from trainprof.tune.runner import Script, ScriptRunner
from trainprof.tune.sandbox.sandbox import NoSandbox, Sandbox, make_sandbox


def site_in(function: Callable[..., Any]) -> str:
    """Returns the site of the first line inside a function of a test's."""
    code: Any = function.__code__  # type: ignore[attr-defined]
    return f"{os.path.relpath(code.co_filename)}:{code.co_firstlineno + 1}"


def start_trial(recorder: Recorder, **asked: Any) -> Session:
    """Starts all probes of a run with a trial; `asked` as TrialOptions takes it."""
    trial = TrialOptions(**asked).to_json()
    return recorder.start(*default_probes(trial), options={"trial": trial})


def free_pace_in(directory: RunDirectory) -> Pace | None:
    """Returns the pace of a run's steps on free data, None where it has none."""
    recorded = read_recorded_steps(directory)
    free = None if recorded is None else free_steps(recorded)
    return None if free is None else free_pace(free.table)


def end_of_process(recorder: Recorder) -> None:
    recorder.read()  # opens the log, as torch's import does in a script's process
    recorder.session.on_end()


def trial_note(recorder: Recorder) -> dict[str, Any]:
    """Returns the latest that the trial noted, by key."""
    latest: dict[str, Any] = {"applied": {}, "refused": {}, "losses": []}
    for note in recorder.read().notes(Topic.TRIAL):
        latest |= note
    return latest


def faults(recorder: Recorder) -> list[Any]:
    recording = recorder.read()
    return [*recording.notes(Topic.PROBE_FAILED), *recording.notes(Topic.PROBE_UNAVAILABLE)]


def runner_in(directory: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> ScriptRunner:
    """Returns what runs trials of a command in a directory, in its sandbox where there is one."""
    monkeypatch.chdir(directory)
    try:
        sandbox: Sandbox | None = make_sandbox(directory, ())
    except NoSandbox:
        sandbox = None
    tune = RunDirectory(directory / "tune")
    return ScriptRunner(Script(words), tune, interval_s=0.5, sandbox=sandbox)
