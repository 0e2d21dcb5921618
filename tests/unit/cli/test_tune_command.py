"""`trainprof tune`: what it refuses to begin, what it shows meanwhile, and how it goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.analysis.summary.tune import INTERRUPTED, TOO_FEW_STEPS
from trainprof.cli.app import run_command
from trainprof.record.run_directory import RunDirectory
from trainprof.tune import journal, session
from trainprof.tune.runner import label_of
from trainprof.tune.sandbox.sandbox import NoSandbox, Sandbox
from trainprof.tune.trial import WARM_UP, Limits, Measured, Trial

Captured = pytest.CaptureFixture[str]
GO_ON = ("--resume", "t", "--budget", "10m", "train.py")


def told(capsys: Captured, *words: str, status: int = 0) -> dict[str, Any]:
    assert run_command(["tune", "--format=json", *words]) == status
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def complaint(capsys: Captured, *words: str, status: int = 2) -> str:
    assert run_command(["tune", *words]) == status
    return capsys.readouterr().err


def test_what_is_faster_is_recommended_on_stdout(planted: list[str], capsys: Captured) -> None:
    assert run_command(["tune", "-o", "t", "train.py", "--epochs", "3"]) == 0
    shown = capsys.readouterr()
    assert "AS FAST with num_workers=2" in shown.out
    plan, _, rest = shown.err.partition("trial 1: warm_up: ")
    assert "trainprof: plan: the first run shows how many trials fit into 10m 00s" in plan
    assert "trainprof: each trial takes about 4 s: to be tried in the remaining" in rest
    assert "trial 4 of about " in shown.err
    assert "steps/s" in shown.err
    assert run_command(["report", "t"]) == 0
    assert capsys.readouterr().out == shown.out


def test_a_warm_up_of_few_steps_is_no_failure(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = session.ScriptRunner

    class Short(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            found = super().run(trial, number, limits)
            is_first = trial.name == WARM_UP
            return replace(found, outcome=TOO_FEW_STEPS, pace=None) if is_first else found

    monkeypatch.setattr(session, "ScriptRunner", Short)
    assert run_command(["tune", "-o", "t", "train.py"]) == 0
    shown = capsys.readouterr().err
    assert "warm_up: done, not counted" in shown
    assert TOO_FEW_STEPS not in shown


def test_it_is_quiet_if_asked_to_be(planted: list[str], capsys: Captured) -> None:
    assert run_command(["tune", "-q", "-o", "t", "train.py"]) == 0
    assert capsys.readouterr().err == ""


def test_the_json_is_the_contracts(planted: list[str], capsys: Captured) -> None:
    found = told(capsys, "-o", "t", "train.py")
    names = [trial["name"] for trial in found["trials"]]
    assert names[:3] == ["baseline", "ceiling", "loader_alone"]
    assert set(found["trials"][1]["speedup"]) == {"low", "mid", "high"}
    assert found["recommended"]["overrides"] == {"num_workers": 2}
    assert found == json.loads(Path("t/summary.json").read_text())


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_before_anything_is_known_says_how_to_begin_again(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    runner = session.ScriptRunner

    class Stopped(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            found = super().run(trial, number, limits)
            return replace(found, outcome=INTERRUPTED, pace=None) if len(planted) == at else found

    monkeypatch.setattr(session, "ScriptRunner", Stopped)
    shown = complaint(capsys, "-o", "t", "train.py", status=130)
    assert "nothing is known yet" in shown
    assert "--resume t" in shown
    monkeypatch.setattr(session, "ScriptRunner", runner)
    assert run_command(["report", "t"]) == 2
    shown = capsys.readouterr().err
    assert "once there is one" in shown
    assert "tune --resume " in shown


def test_one_that_ran_out_of_time_goes_on_where_it_was(
    planted: list[str], capsys: Captured
) -> None:
    begun = told(capsys, "-o", "t", "--budget", "15s", "--trial-steps", "100", "train.py")
    assert begun["tuning"]["ended_by"] == "budget"
    before = list(planted)
    ended = told(capsys, "--resume", "t", "--budget", "10m", "train.py")
    assert ended["tuning"]["ended_by"] == "finished"
    again = planted[len(before) :]
    assert "warm_up" not in again
    assert "ceiling" in before
    assert again[0] not in before or again[0] == "baseline"
    assert ended["recommended"]["overrides"] == {"num_workers": 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: Path("t/tune.json").write_text("{"), "is damaged"),
        (lambda: Path("t/tune.json").unlink(), "is no `tune` run"),
    ],
)
def test_what_cannot_be_gone_on_with_is_said(
    planted: list[str], capsys: Captured, change: Callable[[], object], said: str
) -> None:
    told(capsys, "-o", "t", "train.py")
    change()
    assert said in complaint(capsys, "--resume", "t", "train.py")


def test_what_the_budget_cut_short_is_made_again(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = session.ScriptRunner

    class Cutting(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            found = super().run(trial, number, limits)
            if not (trial.overrides and limits.is_of_budget):
                return found
            return replace(found, outcome=TOO_FEW_STEPS, pace=None, was_cut=True)

    monkeypatch.setattr(session, "ScriptRunner", Cutting)
    begun = told(capsys, "-o", "t", "--budget", "30s", "--trial-steps", "100", "train.py")
    assert begun["trials"][-1]["outcome"] == "cut short"
    assert begun["trials"][0]["outcome"] == "ok"
    assert begun["tuning"]["ended_by"] == "budget"
    names = [row["name"] for row in begun["trials"] if row["outcome"] == "cut short"]
    for name in names:
        assert planted.count(name) == 1
        Path("t/trials", name).rmdir()  # as the real runner begins by doing
    ended = told(capsys, "--resume", "t", "--budget", "10m", "train.py")
    assert all(planted.count(name) > 1 for name in names)
    assert {row["outcome"] for row in ended["trials"]} == {"ok"}


HERE = {"platform": "linux x86_64", "CPU": "EPYC", "CPU cores": "8", "torch": "2.13.0"}


def on_another_machine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session, "ground_now", lambda target: HERE | {"CPU": "Xeon"})


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (lambda patch: None, ["--trial-steps", "90"], "--trial-steps was 80 and is 90"),
        (lambda patch: None, ["--interval", "2s"], "--interval was 0.5 and is 2"),
        (lambda patch: None, ["-o", "elsewhere"], "the output was "),
        (lambda patch: Path("train.py").write_text("1\n"), [], "train.py was changed since"),
        (lambda patch: Path("dataset.py").write_text("1\n"), [], "dataset.py was changed since"),
        (lambda patch: patch.setenv("OMP_NUM_THREADS", "7"), [], "OMP_NUM_THREADS was not set and"),
        (on_another_machine, [], "CPU was EPYC and is Xeon: its trials"),
    ],
)
def test_what_would_make_trials_unlike_is_refused_with_what_they_were_begun_with(
    planted: list[str],
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], object],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    files = {"train.py": "import dataset\n", "dataset.py": "size = 1\n"}
    for name, text in files.items():
        Path(name).write_text(text)
    told(capsys, "-o", "t", "--budget", "15s", "--trial-steps", "80", "train.py")
    host = {"platform": "linux 6.1 x86_64", "cpu": "EPYC", "usable_cores": 8.0}
    Path("t/trials/baseline/manifest.json").write_text(json.dumps({"host": host}))
    before = list(planted)
    with monkeypatch.context() as patch:
        change(patch)
        assert said in " ".join(complaint(capsys, "--resume", "t", *words, "train.py").split())
    assert planted == before
    for name, text in files.items():
        Path(name).write_text(text)
    again = ("--trial-steps", "80", "--interval", "0.5", "-o", "t", "--budget", "10m")
    ended = told(capsys, "--resume", "t", *again, "train.py")["tuning"]
    assert (ended["ended_by"], ended["trial_steps"]) == ("finished", 80)


def test_the_samplers_interval_is_that_of_the_beginning(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals: list[float] = []
    runner = session.ScriptRunner

    class Noting(runner):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            script: object,
            directory: RunDirectory,
            *,
            interval_s: float,
            sandbox: Sandbox | None,
        ) -> None:
            super().__init__(script, directory, interval_s=interval_s, sandbox=sandbox)
            intervals.append(interval_s)

    monkeypatch.setattr(session, "ScriptRunner", Noting)
    told(capsys, "-o", "t", "--interval", "2s", "--budget", "15s", "train.py")
    told(capsys, "--resume", "t", "train.py")
    assert intervals == [2.0, 2.0]


def test_changes_of_the_numbers_may_be_allowed_later_and_stay_so(
    planted: list[str], capsys: Captured
) -> None:
    told(capsys, "-o", "t", "train.py")
    allowed = []
    for words in (["--allow-numerics"], []):
        told(capsys, "--resume", "t", *words, "train.py")
        allowed.append(json.loads(Path("t/tune.json").read_text())["allow_numerics"])
    assert allowed == [True, True]


def test_a_directory_in_the_place_of_the_summary_is_named(
    planted: list[str], capsys: Captured
) -> None:
    told(capsys, "-o", "t", "train.py")
    Path("t/summary.json").unlink()
    Path("t/summary.json").mkdir()
    shown = " ".join(complaint(capsys, *GO_ON).split())
    assert "summary.json cannot be written: a directory is in its place" in shown
    assert "t/summary.json, then go on with --resume" in shown
    assert run_command(["report", "t"]) == 2
    assert "is a `tune` run: only its whole result is shown" in capsys.readouterr().err
    Path("t/summary.json").rmdir()
    os.mkfifo("t/summary.json")
    assert told(capsys, *GO_ON)["tuning"]["ended_by"] == "finished"
    assert Path("t/summary.json").is_file()


def test_a_trial_on_another_device_is_told_and_not_counted(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(capsys, "-o", "t", "--budget", "15s", "--trial-steps", "100", "train.py")
    begun, runner, read = (
        json.loads(Path("t/tune.json").read_text()),
        session.ScriptRunner,
        journal.read,
    )
    shown_by = {"device": "cuda (NVIDIA T4)"}

    class Moved(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            return replace(super().run(trial, number, limits), ground=shown_by)

    def read_on_another(*words: Any, **named: Any) -> Measured:
        return replace(read(*words, **named), ground={"device": "cuda (NVIDIA H100)"})

    monkeypatch.setattr(session, "ScriptRunner", Moved)
    monkeypatch.setattr(journal, "read", read_on_another)
    shown = " ".join(complaint(capsys, "--resume", "t", "--budget", "10m", "train.py").split())
    assert "device was cuda (NVIDIA H100) and is cuda (NVIDIA T4): its trials" in shown
    assert json.loads(Path("t/tune.json").read_text())["done"] == begun["done"]
    name = planted[-1]
    Path("t/trials", label_of(Trial(name), planted.count(name))).rmdir()
    shown_by["device"] = "cuda (NVIDIA H100)"
    assert (
        told(capsys, "--resume", "t", "--budget", "10m", "train.py")["tuning"]["ended_by"]
        == "finished"
    )


def refused(directory: Path, words: object) -> Sandbox:
    raise NoSandbox("No sandbox for trials: the kernel refuses namespaces.", hint="--unsandboxed")


def test_without_a_sandbox_nothing_is_begun(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "make_sandbox", refused)
    shown = complaint(capsys, "-o", "t", "train.py")
    assert shown.splitlines() == [
        "trainprof: No sandbox for trials: the kernel refuses namespaces.",
        "hint: --unsandboxed",
    ]
    assert planted == []
    assert not Path("t").exists()


def test_unsandboxed_trials_take_no_sandbox(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "make_sandbox", refused)
    assert told(capsys, "--unsandboxed", "-o", "t", "train.py")["trials"]
    assert json.loads(Path("t/tune.json").read_text())["is_sandboxed"] is False


def test_one_that_cannot_go_on_in_a_sandbox_keeps_what_it_has(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(capsys, "-o", "t", "--budget", "15s", "train.py")
    before, held = list(planted), Path("t/tune.json").read_text()
    monkeypatch.setattr(session, "make_sandbox", refused)
    assert "No sandbox for trials" in complaint(capsys, *GO_ON)
    assert (planted, Path("t/tune.json").read_text()) == (before, held)


@pytest.mark.parametrize(
    ("memory_bytes", "words", "said", "unsaid"),
    [
        (None, [], "what they write is discarded", "in memory"),
        (5 << 29, [], "What they write is held in memory, up to 2.5 GiB.", "No sandbox"),
        (None, ["--unsandboxed"], "No sandbox: each trial runs in a scratch", "discarded"),
    ],
)
def test_what_trials_can_change_is_said_ahead_of_them(
    planted: list[str],
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    memory_bytes: int | None,
    words: list[str],
    said: str,
    unsaid: str,
) -> None:
    def made(directory: Path, words: object) -> Sandbox:
        return Sandbox((), (), memory_bytes, os.getcwd())

    monkeypatch.setattr(session, "make_sandbox", made)
    assert run_command(["tune", "-o", "t", *words, "train.py"]) == 0
    opening = capsys.readouterr().err.partition("trial 1: ")[0]
    assert said in opening
    assert unsaid not in opening


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "what to tune"),
        (["--budget", "0s", "train.py"], "not at least 10 s"),
        (["--trial-steps", "3", "train.py"], "30"),
        (["none.py"], "no such script"),
        (["--resume", "none", "train.py"], "no run at none"),
    ],
)
def test_nonsense_is_one_line_and_a_hint(
    planted: list[str], capsys: Captured, words: list[str], said: str
) -> None:
    shown = complaint(capsys, *words)
    assert said in shown
    assert "Traceback" not in shown
    assert planted == []


def test_a_tune_run_that_left_no_result_says_what_there_is(
    planted: list[str], capsys: Captured
) -> None:
    told(capsys, "-o", "t", "train.py")
    Path("t/summary.json").unlink()
    assert run_command(["report", "t"]) == 2
    assert "trials/baseline" in capsys.readouterr().err


def test_summaries_of_tune_runs_are_plain_json(planted: list[str], capsys: Captured) -> None:
    told(capsys, "-o", "t", "train.py")
    assert json.dumps(to_jsonable(summaries.slow_loader()), allow_nan=False)
