"""How a trial is put to the script that it runs, and what the sandbox has to do with its result."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.planted_trials import FakeRunner, Planted

from trainprof.analysis.summary.tune import FAILED, OK, TIMED_OUT
from trainprof.launch.options import RunOptions
from trainprof.launch.outcome import Outcome
from trainprof.launch.run import FinishedRun
from trainprof.record.run_directory import RunDirectory
from trainprof.tune import runner
from trainprof.tune.runner import WOULD_FILL, Script, ScriptRunner
from trainprof.tune.sandbox.sandbox import Sandbox
from trainprof.tune.trial import (
    WARM_UP,
    Limits,
    Measured,
    Trial,
    argument_of,
    baseline,
    label_of,
    name_of,
)

SINGLE = Trial(name_of({"num_workers": 3, "persistent_workers": True}))
OF_TWO = Trial(name_of({"num_workers": {"a.py:1": 4, "a.py:2": 2}}))


@pytest.mark.parametrize(
    ("trial", "number", "name"),
    [
        (baseline(), 1, "baseline"),
        (SINGLE, 1, "num_workers-3_persistent_workers-True"),
        (SINGLE, 2, "num_workers-3_persistent_workers-True-run2"),
        (OF_TWO, 1, "num_workers-4_2"),
        (Trial("x" * 400), 1, "x" * 120),
    ],
)
def test_in_arguments_a_trial_has_a_name_that_no_parser_takes_apart(trial, number, name):
    script = Script(("train.py", "hydra.run.dir=runs/{trial}", "--lr=0.1"))
    words = script.for_trial(argument_of(trial, number))
    assert words == ("train.py", f"hydra.run.dir=runs/{name}", "--lr=0.1")
    assert label_of(SINGLE, 2) == f"{SINGLE.name}.2"


ENDED = Outcome(0, None, 1, 0, 0.0, 0.0, False, ())


@dataclass
class FakeScript:
    """A script that writes data/0.png, if it has a sandbox to write to.

    `asked` is how it was run, `entries` what was in the scratch directory before, each time.
    """

    directory: Path
    sandbox: Sandbox | None
    stderr: str = ""
    outcome: tuple[str, str | None] = (OK, None)
    finished: dict[str, Any] = field(default_factory=dict)
    asked: list[RunOptions] = field(default_factory=list)
    entries: list[set[str]] = field(default_factory=list)

    def scratch(self) -> Path:
        spec = json.loads(self.asked[-1].before[-1])
        return Path(spec["cwd"] if self.sandbox is None else spec["scratch"])

    def run(self, options: RunOptions) -> FinishedRun:
        self.asked.append(options)
        self.entries.append({path.name for path in self.scratch().iterdir()})
        if self.sandbox is not None:
            for number in range(len(self.sandbox.overlays)):
                (self.scratch() / str(number) / "upper").mkdir(parents=True)
            written = self.scratch() / "0/upper/data/0.png"
            written.parent.mkdir()
            written.write_bytes(bytes(7))
            (self.scratch() / "0/work/work").mkdir(parents=True, mode=0)  # as overlays leave them
        assert options.output is not None
        directory = RunDirectory(options.output)
        directory.console.mkdir(parents=True)
        (directory.console / "stderr").write_text(self.stderr)
        return FinishedRun(directory, ENDED, None, (), **self.finished)

    def measured(self, trial: Trial, number: int, *_: object, **__: object) -> Measured:
        measured = FakeRunner(Planted(lambda _: 0.01)).run(trial, number, Limits(30, 60.0))
        outcome, detail = self.outcome
        return replace(measured, outcome=outcome, detail=detail)

    def trial(self, trial: Trial) -> Measured:
        directory = RunDirectory(self.directory / "tune")
        made = ScriptRunner(Script(("train.py",)), directory, interval_s=0.5, sandbox=self.sandbox)
        return made.run(trial, 1, Limits(30, 60.0))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeScript:
    monkeypatch.chdir(tmp_path)
    Path("train.bin").touch()
    sandbox = Sandbox((str(tmp_path),), (), None, str(tmp_path))
    planted = FakeScript(tmp_path, sandbox)
    monkeypatch.setattr(runner, "run", planted.run)
    monkeypatch.setattr(runner, "measured", planted.measured)
    return planted


def test_a_trial_runs_in_the_sandbox_and_alone_its_record_is_outside(script):
    script.trial(SINGLE)
    [options] = script.asked
    spec = json.loads(options.before[-1])
    assert spec["overlays"] == [str(script.directory)]
    assert spec["records"] == [str(options.output)]
    assert spec["scratch"] == str(script.directory / "tune/scratch" / SINGLE.name)
    assert spec["cwd"] == str(options.cwd) == str(script.directory)
    assert spec["shared"] == str(script.directory / "tune/scratch/caches")
    assert options.trial.scratch is None
    assert options.environment["MLFLOW_TRACKING_URI"] == f"file://{script.directory}/mlruns"
    assert script.entries == [set()]


@pytest.mark.parametrize("outcome", [OK, FAILED, TIMED_OUT])
def test_nothing_of_what_a_trial_or_an_earlier_start_wrote_is_left(script, outcome):
    for left in ("trials", "scratch"):
        (script.directory / "tune" / left / SINGLE.name / "old").mkdir(parents=True)
    script.outcome = (outcome, None)
    script.trial(SINGLE)
    assert script.entries == [set()]
    record = script.directory / "tune/trials" / SINGLE.name
    assert [path.name for path in record.iterdir()] == ["console"]
    left = [path.name for path in (script.directory / "tune/scratch").iterdir()]
    assert left == ["caches"]  # which the trials after it go on with


REFUSED = "OSError: [Errno 30] Read-only file system: '/mnt/x'"


@pytest.mark.parametrize(
    ("outcome", "stderr", "is_sandboxed", "is_refusal"),
    [
        (FAILED, REFUSED, True, True),
        (FAILED, REFUSED, False, False),
        (FAILED, "ValueError: no", True, False),
        (OK, REFUSED, True, False),  # it went on without
    ],
)
def test_a_trial_that_fails_at_what_the_sandbox_refuses_says_so(
    script, outcome, stderr, is_sandboxed, is_refusal
):
    script.sandbox = script.sandbox if is_sandboxed else None
    script.stderr, script.outcome = f"{stderr}\n", (outcome, "exit status 1")
    detail = script.trial(SINGLE).detail
    assert detail.startswith("exit status 1")
    assert ("EROFS" in detail) is is_refusal


def test_a_trial_that_would_fill_the_disk_failed_however_it_ended(script):
    script.finished = {"is_full": True, "left_running": ("tensorboard",)}
    measured = script.trial(SINGLE)
    assert (measured.outcome, measured.detail, measured.is_ok) == (FAILED, WOULD_FILL, False)
    assert measured.left_running == ("tensorboard",)


def test_without_a_sandbox_a_trial_runs_in_a_scratch_directory(script):
    script.sandbox = None
    script.trial(SINGLE)
    spec = json.loads(script.asked[0].before[-1])
    assert spec["overlays"] is None
    assert spec["cwd"] == str(script.asked[0].cwd)
    assert spec["cwd"] == str(script.directory / "tune/scratch" / SINGLE.name)
    assert script.entries == [{"train.bin"}]
    mlflow = script.asked[0].environment["MLFLOW_TRACKING_URI"]
    assert mlflow == f"file://{spec['cwd']}/mlruns"
    assert Path("train.bin").exists()
    assert not Path(spec["cwd"]).exists()
    # Its first trial alone records what it writes elsewhere.
    script.trial(Trial(WARM_UP))
    assert [made.trial.scratch for made in script.asked] == [None, script.scratch()]
