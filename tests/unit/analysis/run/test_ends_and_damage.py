"""How a run ended; recordings with pieces missing; parts of a run."""

from __future__ import annotations

import errno
import os
import signal

import pytest
from support.events import US, FakeRun, seconds

from trainprof.analysis.run.analysed import NothingThere
from trainprof.analysis.run.ending import GOES_ON, ITS_STATUS, NOT_WRITTEN, WENT_ON
from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.analysis.summary.run import Exit
from trainprof.analysis.timeline import events
from trainprof.findings.summarize import summarize
from trainprof.record.names import MAX_STEPS, MAX_TIME
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import (
    HEADER_BYTES,
    RECORD_BYTES,
    STOPPED,
    STOPPED_OFFSET,
    Kind,
    Stop,
    Topic,
)

NOBODYS_PID = 2**31 - 1  # no kernel gives out that one


def run_of(steps=5, epochs=2):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    for _ in range(epochs):
        run.train_pass(loader, optimizer, steps, samples=[4] * steps)
        run.evaluation_pass(validation, 2)
    return run


def ended(tmp_path, *, exception=None, has_end=True, limit=0, **end):
    run = run_of()
    if limit:
        run.mark(Kind.LIMIT, value=limit)
    if has_end:
        number = run.text(Topic.EXCEPTION, exception) if exception else 0
        run.mark(Kind.PROCESS_END, value=number)
    plain = {"status": None, "signal": None, "reason": "unknown", "detail": None}
    return summarize(run.write(tmp_path, exit=plain | end)).run.exit


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"status": 0, "reason": "completed"}, Exit(0, None, "completed", None)),
        (
            {"status": 1, "reason": "exception", "exception": "KeyError"},
            Exit(1, None, "exception", "KeyError"),
        ),
        ({"status": 3, "reason": "exception"}, Exit(3, None, "completed", None)),
        (
            {"status": 4, "reason": "exception", "has_end": False},
            Exit(4, None, "completed", "os._exit or native code ended it"),
        ),
        (
            {"status": 1, "reason": "exception", "exception": "KeyboardInterrupt"},
            Exit(1, None, "interrupted", None),
        ),
        ({"signal": signal.SIGINT, "reason": "signal"}, Exit(None, 2, "interrupted", None)),
        (
            {"signal": 9, "reason": "killed", "detail": "out of memory: x", "has_end": False},
            Exit(None, 9, "killed", "out of memory: x"),
        ),
        ({"status": 0, "reason": "completed", "limit": 1}, Exit(0, None, "limit", MAX_STEPS)),
        ({"status": 0, "reason": "completed", "limit": 2}, Exit(0, None, "limit", MAX_TIME)),
        (
            {"status": 5, "reason": "exception", "limit": 1},
            Exit(5, None, "completed", None, after_limit=MAX_STEPS),
        ),
        # A supervisor that was killed leaves it to the script's own log.
        ({"reason": "running"}, Exit(None, None, "completed", ITS_STATUS)),
        ({"reason": "running", "exception": "OSError"}, Exit(None, None, "exception", "OSError")),
        (
            {"reason": "running", "exception": "KeyboardInterrupt"},
            Exit(None, None, "interrupted", ITS_STATUS),
        ),
        ({"reason": "running", "limit": 2}, Exit(None, None, "limit", MAX_TIME)),
        ({"reason": "running", "has_end": False}, Exit(None, None, "unknown", NOT_WRITTEN)),
    ],
)
def test_every_end(tmp_path, end, expected):
    assert ended(tmp_path, **end) == expected


def test_a_shell_script_ends_with_its_status(tmp_path):
    """No process of Python recorded how it ended."""
    directory = run_of().write(tmp_path, exit={"status": 1, "reason": "exception"})
    for log in directory.events.iterdir():
        log.unlink()
    assert summarize(directory).run.exit == Exit(1, None, "completed", None)


def test_a_script_that_still_runs(tmp_path):
    run = run_of()
    directory = run.write(
        tmp_path,
        exit={"status": None, "signal": None, "reason": "running"},
        script_pid=os.getpid(),
        host={"name": os.uname().nodename},
        times={"spawned_ns": None, "ended_ns": None},  # ours began at another time than this one
    )
    summary = summarize(directory)
    assert summary.run.exit.reason == "running"
    assert summary.training.steps == 10
    assert sum(seconds(summary).values()) == run.now - run.start


def test_without_a_manifest_the_logs_tell_all_they_can(tmp_path):
    run = run_of()
    directory = run.write(tmp_path)
    directory.manifest.unlink()
    summary = summarize(directory)
    assert summary.training.steps == 10
    assert summary.run.exit.reason == "unknown"
    assert "manifest.json is missing" in summary.faults
    assert sum(seconds(summary).values()) == run.now - run.start
    run.mark(Kind.PROCESS_END, value=run.text(Topic.EXCEPTION, "KeyError"))
    directory = run.write(tmp_path)
    directory.manifest.unlink()
    assert summarize(directory).run.exit == Exit(None, None, "exception", "KeyError")


@pytest.mark.parametrize("text", ["", "[1]", "[" * 100_000])
def test_a_damaged_manifest(tmp_path, text):
    directory = run_of().write(tmp_path)
    directory.manifest.write_text(text)
    summary = summarize(directory)
    assert summary.training.steps == 10
    assert "manifest.json is damaged" in summary.faults


@pytest.mark.parametrize(
    "wrong",
    [
        {"times": {"spawned_ns": "x", "ended_ns": True}},
        {"times": [], "exit": 3, "options": None, "host": "h", "versions": [1]},
        {"command": {"a": 1}, "name": None, "cwd": 7, "faults": "no list", "script_pid": "me"},
        {"exit": {"status": "0", "signal": [], "reason": {}, "detail": 4}, "rank": "0"},
        {"times": {"spawned_ns": 10**15, "ended_ns": 5}},
    ],
)
def test_a_manifest_with_anything_in_it(tmp_path, wrong):
    summary = summarize(run_of().write(tmp_path, **wrong))
    assert summary.training.steps == 10
    assert from_jsonable(to_jsonable(summary)) == summary


def test_nothing_but_a_manifest_and_less(tmp_path):
    run = FakeRun()
    run.passes_time(500)
    directory = run.write(tmp_path)
    for log in directory.events.iterdir():
        log.unlink()
    summary = summarize(directory)
    assert summary.training.steps == 0
    assert seconds(summary) == {"startup": 500}
    assert "training" in summary.not_observed
    assert summary.verdict.bottleneck == "unknown"
    empty = summarize(RunDirectory(tmp_path / "empty"))
    assert empty.ledger.wall_s == 0
    assert from_jsonable(to_jsonable(empty)) == empty


def test_a_log_cut_at_any_byte_gives_a_summary(tmp_path):
    run = run_of(steps=2, epochs=1)
    directory = run.write(tmp_path)
    (log,) = directory.events.iterdir()
    whole = log.read_bytes()
    steps = []
    ends = range(HEADER_BYTES, len(whole) + 1, RECORD_BYTES)
    for end in [0, 1, 15, 16, 100, HEADER_BYTES - 1, *ends, *(e + 13 for e in ends)]:
        log.write_bytes(whole[:end])
        summary = summarize(directory)
        assert sum(seconds(summary).values()) == run.now - run.start
        steps.append(summary.training.steps)
    assert set(steps) == {0, 1, 2}


@pytest.mark.parametrize("bit", [33, 40, 50])
@pytest.mark.parametrize("block", [61, events._BLOCK_RECORDS])  # the last one of a block, too
def test_an_event_whose_end_was_damaged_is_left_out(tmp_path, monkeypatch, bit, block):
    monkeypatch.setattr(events, "_BLOCK_RECORDS", block)
    plain = run_of(steps=50).summary(tmp_path)
    directory = run_of(steps=50).write(tmp_path / "damaged")
    (path,) = directory.events.iterdir()
    log = bytearray(path.read_bytes())
    end_of_the_60th = HEADER_BYTES + 60 * RECORD_BYTES + 16
    log[end_of_the_60th + bit // 8] ^= 1 << bit % 8
    path.write_bytes(log)
    summary = summarize(directory)
    assert summary.run.wall_s == plain.run.wall_s
    assert sum(summary.ledger.seconds.values()) == pytest.approx(summary.ledger.wall_s)
    assert any("1 events with impossible times" in text for text in summary.faults), summary.faults


def test_what_of_ours_failed_is_told(tmp_path):
    run = run_of()
    run.text(Topic.PROBE_FAILED, {"probe": "sync", "error": "ValueError: x"})
    run.text(Topic.PROBE_UNAVAILABLE, {"probe": "loader", "reason": "no such thing"})
    run.text(Topic.PROBE_FAILED, ["not", "as", "expected"])
    directory = run.write(tmp_path, faults=["the sampler stopped"])
    (directory.events / "7-1.events").write_bytes(b"no log")
    faults = summarize(directory).faults
    assert faults[0] == "the sampler stopped"
    assert any("too short" in fault for fault in faults)
    assert "probe sync failed: ValueError: x" in faults
    assert "probe loader is off: no such thing" in faults


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Stop.LARGE, "its log reached the limit of 2 GiB per process"),
        (errno.ENOSPC, os.strerror(errno.ENOSPC)),
        (12_345_678, "reason unknown"),
    ],
)
def test_why_recording_stopped_is_told(tmp_path, reason, words):
    run = run_of()
    directory = run.write(tmp_path)
    (log,) = directory.events.iterdir()
    whole = bytearray(log.read_bytes())
    STOPPED.pack_into(whole, STOPPED_OFFSET, run.start + 1_500_000_000, reason)
    log.write_bytes(whole)
    sentence = f"recording stopped after 1.5 s (process {run.pid}): {words}"
    assert sentence in summarize(directory).faults


def test_a_script_that_executes_itself_anew_is_one_process(tmp_path):
    first = run_of()
    second = FakeRun(start=first.now + 1000, now=first.now + 1000)
    second.texts.append((Topic.CLASS, "shifts all ids"))
    loader, optimizer = second.loader(9), second.optimizer()
    second.train_pass(loader, optimizer, 4)
    first.write(tmp_path)
    times = {"spawned_ns": first.start, "ended_ns": second.now}
    summary = summarize(second.write(tmp_path, times=times))
    assert summary.training.steps == 14
    assert {loader.site for loader in summary.loaders} == {"train.py:1", "train.py:2", "train.py:9"}
    assert sum(seconds(summary).values()) == second.now - first.start


def test_epochs_add_up_to_the_loop_and_have_their_steps(tmp_path):
    run = run_of(steps=5, epochs=3)
    whole = seconds(run.summary(tmp_path))
    parts = [seconds(run.summary(tmp_path, epoch=n)) for n in range(3)]
    for key, ns in whole.items():
        assert sum(part.get(key, 0) for part in parts) == ns
    assert run.summary(tmp_path, epoch=1, steps=(3, 7)).training.steps == 2
    with pytest.raises(NothingThere):
        run.summary(tmp_path, epoch=2, steps=(0, 3))


def test_some_steps(tmp_path):
    run = run_of(steps=10, epochs=1)
    summary = run.summary(tmp_path, steps=(3, 7))
    assert summary.training.steps == 4
    assert summary.training.iterations == 4
    assert summary.training.samples == 16
    assert sum(seconds(summary).values()) == 4 * 650 * US
    assert run.summary(tmp_path, steps=(8, 99)).training.steps == 2


@pytest.mark.parametrize(
    "part", [{"epoch": 3}, {"epoch": -1}, {"steps": (15, 20)}, {"steps": (4, 4)}]
)
def test_what_is_not_there_is_said_in_one_line(tmp_path, part):
    with pytest.raises(NothingThere) as raised:
        run_of(steps=5, epochs=3).summary(tmp_path, **part)
    assert raised.value.hint.startswith("The run has ")


@pytest.mark.parametrize("trains_on", [False, True])
def test_what_a_script_left_behind_may_train_on(tmp_path, trains_on):
    script = FakeRun(pid=4242)
    script.passes_time(100 * US)
    script.mark(Kind.PROCESS_END)
    pid = os.getpid() if trains_on else NOBODYS_PID
    daemon = FakeRun(pid=pid, role="child", start=script.start)
    daemon.train_pass(daemon.loader(1), daemon.optimizer(), 5)
    daemon.write(tmp_path)
    directory = script.write(
        tmp_path,
        host={"name": os.uname().nodename},
        times={"spawned_ns": None, "ended_ns": script.now},
    )
    summary = summarize(directory)
    assert summary.training.steps == 5
    end = ("running", GOES_ON) if trains_on else ("completed", WENT_ON)
    assert summary.run.exit == Exit(0, None, *end)


def test_zeroed_stretches_are_holes(tmp_path):
    run = run_of()
    directory = run.write(tmp_path)
    (log,) = directory.events.iterdir()
    whole = bytearray(log.read_bytes())
    first = len(whole) - 40 * RECORD_BYTES
    whole[first : first + 20 * RECORD_BYTES] = bytes(20 * RECORD_BYTES)
    log.write_bytes(whole)
    summary = summarize(directory)
    assert 0 < summary.training.steps < 10
    assert sum(seconds(summary).values()) == run.now - run.start
