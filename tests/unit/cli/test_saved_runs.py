"""Which run a name means; `trainprof list` and `trainprof clean`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support import summaries

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.cli.app import run_command
from trainprof.cli.saved_runs import RunDamaged, RunNotFound, find_run, saved_runs
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.session import alone_in

DAY_NS = 86_400_000_000_000


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(path, manifest='{"schema_version": 1}'):
    directory = Path(path)
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(manifest)
    return directory.resolve()


def test_a_run_is_a_directory_a_name_or_latest():
    run = make_run("trainprof-runs/train-1")
    Path("trainprof-runs/latest").symlink_to("train-1")
    Path("train-1").mkdir()  # no run, and hides none
    for name in ("trainprof-runs/train-1", "trainprof-runs/train-1/", "train-1", "latest"):
        assert find_run(name).path == run
    assert find_run(str(run)).path == run
    Path("cut/events").mkdir(parents=True)
    make_run("trainprof-runs/many/ranks/0")
    assert find_run("cut").path == Path("cut").resolve()
    assert find_run("many").path == Path("trainprof-runs/many").resolve()
    with pytest.raises(RunNotFound) as caught:
        find_run("train-2")
    assert "did you mean train-1?" in (caught.value.hint or "")


def test_what_is_no_run_directory_is_refused():
    Path("empty").mkdir()
    with pytest.raises(RunDamaged, match="not a run directory"):
        find_run("empty")
    Path("file").write_text("")
    with pytest.raises(RunNotFound):
        find_run("file")
    with pytest.raises(RunDamaged, match="format 99"):
        find_run(str(make_run("newer", '{"schema_version": 99}')))
    for number, text in enumerate(("", "{", "[]", "[" * 100_000, '{"schema_version": "x"}')):
        find_run(str(make_run(f"damaged{number}", text)))  # left to the analysis


def recorded(name, days_ago, reason="completed", *, script="train.py", times=None, **more):
    """Saves a run of some days ago, with the summary of a slow loader if it completed."""
    started = time.time_ns() - days_ago * DAY_NS
    manifest = {
        "schema_version": 1,
        "entry": script,
        "times": {"spawned_time_ns": started, **(times or {})},
        "exit": {"reason": reason},
        "host": {"name": os.uname().nodename},
        "script_pid": 2**22 + 1,  # above the largest that Linux gives
    }
    run = make_run(f"trainprof-runs/{name}", json.dumps(manifest | more))
    if reason == "completed":
        (run / "summary.json").write_text(json.dumps(to_jsonable(summaries.slow_loader())))
    return run


def names():
    return [run.name for run in saved_runs()]


@pytest.fixture
def six():
    recorded("b-old", 40)
    recorded("a-older", 50)
    recorded("train-1", 3)
    recorded("train-2", 2, "exception")
    recorded("other-1", 1, "running", script_pid=os.getpid())
    recorded("train-3", 0)
    Path("trainprof-runs/latest").symlink_to("train-3")
    make_run("trainprof-runs/notes", "{}")
    Path("trainprof-runs/plain").mkdir()
    Path("trainprof-runs/linked").symlink_to("train-1")


def test_runs_are_found_by_age_and_by_the_beginning_of_a_name(six):
    runs = Path("trainprof-runs").resolve()
    for name, run in (("latest~0", "train-3"), ("latest~3", "train-1"), ("b", "b-old")):
        assert find_run(name).path == runs / run
    Path("b").mkdir()  # hides no run
    assert find_run("b").path == runs / "b-old"
    for name, hint in (
        ("train", "train-3"),
        ("latest~6", "newest runs: train-3, other-1, train-2"),
        ("tran-3", "did you mean train-3?"),
        ("zzz", "newest runs: train-3"),
    ):
        with pytest.raises(RunNotFound) as caught:
            find_run(name)
        assert hint in caught.value.hint


def test_lines_shows_a_run_by_a_short_name_and_runs_a_script_of_that_name(six, capsys):
    assert run_command(["lines", "latest~3"]) == 2
    assert "no line times" in capsys.readouterr().err
    assert run_command(["lines", "b"]) == 2
    Path("b.py").write_text("")
    assert run_command(["lines", "b"]) == 127
    assert "did you mean b.py?" in capsys.readouterr().err


def test_the_list_fits_a_terminal_and_has_the_newest_run_last(six, capsys):
    assert run_command(["list"]) == 0
    head, *rows, _, total = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["Run", "Started", "Script"]
    assert [row.split()[0] for row in rows[-2:]] == ["latest~1", "latest"]
    assert all(len(row) <= 80 for row in (head, *rows))
    assert ["data" in rows[-1], "(running)" in rows[-2], "(failed)" in rows[-3]] == [True] * 3
    assert total.startswith("6 runs, ")
    assert run_command(["list", "--verbose"]) == 0
    assert capsys.readouterr().out.splitlines()[-3].endswith("train-3")


def test_an_empty_list_says_how_to_record_a_run(capsys):
    assert run_command(["list"]) == 0
    assert "trainprof run SCRIPT" in capsys.readouterr().out
    assert run_command(["clean", "--yes"]) == 0
    assert "Nothing to remove" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "removed"),
    [
        ([], ["a-older", "b-old", "train-2"]),
        (["--failed"], ["train-2"]),
        (["--older-than", "45d"], ["a-older"]),
        (["--keep", "3"], ["a-older", "b-old", "train-1"]),
        (["--keep", "10"], []),
        (["--keep", "0"], ["a-older", "b-old", "train-1", "train-2", "train-3"]),
        (["--older-than", "1h", "--keep", "4"], ["a-older", "b-old"]),
    ],
)
def test_clean_removes_what_was_asked_for_and_no_running_run(six, options, removed, capsys):
    before = names()
    assert run_command(["clean", *options]) == (2 if removed else 0)
    assert ("--yes" in capsys.readouterr().err) is bool(removed)
    assert run_command(["clean", *options, "--dry-run"]) == 0
    assert names() == before
    assert run_command(["clean", *options, "--yes"]) == 0
    assert sorted(set(before) - set(names())) == removed
    said = f"Removed {len(removed)} run" if removed else "Nothing to remove"
    assert said in capsys.readouterr().out
    assert {"notes", "plain"} <= {path.name for path in Path("trainprof-runs").iterdir()}
    assert find_run("latest").path.name == names()[-1]


def test_a_run_of_another_machine_counts_as_running_until_it_is_silent(capsys):
    run = recorded("train-1", 0, "running", host={"name": "elsewhere"})
    (run / "samples").mkdir()
    (run / "samples/host.jsonl").touch()
    os.utime(run, (1, 1))
    assert run_command(["clean", "--failed", "--yes"]) == 0
    assert names() == ["train-1"]
    os.utime(run / "samples/host.jsonl", (1, 1))
    assert run_command(["clean", "--failed", "--yes"]) == 0
    assert names() == []


def test_clean_removes_through_no_link(tmp_path, capsys):
    run = recorded("train-1", 50)
    Path("mine").mkdir()
    Path("mine/kept").write_text("")
    (run / "events").symlink_to(tmp_path / "mine")
    assert run_command(["clean", "--yes"]) == 0
    assert names() == []
    assert Path("mine/kept").exists()


@pytest.mark.parametrize(
    ("ranks", "state"),
    [
        ({"0": "signal", "0.restart1": "running", "1": "signal", "1.restart1": "running"}, "runs"),
        ({"0": "exception", "1": "running"}, "runs"),
        ({"0": "signal", "0.restart1": "completed"}, "completed"),
        ({"0": "completed", "1": "exception"}, "failed"),
        ({"0": "completed", "1": "completed", "1.restart2": "signal"}, "failed"),
    ],
)
def test_a_launch_runs_while_a_rank_does_and_fails_by_last_attempts(ranks, state, capsys):
    for rank, reason in ranks.items():
        recorded(f"job/ranks/{rank}", 40, reason, script_pid=os.getpid())
    [run] = saved_runs()
    assert (run.is_running, run.has_failed) == (state == "runs", state == "failed")
    assert run_command(["clean", "--keep", "0", "--yes"]) == 0
    assert names() == (["job"] if state == "runs" else [])


def test_a_search_runs_while_it_holds_its_lock():
    directory = RunDirectory(recorded("tune-1", 0, "running", kind="tune", script_pid=None))
    directory.summary.write_text("{}")
    with alone_in(directory):
        [run] = saved_runs()
        assert run.is_running
    assert not run.is_running
    assert not run.has_failed


def test_another_process_under_the_same_pid_is_not_the_script():
    hour_ns = 3600 * 10**9
    for name, spawned_ns in (("reused", time.perf_counter_ns() + hour_ns), ("own", None)):
        times = {"spawned_ns": spawned_ns}
        recorded(name, 1, "running", script_pid=os.getpid(), times=times)
    assert {run.name: run.is_running for run in saved_runs()} == {"reused": False, "own": True}


def test_an_unreadable_directory_hides_no_other_run(monkeypatch):
    recorded("train-1", 0)
    recorded("locked", 0)
    is_file = Path.is_file

    def refusing(path):
        if "locked" in path.parts:
            raise PermissionError
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refusing)
    assert names() == ["train-1"]


@pytest.mark.parametrize("time_ns", [10**30, 2**62, -(10**18), True, "now"])
def test_a_damaged_time_is_replaced_by_the_file_s(time_ns, capsys):
    recorded("train-1", 0, times={"spawned_time_ns": time_ns})
    assert run_command(["list"]) == 0
    assert time.strftime("%Y-") in capsys.readouterr().out
