"""Pace, files and threads of the sampler."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading

from trainprof.sampling.clock import Clock
from trainprof.sampling.gpu import GpuReader
from trainprof.sampling.loop import (
    CALM_TICKS,
    FULL_RATE_SAMPLES,
    MAX_FAILURES,
    SLOW_TICKS,
    Pace,
    SampleFile,
    SampleLoop,
    SampleStream,
)
from trainprof.sampling.sampler import Sampler

MS = 1_000_000
S = 1000 * MS


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def no_gpu():
    raise ImportError("no NVML here")


def test_slow_ticks_in_a_row_double_it_up_to_a_limit():
    pace = Pace(0.5)
    intervals = [pace.next_interval_ns(0, 3600 * S) for _ in range(8)]
    assert intervals == [500 * MS, 1 * S, 2 * S, 4 * S, 8 * S, 10 * S, 10 * S, 10 * S]
    assert pace.interval_s == 10.0


def test_calm_brings_it_back():
    pace = Pace(0.5)
    for _ in range(SLOW_TICKS):
        pace.next_interval_ns(0, 26 * MS)
    assert pace.interval_s == 1.0
    for _ in range(CALM_TICKS):
        assert pace.interval_s == 1.0
        pace.next_interval_ns(0, 25 * MS)
    assert pace.interval_s == 0.5


def test_a_long_run_is_sampled_less_often():
    pace = Pace(0.5)
    full_rate_ns = FULL_RATE_SAMPLES * 500 * MS
    assert pace.next_interval_ns(0, 0) == 500 * MS
    assert pace.next_interval_ns(full_rate_ns, full_rate_ns) == 500 * MS
    assert pace.next_interval_ns(4 * full_rate_ns, 4 * full_rate_ns) == 2 * S
    assert pace.next_interval_ns(100 * full_rate_ns, 100 * full_rate_ns) == 10 * S


def test_lines_are_whole_and_private(tmp_path):
    file = SampleFile(tmp_path / "a.jsonl")
    previous = os.umask(0)
    try:
        file.append({"name": "\udcff\n"})
    finally:
        os.umask(previous)
    file.append({"b": 2})
    file.close()
    assert lines_of(tmp_path / "a.jsonl") == [{"name": "\udcff\n"}, {"b": 2}]
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_a_planted_link_is_not_followed(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "victim")
    file = SampleFile(tmp_path / "a.jsonl")
    file.append({"a": 1})
    assert file.failure is not None
    assert not (tmp_path / "victim").exists()


def test_every_line_has_the_time_and_the_first_the_anchor(tmp_path, fake_time):
    stream = SampleStream(tmp_path / "host.jsonl", lambda: {"load": 1}, fake_time.clock)
    stream.advance(lambda: True)
    fake_time.ns += 5
    stream.advance(lambda: True)
    stream.close()
    start_ns = 1_000_000_000_000
    assert lines_of(tmp_path / "host.jsonl") == [
        {"t_ns": start_ns, "time_ns": 1_700_000_000_000_000_000, "load": 1},
        {"t_ns": start_ns + 5, "load": 1},
    ]


def test_a_bug_is_forgiven_until_it_repeats(tmp_path, fake_time):
    outcomes = iter([*["bad"] * (MAX_FAILURES - 1), "good", *["bad"] * MAX_FAILURES])

    def take():
        if next(outcomes) == "bad":
            raise ZeroDivisionError("a bug")

    stream = SampleStream(tmp_path / "a.jsonl", take, fake_time.clock)
    for _ in range(2 * MAX_FAILURES - 1):
        stream.advance(lambda: True)
        assert stream.ended is None
    stream.advance(lambda: True)
    assert stream.ended == "ZeroDivisionError: a bug"
    stream.close()
    assert not (tmp_path / "a.jsonl").exists()  # nothing to tell writes no line


def test_it_samples_at_once_and_once_more_at_the_end(tmp_path):
    taken = threading.Event()

    def take():
        taken.set()
        return {"a": 1}

    stream = SampleStream(tmp_path / "a.jsonl", take, Clock())
    loop = SampleLoop([stream], 3600, Clock())
    loop.start()
    assert taken.wait(60)
    loop.ask_to_stop()
    loop.wait(60)
    assert not loop.is_alive
    assert len(lines_of(tmp_path / "a.jsonl")) == 2


def test_files_of_a_run(run_directory):
    script = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sampler = Sampler(run_directory, script.pid, 3600, gpu_reader=GpuReader(no_gpu))
    sampler.start()
    sampler.stop(timeout_s=60)
    script.communicate(b"\n")
    names = sorted(path.name for path in run_directory.samples.iterdir())
    # Python may have been read from disk.
    assert set(names) - {"states.jsonl"} == {"host.jsonl", "processes.jsonl"}
    host = lines_of(run_directory.samples / "host.jsonl")
    assert len(host) == 2
    assert [("time_ns" in line) for line in host] == [True, False]
    assert host[0]["t_ns"] < host[1]["t_ns"]
    assert host[0]["sampler_cpu_ns"] < host[1]["sampler_cpu_ns"]
    assert host[0]["interval_s"] == 3600
    trees = lines_of(run_directory.samples / "processes.jsonl")
    assert trees[0]["processes"][0]["pid"] == script.pid
    assert sampler.not_observed == {"gpus": "NVML: no NVML here"}
    assert not sampler.is_alive
