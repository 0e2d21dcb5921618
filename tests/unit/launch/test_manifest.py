from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
from dataclasses import replace

import pytest

from trainprof.launch.manifest import (
    closed_manifest,
    exit_reason,
    kill_detail,
    opening_manifest,
    script_sha256,
)
from trainprof.launch.options import RunOptions
from trainprof.launch.outcome import Outcome, outcome_of
from trainprof.launch.run import available_share
from trainprof.launch.target import Target
from trainprof.record.run_directory import RunDirectory

ENDED = Outcome(
    status=0,
    signal=None,
    ended_ns=5_000,
    max_rss_bytes=1 << 20,
    user_s=1.5,
    system_s=0.5,
    interrupted=False,
    signals_received=(),
)
TARGET = Target("/p", ("/p", "t.py"), ("t.py", "--token", "abc"), "t.py", "t", True)


@pytest.fixture
def in_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ours(*words):
    return replace(TARGET, words=words)


def opened(target, environ=None):
    options = RunOptions(target.words)
    return opening_manifest(target, options, environ or {}, "t", spawned_ns=1, spawned_time_ns=1)


def test_the_scripts_text_is_told_by_its_digest(in_a_directory):
    (in_a_directory / "t.py").write_text("print()\n")
    digest = hashlib.sha256(b"print()\n").hexdigest()
    launcher = replace(ours("torchrun", "--standalone", "t.py", "x.py"), is_ours=False)
    assert script_sha256(launcher) == digest
    opening = opened(ours("t.py", "--lr", "1"))
    assert (opening["script_sha256"], opening["sources"]) == (digest, {})
    os.mkfifo("pipe.py")  # a script that is read away would be lost; to open it would wait
    for word in ("pipe.py", "nowhere.py", "-", "a\0b.py"):
        assert script_sha256(ours(word)) is None


def test_settings_are_told_once_and_none_that_is_a_secret(in_a_directory):
    for name in ("t.py", "data.py", "conf/big.yaml", "conf/small.yaml", "key.json"):
        (in_a_directory / name).parent.mkdir(exist_ok=True)
        (in_a_directory / name).write_text(name)
    words = ("t.py", "--config", "conf/big.yaml", "data.py", "--api-key", "key.json", "t.py")
    opening = opened(ours(*words))
    assert set(opening["settings"]) == {"conf/big.yaml", "data.py"}
    assert set(opening["sources"]) == {"conf/small.yaml"}


def test_a_module_is_told_by_its_file_without_being_imported(in_a_directory):
    package = in_a_directory / "lib" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "train.py").write_text("print()\n")
    (package / "__main__.py").write_text("print(1)\n")
    there = {"PYTHONPATH": str(in_a_directory / "lib")}
    train, whole = (hashlib.sha256(text).hexdigest() for text in (b"print()\n", b"print(1)\n"))
    assert script_sha256(ours("-m", "pkg"), there) == whole
    assert script_sha256(ours("-m", "pkg"), {}) is None
    opening = opened(ours("-m", "pkg.train", "--lr", "1"), there)
    assert opening["script_sha256"] == train
    assert set(opening["sources"]) == {"__init__.py", "__main__.py"}
    launched = replace(ours("torchrun", "--standalone", "-m", "pkg.train"), is_ours=False)
    assert script_sha256(launched, there) == train
    assert script_sha256(ours("-m", "torch.distributed.run", "-m", "pkg.train"), there) == train


@pytest.mark.parametrize(
    ("words", "is_ours", "script", "entry"),
    [
        (("src/t.py", "--lr", "1"), True, "src/t.py", "src/t.py"),
        (("-m", "pkg.t"), True, "pkg.t", "pkg.t"),
        (("torchrun", "--standalone", "src/t.py"), False, "torchrun", "src/t.py"),
        (("accelerate", "launch", "-m", "pkg.t"), False, "accelerate", "pkg.t"),
        (("python", "https://me:pw@host/t.py"), False, "python", "https://***@host/t.py"),
        (("bash", "t.sh"), False, "bash", None),
    ],
)
def test_what_is_started_in_the_end_is_told_beside_what_was_typed(words, is_ours, script, entry):
    target = replace(TARGET, words=words, name=script, is_ours=is_ours)
    manifest = opened(target)
    assert (manifest["script"], manifest["entry"]) == (script, entry)


def test_a_wait_status_is_a_status_or_a_signal_and_maybe_ctrl_c():
    def outcome(wait_status, *received, interrupted=False):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        more = {"signals_received": received, "interrupted": interrupted}
        return outcome_of(wait_status, usage, ended_ns=2, **more)

    assert (outcome(3 << 8).status, outcome(3 << 8).signal) == (3, None)
    dumped = outcome(signal.SIGABRT | 0x80)
    assert (dumped.status, dumped.signal) == (None, signal.SIGABRT)
    assert outcome(signal.SIGINT).interrupted
    assert outcome(130 << 8).interrupted
    assert outcome(0, signal.SIGINT, interrupted=True).interrupted
    # received by a background job that is deaf to it
    assert not outcome(0, signal.SIGINT).interrupted


def ended(status=None, number=None, interrupted=False):
    return exit_reason(replace(ENDED, status=status, signal=number, interrupted=interrupted))


def test_reasons():
    assert ended(0) == "completed"
    assert ended(1) == ended(3) == "exception"
    assert ended(0, interrupted=True) == ended(1, interrupted=True) == "interrupted"
    assert ended(number=signal.SIGINT, interrupted=True) == "interrupted"
    assert ended(number=signal.SIGTERM) == ended(number=signal.SIGABRT) == "signal"
    assert ended(number=signal.SIGKILL) == "killed"
    # Ctrl-C, then kill -9 by an impatient user
    assert ended(number=signal.SIGKILL, interrupted=True) == "killed"


@pytest.mark.parametrize(
    ("oom_kills", "share", "start"),
    [
        (1, 0.5, "out of memory: "),
        (1, None, "out of memory: "),
        (0, 0.04, "probably out of memory: 4.0%"),
        (0, 0.05, None),
        (0, None, None),
    ],
)
def test_what_a_kill_probably_was(oom_kills, share, start):
    detail = kill_detail(oom_kills=oom_kills, available_share=share)
    assert detail is None if start is None else (detail or "").startswith(start)


def test_a_manifest_from_start_to_end():
    first = opening_manifest(
        TARGET,
        RunOptions(("t.py",), max_steps=5),
        {"RANK": "1", "WORLD_SIZE": "x", "LOCAL_WORLD_SIZE": "2"},
        name="t-1",
        spawned_ns=1_000,
        spawned_time_ns=1_795_262_400_250_000_000,
    )
    assert first["exit"]["reason"] == "running"
    assert first["command"] == ["t.py", "--token", "***"]
    assert first["times"]["started_at"] == "2026-11-21T12:00:00.250Z"
    assert (first["rank"], first["world_size"], first["local_world_size"]) == (1, None, 2)
    assert first["options"]["max_steps"] == 5
    closed = closed_manifest(first, ENDED, ended_time_ns=9, detail=None, faults=["sampler: x"])
    assert list(closed) == list(first)
    assert closed["times"] == {**first["times"], "ended_ns": 5_000, "ended_time_ns": 9}
    assert closed["exit"] == {"status": 0, "signal": None, "reason": "completed", "detail": None}
    assert closed["usage"] == {"max_rss_bytes": 1 << 20, "user_s": 1.5, "system_s": 0.5}
    assert closed["faults"] == ["sampler: x"]
    assert first["exit"]["reason"] == "running"
    json.dumps(closed, allow_nan=False)


def test_available_memory_is_that_of_the_samples_before_the_end(tmp_path):
    directory = RunDirectory(tmp_path)
    assert available_share(directory, before_ns=100) is None
    directory.samples.mkdir()
    lines = [
        {"t_ns": 10, "memory_total_bytes": 100, "memory_available_bytes": 1},
        {"t_ns": 20, "memory_total_bytes": 100, "memory_available_bytes": 7},
        {"t_ns": 30, "memory_total_bytes": 100, "memory_available_bytes": 60},
        {"t_ns": 200, "memory_total_bytes": 100, "memory_available_bytes": 2},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    (directory.samples / "host.jsonl").write_text(f'1}}\n[]\n{text}\n{{"t_ns": 21')
    assert available_share(directory, before_ns=100) == 0.07
