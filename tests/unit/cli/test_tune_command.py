"""`trainprof tune`: what it refuses to begin, what it shows meanwhile, and how it goes on."""

from __future__ import annotations

import json
import math
import os
import shlex
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from support import summaries
from support.planted_trials import FakeRunner, Planted, plan_of, threads, workers

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.summary.tune import INTERRUPTED, OK, TOO_FEW_STEPS
from trainprof.cli.app import run_command
from trainprof.tune import journal, session
from trainprof.tune.runner import Script
from trainprof.tune.sandbox.sandbox import NoSandbox, Sandbox
from trainprof.tune.search import Search
from trainprof.tune.session import TuneOptions
from trainprof.tune.trial import WARM_UP, Measured, Trial, label_of

GO_ON = ("--resume", "t", "--budget", "10m", "train.py")


def json_of(capsys, *words, status=0):
    assert run_command(["tune", "--format=json", *words]) == status
    return json.loads(capsys.readouterr().out)


def complaint(capsys, *words, status=2):
    assert run_command(["tune", *words]) == status
    return capsys.readouterr().err


def change_runs(monkeypatch, change):
    """Changes what each trial's run measured."""

    class Changed(session.ScriptRunner):
        def run(self, trial, number, limits):
            return change(super().run(trial, number, limits), limits)

    monkeypatch.setattr(session, "ScriptRunner", Changed)


def test_what_is_faster_is_recommended_on_stdout_and_in_json_as_promised(planted, capsys):
    assert run_command(["tune", "-o", "t", "train.py", "--epochs", "3"]) == 0
    shown = capsys.readouterr()
    assert "trial 4: " in shown.err
    assert run_command(["report", "t"]) == 0
    assert capsys.readouterr().out == shown.out
    summary = json_of(capsys, "-o", "u", "train.py")
    names = [trial["name"] for trial in summary["trials"]]
    assert names[:3] == ["baseline", "ceiling", "loader_alone"]
    assert set(summary["trials"][1]["speedup"]) == {"low", "mid", "high"}
    assert summary["recommended"]["overrides"] == {"num_workers": 2}
    assert summary == json.loads(Path("u/summary.json").read_text())


def test_the_page_is_written_into_the_run_and_json_stays_json(planted, capsys):
    assert run_command(["tune", "-o", "t", "--html", "--format=json", "train.py"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["recommended"]["name"] == "num_workers=2"
    assert shown.err.endswith("/t/report.html\n")
    page = Path("t/report.html").read_text()
    assert "faster with num_workers=2" in page
    assert run_command(["report", "t", "--html", "--output", "again.html"]) == 0
    assert Path("again.html").read_text() == page


def test_an_earlier_run_of_the_script_gives_the_plan_or_refuses_the_budget(
    planted, capsys, monkeypatch
):
    steps = {"pace": Pace(0.5, None), "steps": 100, "training_s": 50.0, "seconds": 0.0}
    earlier = Measured(Trial(WARM_UP), 1, "x", outcome=OK, detail=None, **steps)
    monkeypatch.setattr(session, "read", lambda *_, **__: earlier)
    manifest = {"command": ["train.py"], "script_sha256": sha256(b"print(1)\n").hexdigest()}
    directory = Path("trainprof-runs/x")
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    assert "--budget" in complaint(capsys, "--budget", "10s", "-o", "t", "train.py")
    assert planted == []
    assert not Path("t").exists()
    assert run_command(["tune", "-o", "t", "train.py"]) == 0
    assert "2 settings" in capsys.readouterr().err.partition("trial 1")[0]


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_before_anything_is_known_says_how_to_begin_again(planted, capsys, monkeypatch, at):
    change_runs(
        monkeypatch,
        lambda run, _: replace(run, outcome=INTERRUPTED, pace=None) if len(planted) == at else run,
    )
    shown = complaint(capsys, "-o", "t", "train.py", status=130)
    assert "without a result" in shown
    assert "--resume t" in shown
    assert run_command(["report", "t"]) == 2
    shown = capsys.readouterr().err
    assert "it has no result yet" in shown
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
        (lambda patch: None, ["-o", "elsewhere"], "--output was "),
        (lambda patch: Path("train.py").write_text("1\n"), [], "train.py changed since"),
        (lambda patch: Path("dataset.py").write_text("1\n"), [], "dataset.py changed since"),
        (lambda patch: patch.setenv("OMP_NUM_THREADS", "7"), [], "OMP_NUM_THREADS was unset and"),
        (on_another_machine, [], "CPU was EPYC and is Xeon"),
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


def refused(directory, words):
    raise NoSandbox("no sandbox for trials: the kernel refuses namespaces.", hint="--unsandboxed")


def test_without_a_sandbox_nothing_is_begun(planted, capsys, monkeypatch):
    monkeypatch.setattr(session, "make_sandbox", refused)
    shown = complaint(capsys, "-o", "t", "train.py")
    assert shown.splitlines() == [
        "trainprof: no sandbox for trials: the kernel refuses namespaces.",
        "hint: --unsandboxed",
    ]
    assert planted == []
    assert not Path("t").exists()
    assert json_of(capsys, "--unsandboxed", "-o", "t", "train.py")["trials"]
    assert json.loads(Path("t/tune.json").read_text())["is_sandboxed"] is False


def test_one_that_cannot_go_on_in_a_sandbox_keeps_what_it_has(planted, capsys, monkeypatch):
    json_of(capsys, "-o", "t", "--budget", "15s", "train.py")
    before, held = list(planted), Path("t/tune.json").read_text()
    monkeypatch.setattr(session, "make_sandbox", refused)
    assert "the kernel refuses namespaces" in complaint(capsys, *GO_ON)
    assert (planted, Path("t/tune.json").read_text()) == (before, held)


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

    sandbox = Sandbox((str(tmp_path),), (), None, str(tmp_path))
    monkeypatch.setattr(session, "ScriptRunner", Runner)
    monkeypatch.setattr(session, "Search", partial(Search, now=fake.now))
    monkeypatch.setattr(session, "make_sandbox", lambda directory, words: sandbox)
    monkeypatch.setattr(session, "_planned", lambda *_, **__: plan_of(workers(2), threads(1)))
    monkeypatch.setattr(session, "ground_now", lambda target: {})
    monkeypatch.setattr(journal, "read", lambda trial, number, *_, **__: runs[trial.name, number])
    for module in (session, journal):
        monkeypatch.setattr(module, "saved_summary", lambda directory: summaries.slow_loader())
    return ran


SECRET = "abcdef0123456789"
JOURNAL = Path("t/tune.json")


def begun(*words, module=None, is_sandboxed=True):
    """Begins a `tune` run in t; returns what its tune.json holds."""
    script = Script(words, module)
    session.begin(TuneOptions(script, output=Path("t"), is_sandboxed=is_sandboxed))
    return journal_now()


def journal_now():
    return json.loads(JOURNAL.read_text())


def refusal(capsys, *words):
    """Returns the one line, and the hint below it, that `tune` refuses words with."""
    assert run_command(["tune", *words]) == 2
    shown = capsys.readouterr()
    message, hint = shown.err.splitlines()
    assert (shown.out, message[:11], hint[:6]) == ("", "trainprof: ", "hint: ")
    assert "--debug" not in hint  # an error that nobody foresaw
    return shown.err


@pytest.mark.parametrize(
    ("first", "how", "words", "said"),
    [
        *(
            ("train.py --lr 1", {}, words, f"the command was train.py --lr 1 and is {words}")
            for words in ("train.py --lr 2", "./train.py --lr 1", "-m train --lr 1")
        ),
        ("--lr 1", {"module": "train"}, "train.py --lr 1", "was -m train --lr 1"),
        ("train.py", {}, "--unsandboxed train.py", "--unsandboxed was unset"),
        ("train.py", {"is_sandboxed": False}, "train.py", "--unsandboxed was set"),
    ],
)
def test_another_command_is_refused_with_the_one_that_was_tuned(
    planted, capsys, first, how, words, said
):
    begun(*first.split(), **how)
    assert said in refusal(capsys, "--resume", "t", *words.split())
    assert planted == []
    alike = ["--unsandboxed"] if "is_sandboxed" in how else []
    alike += ["-m", "train"] if "module" in how else []
    assert run_command(["tune", "-q", "--resume", "t", *alike, *first.split()]) == 0


def test_nonsense_is_one_line_and_a_hint(planted, capsys):
    for words, said in {
        "": "no script to tune",
        "--budget 0s train.py": "not at least 10 s",
        "--trial-steps 3 train.py": "30",
        "none.py": "no such script",
        "--resume none train.py": "no run 'none'",
    }.items():
        assert said in refusal(capsys, *words.split())
    assert planted == []


def test_what_the_directory_holds_is_never_executed(planted, capsys):
    held = begun("train.py")
    Path("evil.py").write_text("raise SystemExit('executed')\n")
    JOURNAL.write_text(json.dumps({**held, "words": ["evil.py"]}))
    assert "after --resume" in refusal(capsys, "--resume", "t")
    assert "command was evil.py" in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []
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


def test_it_goes_on_where_it_was_begun(planted, capsys):
    held = begun("train.py")
    for cwd in (None, "/elsewhere"):
        JOURNAL.write_text(json.dumps({**held, "cwd": cwd}))
        said = refusal(capsys, "--resume", "t", "train.py")
        assert f"directory was {cwd or 'unknown'} and is {os.getcwd()}" in said
    assert planted == []


def replaced_by(make):
    JOURNAL.rename("elsewhere.json")
    make(JOURNAL)


def linked(path):
    path.symlink_to(Path("elsewhere.json").absolute())


DAMAGED = "t/tune.json is damaged"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(
            (lambda content=content: JOURNAL.write_bytes(content), DAMAGED)
            for content in (b"{", b"NaN", b"\xff\xfe{\x00}\x00", b"[" * 100_000)
        ),
        (lambda: os.truncate(JOURNAL, 1 << 40), DAMAGED),
        *(
            (lambda odd=odd: JOURNAL.write_text(json.dumps(journal_now() | odd)), "")
            for odd in ({"budget_s": math.inf}, {"interval_s": 0}, {"schema_version": 2})
        ),
        (JOURNAL.unlink, "No such file"),
        (lambda: replaced_by(Path.mkdir), "not a plain file"),
        (lambda: replaced_by(os.mkfifo), "not a plain file"),
        (lambda: replaced_by(linked), "symbolic links"),
    ],
    ids=range(12),
)
def test_a_damaged_file_or_none_is_one_line_and_nobody_waits(planted, capsys, change, why):
    begun("train.py")
    change()
    assert why in refusal(capsys, "--resume", "t", "train.py")
    assert planted == []
