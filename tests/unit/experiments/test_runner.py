"""How a trial is put to the script that it runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.planted_trials import FakeRunner, Planted

from trainprof.analysis.tuning import FAILED, INTERRUPTED, TIMED_OUT, TOO_FEW_STEPS
from trainprof.experiments import runner
from trainprof.experiments.runner import NOT_REACHED, Script, ScriptRunner, argument_of, label_of
from trainprof.experiments.trial import (
    WARM_UP,
    Limits,
    Measured,
    Prepared,
    Trial,
    baseline,
    name_of,
)
from trainprof.launch.options import RunOptions
from trainprof.launch.outcome import Outcome
from trainprof.launch.run import FinishedRun
from trainprof.record.names import SCRATCH_INDEX
from trainprof.record.run_directory import RunDirectory

SINGLE = Trial(name_of({"num_workers": 3, "persistent_workers": True}))
OF_TWO = Trial(name_of({"num_workers": {"a.py:1": 4, "a.py:2": 2}}))


@pytest.mark.parametrize("trial", [baseline(), SINGLE, OF_TWO, Trial("x" * 400)])
@pytest.mark.parametrize("number", [1, 2])
def test_in_arguments_a_trial_has_a_name_that_no_parser_takes_apart(
    trial: Trial, number: int
) -> None:
    script = Script(("train.py", "hydra.run.dir=runs/{trial}", "--lr=0.1"))
    words = script.for_trial(argument_of(trial, number))
    assert re.fullmatch(r"hydra\.run\.dir=runs/[A-Za-z0-9_-]{1,130}", words[1])
    assert (words[0], words[2]) == ("train.py", "--lr=0.1")


def test_that_name_is_of_one_run_alone() -> None:
    runs = [(SINGLE, 1), (SINGLE, 2), (OF_TWO, 1), (Trial("num_workers=4"), 2), (baseline(), 1)]
    assert len({argument_of(*run) for run in runs}) == len(runs)
    assert argument_of(SINGLE, 1) == "num_workers-3_persistent_workers-True"
    assert argument_of(baseline(), 1) == "baseline"


def test_its_directory_keeps_the_name_that_the_page_shows() -> None:
    assert label_of(SINGLE, 2) == f"{SINGLE.name}.2"


ENDED = Outcome(1, 0, None, 0, 1, 0, 0.0, 0.0, False, ())
MISSING = "RuntimeError: [Errno 2] No such file: 'data/0.png'"


@pytest.fixture
def scratches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Trials that write data/0.png, and leave a process behind; their scratch directories."""
    monkeypatch.chdir(tmp_path)
    seen: list[Path] = []

    def run(options: RunOptions) -> FinishedRun:
        assert options.trial is not None
        scratch = options.trial.scratch
        assert scratch is not None
        kept = scratch / "files" / str(tmp_path / "data/0.png").lstrip("/")
        kept.parent.mkdir(parents=True)
        kept.write_bytes(bytes(7))
        (scratch / SCRATCH_INDEX).touch()
        seen.append(scratch)
        assert options.output is not None
        directory = RunDirectory(options.output)
        directory.console.mkdir()
        (directory.console / "stderr").write_text(f"{MISSING}\n")
        return FinishedRun(directory, ENDED, None, (), left_running=("tensorboard",))

    monkeypatch.setattr(runner, "run", run)
    return seen


def ran(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, *, outcome: str = "ok", detail: str | None = None
) -> Measured:
    def measured(trial: Trial, number: int, *_: object, **__: object) -> Measured:
        found = FakeRunner(Planted(lambda _: 0.01)).run(trial, number, Limits(30, 60.0))
        # Nobody waits that long: what was written just now came before the first batch.
        return replace(found, outcome=outcome, detail=detail, startup_s=1000.0)

    monkeypatch.setattr(runner, "measured", measured)
    with_script = ScriptRunner(Script(("train.py",)), RunDirectory(Path("tune")), interval_s=0.5)
    return with_script.run(trial, 1, Limits(30, 60.0))


def test_what_the_script_as_it_is_prepares_and_leaves_running_is_told(
    scratches: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ran(baseline(), monkeypatch)
    assert (found.prepared, found.left_running) == (Prepared(1, 7, "data/"), ("tensorboard",))
    assert ran(SINGLE, monkeypatch).prepared is None
    assert not any(scratch.exists() for scratch in scratches)


def test_a_trial_that_misses_what_it_has_written_says_what_to_do(
    scratches: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ran(baseline(), monkeypatch, outcome=FAILED, detail=MISSING)
    assert (found.detail or "").startswith(f"{MISSING}; it had written that file in this trial")
    Path("data").mkdir()
    Path("data/0.png").touch()
    assert ran(baseline(), monkeypatch, outcome=FAILED, detail=MISSING).detail == MISSING
    assert not any(scratch.exists() for scratch in scratches)


@pytest.mark.parametrize(
    ("outcome", "detail", "status", "told"),
    [
        (TOO_FEW_STEPS, "steady steps: 0", 0, (FAILED, NOT_REACHED)),
        (TIMED_OUT, None, None, (FAILED, NOT_REACHED)),
        (FAILED, "exit status 1", 1, (FAILED, f"exit status 1; {NOT_REACHED}")),
        (FAILED, "exit status 125", 125, (FAILED, "exit status 125")),  # nothing was started
        (INTERRUPTED, None, None, (INTERRUPTED, None)),
    ],
)
def test_a_trial_that_nothing_of_ours_got_into_is_the_last_one(
    outcome: str,
    detail: str | None,
    status: int | None,
    told: tuple[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(options: RunOptions) -> FinishedRun:
        assert options.output is not None
        assert options.trial is not None
        assert options.trial.scratch is not None
        options.trial.scratch.mkdir(parents=True)
        directory = RunDirectory(options.output)
        directory.console.mkdir()
        return FinishedRun(directory, replace(ENDED, status=status), None, ())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run", run)
    found = ran(Trial(WARM_UP), monkeypatch, outcome=outcome, detail=detail)
    assert (found.outcome, found.detail) == told
    assert not found.is_ok
