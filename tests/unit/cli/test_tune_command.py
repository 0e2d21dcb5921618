"""`trainprof tune`: what it refuses to begin, what it shows meanwhile, and how it goes on."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support import summaries
from support.planted_trials import FakeRunner, Planted, plan_of, threads, workers

from trainprof.analysis.summary.tune import INTERRUPTED, TOO_FEW_STEPS
from trainprof.cli.app import run_command
from trainprof.tune import journal, session
from trainprof.tune.runner import Script, label_of
from trainprof.tune.sandbox.sandbox import NoSandbox, Sandbox
from trainprof.tune.search import Search
from trainprof.tune.session import TuneOptions
from trainprof.tune.trial import WARM_UP, Measured, Trial

Captured = pytest.CaptureFixture[str]
GO_ON = ("--resume", "t", "--budget", "10m", "train.py")


def json_of(capsys, *words, status=0):
    assert run_command(["tune", "--format=json", *words]) == status
    summary = json.loads(capsys.readouterr().out)
    assert isinstance(summary, dict)
    return summary


def complaint(capsys, *words, status=2):
    assert run_command(["tune", *words]) == status
    return capsys.readouterr().err


def change_runs(monkeypatch, change):
    """Changes what each trial's run measured."""

    class Changed(session.ScriptRunner):
        def run(self, trial, number, limits):
            return change(super().run(trial, number, limits), limits)

    monkeypatch.setattr(session, "ScriptRunner", Changed)


def test_what_is_faster_is_recommended_on_stdout(planted, capsys):
    assert run_command(["tune", "-o", "t", "train.py", "--epochs", "3"]) == 0
    shown = capsys.readouterr()
    assert "trial 4 of about " in shown.err
    assert run_command(["report", "t"]) == 0
    assert capsys.readouterr().out == shown.out


def test_a_warm_up_of_few_steps_is_no_failure(planted, capsys, monkeypatch):
    change_runs(
        monkeypatch,
        lambda run, _: (
            replace(run, outcome=TOO_FEW_STEPS, pace=None) if run.trial.name == WARM_UP else run
        ),
    )
    assert run_command(["tune", "-o", "t", "train.py"]) == 0
    shown = capsys.readouterr().err
    assert "warm_up: done, not counted" in shown
    assert TOO_FEW_STEPS not in shown


def test_the_json_is_the_contracts(planted, capsys):
    summary = json_of(capsys, "-o", "t", "train.py")
    names = [trial["name"] for trial in summary["trials"]]
    assert names[:3] == ["baseline", "ceiling", "loader_alone"]
    assert set(summary["trials"][1]["speedup"]) == {"low", "mid", "high"}
    assert summary["recommended"]["overrides"] == {"num_workers": 2}
    assert summary == json.loads(Path("t/summary.json").read_text())


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_before_anything_is_known_says_how_to_begin_again(planted, capsys, monkeypatch, at):
    change_runs(
        monkeypatch,
        lambda run, _: replace(run, outcome=INTERRUPTED, pace=None) if len(planted) == at else run,
    )
    shown = complaint(capsys, "-o", "t", "train.py", status=130)
    assert "nothing is known yet" in shown
    assert "--resume t" in shown
    assert run_command(["report", "t"]) == 2
    shown = capsys.readouterr().err
    assert "once there is one" in shown
    assert "tune --resume " in shown


def test_one_that_ran_out_of_time_goes_on_where_it_was(planted, capsys):
    begun = json_of(capsys, "-o", "t", "--budget", "15s", "--trial-steps", "100", "train.py")
    assert begun["tuning"]["ended_by"] == "budget"
    before = list(planted)
    ended = json_of(capsys, "--resume", "t", "--budget", "10m", "train.py")
    assert ended["tuning"]["ended_by"] == "finished"
    again = planted[len(before) :]
    assert "warm_up" not in again
    assert "ceiling" in before
    assert again[0] not in before or again[0] == "baseline"
    assert ended["recommended"]["overrides"] == {"num_workers": 2}


def test_what_the_budget_cut_short_is_made_again(planted, capsys, monkeypatch):
    change_runs(
        monkeypatch,
        lambda run, limits: (
            replace(run, outcome=TOO_FEW_STEPS, pace=None, was_cut=True)
            if run.trial.overrides and limits.is_of_budget
            else run
        ),
    )
    begun = json_of(capsys, "-o", "t", "--budget", "30s", "--trial-steps", "100", "train.py")
    assert begun["trials"][-1]["outcome"] == "cut short"
    assert begun["trials"][0]["outcome"] == "ok"
    assert begun["tuning"]["ended_by"] == "budget"
    names = [row["name"] for row in begun["trials"] if row["outcome"] == "cut short"]
    for name in names:
        assert planted.count(name) == 1
        Path("t/trials", name).rmdir()  # as the real runner begins by doing
    ended = json_of(capsys, "--resume", "t", "--budget", "10m", "train.py")
    assert all(planted.count(name) > 1 for name in names)
    assert {row["outcome"] for row in ended["trials"]} == {"ok"}


HERE = {"platform": "linux x86_64", "CPU": "EPYC", "CPU cores": "8", "torch": "2.13.0"}


def on_another_machine(patch):
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
    planted, capsys, monkeypatch, change, words, said
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    files = {"train.py": "import dataset\n", "dataset.py": "size = 1\n"}
    for name, text in files.items():
        Path(name).write_text(text)
    json_of(capsys, "-o", "t", "--budget", "15s", "--trial-steps", "80", "train.py")
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
    ended = json_of(capsys, "--resume", "t", *again, "train.py")["tuning"]
    assert (ended["ended_by"], ended["trial_steps"]) == ("finished", 80)


def test_a_directory_in_the_place_of_the_summary_is_named(planted, capsys):
    json_of(capsys, "-o", "t", "train.py")
    Path("t/summary.json").unlink()
    Path("t/summary.json").mkdir()
    shown = " ".join(complaint(capsys, *GO_ON).split())
    assert "summary.json cannot be written: a directory is in its place" in shown
    assert "t/summary.json, then go on with --resume" in shown
    assert run_command(["report", "t"]) == 2
    assert "is a `tune` run: only its whole result is shown" in capsys.readouterr().err
    Path("t/summary.json").rmdir()
    os.mkfifo("t/summary.json")
    assert json_of(capsys, *GO_ON)["tuning"]["ended_by"] == "finished"
    assert Path("t/summary.json").is_file()


def test_a_trial_on_another_device_is_told_and_not_counted(planted, capsys, monkeypatch):
    json_of(capsys, "-o", "t", "--budget", "15s", "--trial-steps", "100", "train.py")
    begun, read = json.loads(Path("t/tune.json").read_text()), journal.read
    shown_by = {"device": "cuda (NVIDIA T4)"}

    def read_on_another(*words, **named):
        return replace(read(*words, **named), ground={"device": "cuda (NVIDIA H100)"})

    change_runs(monkeypatch, lambda run, _: replace(run, ground=shown_by))
    monkeypatch.setattr(journal, "read", read_on_another)
    shown = " ".join(complaint(capsys, "--resume", "t", "--budget", "10m", "train.py").split())
    assert "device was cuda (NVIDIA H100) and is cuda (NVIDIA T4): its trials" in shown
    assert json.loads(Path("t/tune.json").read_text())["done"] == begun["done"]
    name = planted[-1]
    Path("t/trials", label_of(Trial(name), planted.count(name))).rmdir()
    shown_by["device"] = "cuda (NVIDIA H100)"
    assert json_of(capsys, *GO_ON)["tuning"]["ended_by"] == "finished"


def refused(directory, words):
    raise NoSandbox("No sandbox for trials: the kernel refuses namespaces.", hint="--unsandboxed")


def test_without_a_sandbox_nothing_is_begun(planted, capsys, monkeypatch):
    monkeypatch.setattr(session, "make_sandbox", refused)
    shown = complaint(capsys, "-o", "t", "train.py")
    assert shown.splitlines() == [
        "trainprof: No sandbox for trials: the kernel refuses namespaces.",
        "hint: --unsandboxed",
    ]
    assert planted == []
    assert not Path("t").exists()


def test_unsandboxed_trials_take_no_sandbox(planted, capsys, monkeypatch):
    monkeypatch.setattr(session, "make_sandbox", refused)
    assert json_of(capsys, "--unsandboxed", "-o", "t", "train.py")["trials"]
    assert json.loads(Path("t/tune.json").read_text())["is_sandboxed"] is False


def test_one_that_cannot_go_on_in_a_sandbox_keeps_what_it_has(planted, capsys, monkeypatch):
    json_of(capsys, "-o", "t", "--budget", "15s", "train.py")
    before, held = list(planted), Path("t/tune.json").read_text()
    monkeypatch.setattr(session, "make_sandbox", refused)
    assert "No sandbox for trials" in complaint(capsys, *GO_ON)
    assert (planted, Path("t/tune.json").read_text()) == (before, held)


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
def test_nonsense_is_one_line_and_a_hint(planted, capsys, words, said):
    shown = complaint(capsys, *words)
    assert said in shown
    assert "Traceback" not in shown
    assert planted == []


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """`tune` without a script: trials answer at once; the names of those that ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("train.py").write_text("print(1)\n")
    ran: list[str] = []
    runs: dict[tuple[str, int], Measured] = {}
    fake = FakeRunner(Planted(lambda o: 0.005 if "num_workers" in o else 0.010))

    class Runner:
        def __init__(self, script, directory, *, interval_s, sandbox):
            self._directory = directory

        def run(self, trial, number, limits):
            ran.append(trial.name)
            summary = fake.run(trial, number, limits)
            made = self._directory.trials / label_of(trial, number)
            made.mkdir(parents=True, exist_ok=True)
            runs[trial.name, number] = summary
            return summary

    def read(trial, number, *_, **__):
        return runs[trial.name, number]

    def planned(*_):
        return plan_of(workers(2), threads(1))

    def summary(directory):
        return summaries.slow_loader()

    def made(directory, words):
        return Sandbox((str(tmp_path),), (), None, str(tmp_path))

    monkeypatch.setattr(session, "ScriptRunner", Runner)
    monkeypatch.setattr(session, "Search", partial(Search, now=fake.now))
    monkeypatch.setattr(session, "make_sandbox", made)
    monkeypatch.setattr(session, "_planned", planned)
    monkeypatch.setattr(session, "saved_summary", summary)
    monkeypatch.setattr(session, "ground_now", lambda target: {})
    monkeypatch.setattr(journal, "read", read)
    monkeypatch.setattr(journal, "saved_summary", summary)
    return ran


SECRET = "abcdef0123456789"
INFINITE, NAN = float("inf"), float("nan")
ENTRY = {"name": "baseline", "number": 1, "overrides": {}, "directory": "trials/baseline"}
ENTRY |= {"outcome": "ok", "detail": None, "failed_after": None, "left_running": []}
JOURNAL = Path("t/tune.json")


def begun(*words, module=None, is_sandboxed=True):
    """Begins a `tune` run in t; returns what its tune.json holds."""
    script = Script(words, module)
    session.begin(TuneOptions(script, output=Path("t"), is_sandboxed=is_sandboxed))
    return journal_now()


def journal_now():
    summary = json.loads(JOURNAL.read_text())
    assert isinstance(summary, dict)
    return summary


def refusal(capsys, *words):
    """Returns the one line, and the hint below it, that `tune` refuses words with."""
    assert run_command(["tune", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("trainprof: ")
    assert lines[1].startswith("hint: ")
    assert "--debug" not in shown.err  # an error that nobody foresaw
    return shown.err


def test_it_takes_the_same_command_and_goes_on(planted):
    begun("train.py", "--lr", "1")
    assert run_command(["tune", "-q", "--resume", "t", "train.py", "--lr", "1"]) == 0


def test_without_the_command_it_says_that_it_takes_it(planted, capsys):
    begun("train.py")
    assert "--resume needs the same command again" in refusal(capsys, "--resume", "t")
    assert planted == []


@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["train.py", "--lr", "2"],
        ["train.py", "--lr", "1", "--check"],
        ["./train.py", "--lr", "1"],
        ["-m", "train", "--lr", "1"],
    ],
)
def test_another_command_is_refused_with_the_one_that_was_tuned(planted, capsys, words):
    begun("train.py", "--lr", "1")
    said = refusal(capsys, "--resume", "t", *words)
    assert f"the command was train.py --lr 1 and is {shlex.join(words)}:" in said
    assert planted == []


def test_a_module_is_another_command_than_its_file(planted, capsys):
    begun("--lr", "1", module="train")
    assert "was -m train --lr 1" in refusal(capsys, "--resume", "t", "train.py", "--lr", "1")
    assert run_command(["tune", "-q", "--resume", "t", "-m", "train", "--lr", "1"]) == 0


def test_what_the_directory_holds_is_never_executed(planted, capsys):
    held = begun("train.py")
    Path("evil.py").write_text("raise SystemExit('executed')\n")
    JOURNAL.write_text(json.dumps({**held, "words": ["evil.py"]}))
    assert "--resume needs" in refusal(capsys, "--resume", "t")
    assert "command was evil.py" in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


def test_words_of_the_directory_reach_the_terminal_as_text(planted, capsys):
    held = begun("train.py")
    JOURNAL.write_text(json.dumps({**held, "words": ["a\x1b[2J\nb\u202e"]}))
    said = refusal(capsys, "--resume", "t", "train.py")
    assert not {"\x1b", "\u202e"} & set(said)


def test_a_secret_is_not_written_down_and_is_given_again(planted, capsys):
    command = ["train.py", "--api-key", SECRET]
    begun(*command)
    assert SECRET not in JOURNAL.read_text() + Path("t/manifest.json").read_text()
    assert SECRET not in refusal(capsys, "--resume", "t", "train.py")
    assert run_command(["tune", "-q", "--resume", "t", *command]) == 0


def test_the_command_that_the_page_names_goes_on(planted, capsys, monkeypatch):
    """{trial} is in the command as it was given, and a name in that of a trial."""
    base = summaries.slow_loader()
    recorded = replace(base, run=replace(base.run, command=["train.py", "--out=runs/baseline"]))
    monkeypatch.setattr(session, "saved_summary", lambda directory: recorded)
    command = ["train.py", "--out=runs/{trial}"]
    assert run_command(["tune", "-q", "-o", "t", "--budget", "15s", *command]) == 0
    said = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
    again = said.partition("trainprof tune --resume t ")[2]
    assert shlex.split(again)[: len(command)] == command


@pytest.mark.parametrize("cwd", [None, "", "/elsewhere"])
def test_it_goes_on_where_it_was_begun(planted, capsys, cwd):
    JOURNAL.write_text(json.dumps({**begun("train.py"), "cwd": cwd}))
    said = refusal(capsys, "--resume", "t", "train.py")
    assert f"the directory was {cwd or 'not known'} and is {os.getcwd()}" in said
    assert planted == []


@pytest.mark.parametrize("was_sandboxed", [True, False])
def test_it_goes_on_as_sandboxed_as_it_was(planted, capsys, was_sandboxed):
    begun("train.py", is_sandboxed=was_sandboxed)
    bare = ["--unsandboxed"]
    shown = refusal(capsys, "--resume", "t", *(bare if was_sandboxed else []), "train.py")
    assert f"--unsandboxed was {'not given' if was_sandboxed else 'given'}" in shown
    assert planted == []
    alike = [] if was_sandboxed else bare
    assert run_command(["tune", "-q", "--resume", "t", *alike, "train.py"]) == 0


def linked():
    JOURNAL.rename("elsewhere.json")
    JOURNAL.symlink_to(Path("elsewhere.json").absolute())


def replaced_by(make):
    JOURNAL.unlink()
    make(JOURNAL)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1, 2]", b"null", b"NaN", b"\xff\xfe{\x00}\x00", b"9" * 5000),
        *(b"[" * 100_000, b'{"schema_version": 1, "done": ' + b"[" * 100_000),
        *(b'{"schema_version": 1, "words": null}', b'{"schema_version": 2}'),
    ],
    ids=range(11),
)
def test_a_damaged_file_is_one_line(planted, capsys, content):
    begun("train.py")
    JOURNAL.write_bytes(content)
    assert "t/tune.json is damaged" in refusal(capsys, "--resume", "t", "train.py")
    os.truncate(JOURNAL, 1 << 40)
    assert "t/tune.json is damaged" in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


@pytest.mark.parametrize(
    "number",
    [
        *({"budget_s": INFINITE}, {"budget_s": NAN}, {"interval_s": 0}, {"trial_steps": -5}),
        {"done": [ENTRY | {"seconds": NAN}]},
    ],
)
def test_a_number_that_no_tune_run_has_is_one_line(planted, capsys, number):
    JOURNAL.write_text(json.dumps(begun("train.py") | number))
    refusal(capsys, "--resume", "t", "train.py")
    assert planted == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (JOURNAL.unlink, "No such file"),
        (lambda: replaced_by(Path.mkdir), "not a plain file"),
        (lambda: replaced_by(os.mkfifo), "not a plain file"),
        (linked, "symbolic links"),
    ],
)
def test_what_is_no_file_in_its_place_is_one_line_and_nobody_waits(planted, capsys, change, why):
    begun("train.py")
    change()
    said = refusal(capsys, "--resume", "t", "train.py")
    assert "is no `tune` run: tune.json cannot be read" in said
    assert why in said
    assert planted == []
