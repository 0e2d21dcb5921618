"""`trainprof tune`: what it refuses to begin, what it shows meanwhile, and how it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import summaries
from support.planted_trials import FakeRunner, Planted, plan_of, threads, workers

from trainprof.analysis.summary import RunSummary
from trainprof.analysis.summary_json import to_jsonable
from trainprof.analysis.tuning import INTERRUPTED, TOO_FEW_STEPS
from trainprof.cli.app import run_command
from trainprof.experiments import journal, tune, uncontained
from trainprof.experiments.candidates import Plan
from trainprof.experiments.runner import label_of
from trainprof.experiments.search import Search
from trainprof.experiments.trial import WARM_UP, Limits, Measured, Trial
from trainprof.launch.target import Target
from trainprof.record.run_directory import RunDirectory

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`tune` without a script: trials answer at once; the names of those that ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("train.py").write_text("print(1)\n")
    ran: list[str] = []
    runs: dict[tuple[str, int], Measured] = {}
    fake = FakeRunner(Planted(lambda o: 0.005 if "num_workers" in o else 0.010))

    class Runner:
        def __init__(self, script: object, directory: RunDirectory, *, interval_s: float) -> None:
            self._directory = directory

        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            ran.append(trial.name)
            found = fake.run(trial, number, limits)
            made = self._directory.trials / label_of(trial, number)
            made.mkdir(parents=True)
            runs[trial.name, number] = found
            return found

    def read(trial: Trial, number: int, *_: object, **__: object) -> Measured:
        return runs[trial.name, number]

    def planned(*_: object) -> Plan:
        return plan_of(workers(2), threads(1))

    def summary(directory: RunDirectory) -> RunSummary:
        return summaries.slow_loader()

    monkeypatch.setattr(tune, "ScriptRunner", Runner)
    monkeypatch.setattr(tune, "Search", partial(Search, now=fake.now))
    monkeypatch.setattr(tune, "_planned", planned)
    monkeypatch.setattr(tune, "saved_summary", summary)
    monkeypatch.setattr(tune, "ground_now", lambda target: {})
    monkeypatch.setattr(journal, "read", read)
    monkeypatch.setattr(journal, "saved_summary", summary)
    return ran


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
    assert "trainprof: each trial takes about 4 s: all 2 settings fit into" in rest
    assert "trial 4 of about " in shown.err
    assert "steps/s" in shown.err
    assert run_command(["report", "t"]) == 0
    assert capsys.readouterr().out == shown.out


def test_a_warm_up_of_few_steps_is_no_failure(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = tune.ScriptRunner

    class Short(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            found = super().run(trial, number, limits)
            is_first = trial.name == WARM_UP
            return replace(found, outcome=TOO_FEW_STEPS, pace=None) if is_first else found

    monkeypatch.setattr(tune, "ScriptRunner", Short)
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
    runner = tune.ScriptRunner

    class Stopped(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            found = super().run(trial, number, limits)
            return replace(found, outcome=INTERRUPTED, pace=None) if len(planted) == at else found

    monkeypatch.setattr(tune, "ScriptRunner", Stopped)
    shown = complaint(capsys, "-o", "t", "train.py", status=130)
    assert "nothing is known yet" in shown
    assert "--resume t" in shown
    monkeypatch.setattr(tune, "ScriptRunner", runner)
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
    ended = told(capsys, "--resume", "t", "--budget", "10m")
    assert ended["tuning"]["ended_by"] == "finished"
    again = planted[len(before) :]
    assert "warm_up" not in again
    assert "ceiling" in before
    assert again[0] not in before or again[0] == "baseline"
    assert ended["recommended"]["overrides"] == {"num_workers": 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: Path("train.py").write_text("print(2)\\n"), "was changed since"),
        (lambda: Path("t/tune.json").write_text("{"), "is damaged"),
        (lambda: Path("t/tune.json").unlink(), "is no `tune` run"),
    ],
)
def test_what_cannot_be_gone_on_with_is_said(
    planted: list[str], capsys: Captured, change: Callable[[], object], said: str
) -> None:
    told(capsys, "-o", "t", "train.py")
    change()
    assert said in complaint(capsys, "--resume", "t")


def test_edits_beside_the_script_are_not_gone_on_with(planted: list[str], capsys: Captured) -> None:
    Path("train.py").write_text("import dataset\n")
    Path("dataset.py").write_text("size = 1\n")
    told(capsys, "-o", "t", "--budget", "15s", "train.py")
    before = list(planted)
    Path("plots.py").write_text("print(1)\n")  # nobody imports it
    Path("dataset.py").write_text("size = 2\n")
    shown = complaint(capsys, "--resume", "t")
    assert "dataset.py was changed since" in shown
    assert "start anew" in shown
    assert planted == before
    Path("dataset.py").write_text("size = 1\n")
    assert told(capsys, "--resume", "t", "--budget", "10m")["tuning"]["ended_by"] == "finished"


def test_edits_of_a_module_are_not_gone_on_with(planted: list[str], capsys: Captured) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    Path("package/train.py").write_text("from . import data\n")
    Path("package/data.py").write_text("size = 1\n")
    told(capsys, "-o", "t", "-m", "package.train")
    Path("package/data.py").write_text("size = 2\n")
    assert "package/data.py was changed since" in complaint(capsys, "--resume", "t")


def test_another_checkout_is_not_gone_on_with(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told(capsys, "-o", "t", "train.py")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").write_text(Path("train.py").read_text())
    monkeypatch.chdir(tmp_path / "other")
    shown = complaint(capsys, "--resume", str(tmp_path / "t"))
    assert "it was begun in " in shown
    monkeypatch.chdir(tmp_path)
    assert told(capsys, "--resume", "t")["tuning"]["ended_by"] == "finished"


def test_one_that_an_earlier_version_began_is_gone_on_with(
    planted: list[str], capsys: Captured
) -> None:
    told(capsys, "-o", "t", "train.py")
    begun = json.loads(Path("t/tune.json").read_text())
    del begun["cwd"], begun["sources"]
    Path("t/tune.json").write_text(json.dumps(begun))
    assert told(capsys, "--resume", "t")["tuning"]["ended_by"] == "finished"


def test_what_the_budget_cut_short_is_made_again(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = tune.ScriptRunner

    class Cutting(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            found = super().run(trial, number, limits)
            if not (trial.overrides and limits.is_of_budget):
                return found
            return replace(found, outcome=TOO_FEW_STEPS, pace=None, was_cut=True)

    monkeypatch.setattr(tune, "ScriptRunner", Cutting)
    begun = told(capsys, "-o", "t", "--budget", "30s", "--trial-steps", "100", "train.py")
    assert begun["trials"][-1]["outcome"] == "cut short"
    assert begun["trials"][0]["outcome"] == "ok"
    assert begun["tuning"]["ended_by"] == "budget"
    names = [row["name"] for row in begun["trials"] if row["outcome"] == "cut short"]
    for name in names:
        assert planted.count(name) == 1
        Path("t/trials", name).rmdir()  # as the real runner begins by doing
    ended = told(capsys, "--resume", "t", "--budget", "10m")
    assert all(planted.count(name) > 1 for name in names)
    assert {row["outcome"] for row in ended["trials"]} == {"ok"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--trial-steps", "90"],
            "--trial-steps 90 beside --resume: its trials were begun with",
        ),
        (["--interval", "2s"], "--interval 2 beside --resume: its trials were begun with 0.5"),
        (["-o", "elsewhere"], "-o elsewhere beside --resume: it goes on in t"),
    ],
)
def test_what_would_make_trials_unlike_is_refused_with_what_they_were_begun_with(
    planted: list[str], capsys: Captured, words: list[str], said: str
) -> None:
    told(capsys, "-o", "t", "--trial-steps", "80", "train.py")
    before = list(planted)
    assert said in complaint(capsys, "--resume", "t", *words)
    assert planted == before
    again = ("--trial-steps", "80", "--interval", "0.5", "-o", "t")
    assert told(capsys, "--resume", "t", *again)["tuning"]["trial_steps"] == 80


def test_the_samplers_interval_is_that_of_the_beginning(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals: list[float] = []
    runner = tune.ScriptRunner

    class Noting(runner):  # type: ignore[misc, valid-type]
        def __init__(self, script: object, directory: RunDirectory, *, interval_s: float) -> None:
            super().__init__(script, directory, interval_s=interval_s)
            intervals.append(interval_s)

    monkeypatch.setattr(tune, "ScriptRunner", Noting)
    told(capsys, "-o", "t", "--interval", "2s", "--budget", "15s", "train.py")
    told(capsys, "--resume", "t")
    assert intervals == [2.0, 2.0]


def test_changes_of_the_numbers_may_be_allowed_later_and_stay_so(
    planted: list[str], capsys: Captured
) -> None:
    told(capsys, "-o", "t", "train.py")
    allowed = []
    for words in (["--allow-numerics"], []):
        told(capsys, "--resume", "t", *words)
        allowed.append(json.loads(Path("t/tune.json").read_text())["allow_numerics"])
    assert allowed == [True, True]


HERE = {"platform": "linux x86_64", "CPU": "EPYC", "CPU cores": "8", "torch": "2.13.0"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"CPU": "Xeon"}, "CPU was EPYC and is Xeon: its trials"),
        ({"CPU cores": "4"}, "CPU cores was 8 and is 4: its trials"),
        ({"torch": "2.12.1", "CPU": "Xeon"}, "CPU was EPYC and is Xeon, torch was 2.13.0 and is"),
    ],
)
def test_another_machine_or_torch_is_not_gone_on_with(
    planted: list[str],
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    said: str,
) -> None:
    told(capsys, "-o", "t", "--budget", "15s", "train.py")
    host = {"platform": "linux 6.1 x86_64", "cpu": "EPYC", "usable_cores": 8.0}
    Path("t/trials/baseline/manifest.json").write_text(json.dumps({"host": host}))
    before = list(planted)
    monkeypatch.setattr(tune, "ground_now", lambda target: HERE | changed)
    shown = " ".join(complaint(capsys, "--resume", "t").split())
    assert said in shown
    assert "go on where it was begun, or start anew" in shown
    assert planted == before
    monkeypatch.setattr(tune, "ground_now", lambda target: HERE)
    assert told(capsys, "--resume", "t", "--budget", "10m")["tuning"]["ended_by"] == "finished"


def test_another_environment_is_not_gone_on_with(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    told(capsys, "-o", "t", "--budget", "15s", "train.py")
    before = list(planted)
    monkeypatch.delenv("OMP_NUM_THREADS")
    shown = " ".join(complaint(capsys, "--resume", "t").split())
    assert "OMP_NUM_THREADS was 1 and is not set: its trials would not be alike" in shown
    assert "set the environment as it was" in shown
    assert planted == before
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert told(capsys, "--resume", "t", "--budget", "10m")["tuning"]["ended_by"] == "finished"


def test_one_that_was_begun_before_the_environment_was_kept_is_gone_on_with(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(capsys, "-o", "t", "--budget", "15s", "train.py")
    kept = json.loads(Path("t/tune.json").read_text())
    del kept["variables"]
    Path("t/tune.json").write_text(json.dumps(kept))
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert told(capsys, "--resume", "t", "--budget", "10m")["tuning"]["ended_by"] == "finished"


def test_another_value_of_what_the_script_reads_is_refused(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text('import os\nbatch = os.environ.get("BATCH")\n')
    monkeypatch.setenv("BATCH", "32768")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    told(capsys, "-o", "t", "--budget", "15s", "train.py")
    assert "32768" not in Path("t/tune.json").read_text()
    before = list(planted)
    for name, value, said in (
        ("BATCH", "64", "BATCH is another one by now: its trials"),
        ("BATCH", None, "BATCH was set and is not: its trials"),
        ("WANDB_MODE", "offline", "WANDB_MODE was not set and is: its trials"),
    ):
        with monkeypatch.context() as changed:
            if value is None:
                changed.delenv(name)
            else:
                changed.setenv(name, value)
            shown = " ".join(complaint(capsys, "--resume", "t").split())
        assert said in shown
        assert "set the environment as it was" in shown
    assert planted == before
    monkeypatch.setenv("OTHER", "1")
    assert told(capsys, "--resume", "t", "--budget", "10m")["tuning"]["ended_by"] == "finished"


def test_a_trial_on_another_device_is_told_and_not_counted(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(capsys, "-o", "t", "--budget", "15s", "--trial-steps", "100", "train.py")
    begun, runner, read = (
        json.loads(Path("t/tune.json").read_text()),
        tune.ScriptRunner,
        journal.read,
    )
    shown_by = {"device": "cuda (NVIDIA T4)"}

    class Moved(runner):  # type: ignore[misc, valid-type]
        def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
            return replace(super().run(trial, number, limits), ground=shown_by)

    def read_on_another(*words: Any, **named: Any) -> Measured:
        return replace(read(*words, **named), ground={"device": "cuda (NVIDIA H100)"})

    monkeypatch.setattr(tune, "ScriptRunner", Moved)
    monkeypatch.setattr(journal, "read", read_on_another)
    shown = " ".join(complaint(capsys, "--resume", "t", "--budget", "10m").split())
    assert "device was cuda (NVIDIA H100) and is cuda (NVIDIA T4): its trials" in shown
    assert json.loads(Path("t/tune.json").read_text())["done"] == begun["done"]
    name = planted[-1]
    Path("t/trials", label_of(Trial(name), planted.count(name))).rmdir()
    shown_by["device"] = "cuda (NVIDIA H100)"
    assert told(capsys, "--resume", "t", "--budget", "10m")["tuning"]["ended_by"] == "finished"


def test_another_command_is_not_gone_on_with(planted: list[str], capsys: Captured) -> None:
    told(capsys, "-o", "t", "train.py", "--lr", "1")
    assert "not the command" in complaint(capsys, "--resume", "t", "train.py", "--lr", "2")


def test_a_secret_is_not_written_down_and_has_to_be_given_again(
    planted: list[str], capsys: Captured
) -> None:
    command = ["train.py", "--api-key", "abcdef0123456789"]
    told(capsys, "-o", "t", *command)
    assert "abcdef" not in Path("t/tune.json").read_text() + Path("t/manifest.json").read_text()
    assert "secret" in complaint(capsys, "--resume", "t")
    assert told(capsys, "--resume", "t", *command)["tuning"]["ended_by"] == "finished"


def test_another_secret_is_another_command(planted: list[str], capsys: Captured) -> None:
    command = ["train.py", "--api-key", "abcdef0123456789"]
    told(capsys, "-o", "t", *command)
    before = list(planted)
    shown = " ".join(complaint(capsys, "--resume", "t", *command[:-1], "another-key").split())
    assert "written down masked is another one by now" in shown
    assert planted == before
    # One that was begun before that was kept is gone on with.
    kept = json.loads(Path("t/tune.json").read_text())
    assert len(kept.pop("masked")["digest"]) == 4
    Path("t/tune.json").write_text(json.dumps(kept))
    assert told(capsys, "--resume", "t", *command[:-1], "another-key")["trials"]


def test_what_cannot_be_contained_is_said_and_nothing_is_run(
    planted: list[str], capsys: Captured
) -> None:
    Path("train.py").write_text("import wandb\nwandb.init()\n")
    shown = complaint(capsys, "-o", "t", "train.py")
    assert "train.py:" in shown
    assert "wandb" in shown
    assert "--yes" in shown
    assert planted == []
    assert not Path("t").exists()
    assert told(capsys, "--yes", "-o", "t", "train.py")["trials"]


def test_what_was_agreed_to_is_not_asked_again_and_what_came_since_is(
    planted: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text("import wandb\nwandb.init()\n")
    told(capsys, "--yes", "-o", "t", "--budget", "15s", "train.py")
    before = list(planted)
    found = uncontained.find_uncontained

    def with_another(target: Target, cwd: Path) -> list[uncontained.Uncontained]:
        return [*found(target, cwd), uncontained.Uncontained("mlflow", "train.py:3", "sends")]

    monkeypatch.setattr(uncontained, "find_uncontained", with_another)
    shown = complaint(capsys, "--resume", "t")
    assert "mlflow sends" in shown
    assert "--yes" in shown
    assert planted == before
    assert told(capsys, "--yes", "--resume", "t", "--budget", "15s")["trials"]
    assert run_command(["tune", "--resume", "t", "--budget", "10m"]) == 0
    assert "cannot be kept apart" not in capsys.readouterr().err


def test_one_that_was_begun_before_it_was_kept_asks_again(
    planted: list[str], capsys: Captured
) -> None:
    Path("train.py").write_text("import wandb\nwandb.init()\n")
    told(capsys, "--yes", "-o", "t", "--budget", "15s", "train.py")
    kept = json.loads(Path("t/tune.json").read_text())
    del kept["agreed"], kept["read"]
    Path("t/tune.json").write_text(json.dumps(kept))
    assert "wandb" in complaint(capsys, "--resume", "t")
    assert told(capsys, "--yes", "--resume", "t")["trials"]


def test_a_command_that_is_no_python_is_not_begun_unasked(
    planted: list[str], capsys: Captured
) -> None:
    Path("train.sh").write_text("#!/bin/sh\nrm -rf runs/exp1\npython train.py\n")
    Path("train.sh").chmod(0o755)
    shown = complaint(capsys, "-o", "t", "./train.sh")
    assert "the command: ./train.sh is no Python" in shown
    assert "name the Python script itself" in shown
    assert "--yes" in shown
    assert planted == []
    assert told(capsys, "--yes", "-o", "t", "./train.sh")["trials"]


def test_a_python_that_nothing_of_ours_gets_into_is_not_begun_unasked(
    planted: list[str], capsys: Captured
) -> None:
    Path("train.py").write_text("")
    shown = complaint(capsys, "-o", "t", "env", "PYTHONPATH=src", sys.executable, "train.py")
    assert "the command: env starts a Python that trainprof cannot get into" in shown
    assert "with variables set before trainprof" in " ".join(shown.split())
    assert planted == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "what to tune"),
        (["--budget", "0s", "train.py"], "not at least 10 s"),
        (["--trial-steps", "3", "train.py"], "30"),
        (["none.py"], "no such script"),
        (["--resume", "none"], "no run at none"),
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
