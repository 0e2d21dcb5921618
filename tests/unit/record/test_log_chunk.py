"""How large a log grows: small of a worker, never without bound, cut to its data at the end."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.session import ROOT, read_recording

from trainprof.record import log_chunk
from trainprof.record.event_log import EventLog
from trainprof.record.log_chunk import FIRST_CHUNK_BYTES
from trainprof.record.log_reader import MAX_LOG_BYTES, log_paths, read_log
from trainprof.record.schema import (
    CHUNK_BYTES,
    HEADER_BYTES,
    MAX_WRITTEN_BYTES,
    RECORD_BYTES,
    Kind,
    Stop,
    Topic,
)

PAGE_BYTES = 1 << 16  # of any machine, or a whole number of its pages


@pytest.fixture
def log(tmp_path):
    return EventLog(str(tmp_path), role="script")


@pytest.fixture
def of_worker(tmp_path):
    return EventLog(str(tmp_path), role="child")


def in_python(code, *words, **how):
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **how
    )


def fill(log, records, first=0):
    for number in range(first, first + records):
        log.emit(Kind.FORWARD, 1, 2, 0, number)


def path_of(log):
    assert log.path is not None
    return Path(log.path)


def size(log):
    return path_of(log).stat().st_size


def values(log):
    return [event.value for event in read_recording(path_of(log)).of(Kind.FORWARD)]


def test_a_log_of_a_worker_begins_small_and_doubles(of_worker):
    sizes = []
    for number in range(3 * CHUNK_BYTES // RECORD_BYTES):
        of_worker.emit(Kind.FORWARD, 1, 2, 0, number)
        if not sizes or number % 64 == 0:
            sizes.append(size(of_worker))
    grown = sorted(set(sizes))
    assert grown[0] == FIRST_CHUNK_BYTES
    for before, after in pairwise(grown):
        assert after - before == min(before, CHUNK_BYTES)
    assert values(of_worker) == list(range(3 * CHUNK_BYTES // RECORD_BYTES))


@pytest.mark.parametrize("records", [1, 200, 40_000])
@pytest.mark.parametrize("role", ["script", "child"])
def test_at_its_end_a_process_gives_back_what_it_did_not_write(tmp_path, role, records):
    log = EventLog(str(tmp_path), role=role)
    fill(log, records)
    log.begin_end()
    log.trim()
    assert 0 <= size(log) - HEADER_BYTES - records * RECORD_BYTES < PAGE_BYTES
    assert path_of(log).stat().st_blocks * 512 <= size(log) + PAGE_BYTES
    assert values(log) == list(range(records))


def test_what_comes_after_the_end_is_recorded(log):
    fill(log, 10)
    log.begin_end()
    log.trim()
    trimmed = size(log)
    fill(log, 1000, first=10)
    log.note(Topic.ENVIRONMENT, {"late": True})
    assert size(log) - trimmed <= 3 * FIRST_CHUNK_BYTES
    log.trim()
    log.trim()
    fill(log, 1, first=1010)
    assert values(log) == list(range(1011))
    assert read_recording(path_of(log)).notes(Topic.ENVIRONMENT) == [{"late": True}]


def test_nothing_to_give_back_is_no_fault(log, tmp_path):
    log.trim()
    assert list(tmp_path.iterdir()) == []
    fill(log, 1)
    assert size(log) == CHUNK_BYTES
    os.truncate(path_of(log), 2 * CHUNK_BYTES)  # it is not as we left it
    log.trim()
    assert size(log) == 2 * CHUNK_BYTES
    path_of(log).unlink()
    log.trim()
    fill(log, 1)
    missing = EventLog(str(tmp_path / "gone"), role="script")
    missing.emit(Kind.FORWARD, 1, 2)
    missing.note(Topic.ENVIRONMENT, {})
    assert list(tmp_path.iterdir()) == []


# A write into a mapping of what was cut off would end it by SIGBUS.
TRIMMED_MEANWHILE = """
import sys, threading
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Kind, Topic
log = EventLog(sys.argv[1], role=sys.argv[2])
sys.setswitchinterval(1e-6)
def fill(thread):
    for n in range(20_000):
        log.emit(Kind.FORWARD, 1, 2, 0, thread << 32 | n)
        if n % 100 == 0:
            log.note(Topic.ENVIRONMENT, thread << 32 | n)
threads = [threading.Thread(target=fill, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    log.trim()
"""


@pytest.mark.parametrize("role", ["script", "child"])
def test_a_thread_that_still_records_loses_nothing_and_lives(tmp_path, role):
    done = in_python(TRIMMED_MEANWHILE, tmp_path, role)
    assert (done.returncode, done.stderr) == (0, "")
    assert 2 * MAX_WRITTEN_BYTES <= MAX_LOG_BYTES  # what is recorded is read
    [path] = log_paths(tmp_path)
    recording = read_recording(path)
    counted = Counter(event.value for event in recording.of(Kind.FORWARD))
    assert counted == Counter(thread << 32 | n for thread in range(4) for n in range(20_000))
    assert len(recording.notes(Topic.ENVIRONMENT)) == 800


def test_a_log_has_a_largest_size(log, monkeypatch):
    monkeypatch.setattr(log_chunk, "MAX_WRITTEN_BYTES", 2 * CHUNK_BYTES)
    fill(log, 2 * CHUNK_BYTES // RECORD_BYTES)
    assert size(log) == 2 * CHUNK_BYTES
    log_file = read_log(path_of(log))
    assert (log_file.stopped_errno, log_file.stopped_ns is not None) == (Stop.LARGE, True)
    kept = values(log)
    assert kept == list(range(len(kept)))
    fill(log, 10)
    assert values(log) == kept
    log.begin_end()
    log.reopen_in_child()
    fill(log, 5)
    assert (values(log), size(log)) == (list(range(5)), FIRST_CHUNK_BYTES)


def test_the_end_of_a_process_is_told_in_a_log_that_was_full(log, monkeypatch):
    monkeypatch.setattr(log_chunk, "MAX_WRITTEN_BYTES", CHUNK_BYTES)
    fill(log, CHUNK_BYTES // RECORD_BYTES)
    stopped_ns = read_log(path_of(log)).stopped_ns
    log.begin_end()
    name = log.define(Topic.EXCEPTION, "KeyError")
    log.emit(Kind.PROCESS_END, 1, 1, 0, name)
    log.trim()
    recording = read_recording(path_of(log))
    [end] = recording.of(Kind.PROCESS_END)
    assert recording.texts[end.value] == (Topic.EXCEPTION, "KeyError")
    assert recording.file.stopped_ns == stopped_ns
    assert size(log) <= CHUNK_BYTES + PAGE_BYTES
    # That room has an end, too, and no second one tells of itself.
    fill(log, 2 * log_chunk.END_BYTES // RECORD_BYTES)
    assert size(log) <= CHUNK_BYTES + log_chunk.END_BYTES + FIRST_CHUNK_BYTES
    assert read_log(path_of(log)).stopped_ns == stopped_ns


GIB = 1 << 30


@pytest.mark.parametrize(
    ("disk_bytes", "free_bytes", "goes_on"),
    [
        (500 * GIB, GIB - 1, False),
        (500 * GIB, 2 * GIB, True),
        (2 * GIB, GIB // 9, True),
        (0, 0, True),  # a file system that tells nothing
    ],
)
def test_the_rest_of_a_disk_is_left_to_the_script(
    log, monkeypatch, disk_bytes, free_bytes, goes_on
):
    status = SimpleNamespace(f_frsize=1, f_blocks=disk_bytes, f_bavail=free_bytes)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    monkeypatch.setattr(log_chunk, "SMALL_LOG_BYTES", 2 * CHUNK_BYTES)
    fill(log, 3 * CHUNK_BYTES // RECORD_BYTES)
    if goes_on:
        assert len(values(log)) == 3 * CHUNK_BYTES // RECORD_BYTES
        assert read_log(path_of(log)).stopped_ns is None
    else:
        assert size(log) == 2 * CHUNK_BYTES  # a small one is no matter
        assert read_log(path_of(log)).stopped_errno == Stop.LITTLE_ROOM


FULL = """
import sys
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Kind
log = EventLog(sys.argv[1], role="script")
for n in range(200_000):
    log.emit(Kind.FORWARD, n, n, 0, n)
"""


def limited(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("chunks", [0, 2])
def test_a_file_that_may_not_grow_stops_recording_not_the_script(tmp_path, chunks):
    size = chunks * CHUNK_BYTES + HEADER_BYTES + 100
    assert in_python(FULL, tmp_path, preexec_fn=lambda: limited(size)).returncode == 0
    [path] = log_paths(tmp_path)
    recording = read_recording(path)
    assert recording.header["role"] == "script"
    assert recording.file.stopped_errno == errno.EFBIG
    values = [event.value for event in recording.events]
    assert values == list(range(len(values)))
    assert 0 <= chunks * CHUNK_BYTES // RECORD_BYTES - len(values) <= 200


def test_a_filesystem_without_fallocate_is_filled(log, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    log.emit(Kind.FORWARD, 1, 2, 0, 5)
    assert values(log) == [5]
    assert log.path is not None
    assert os.stat(log.path).st_blocks * 512 >= CHUNK_BYTES  # allocated, no holes


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("time.time_ns", lambda: 7)
    (tmp_path / f"{os.getpid()}-7.events").symlink_to(victim)
    log = EventLog(str(tmp_path), role="script")
    log.emit(Kind.FORWARD, 1, 2)
    assert victim.read_text() == "precious"
