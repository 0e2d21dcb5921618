"""The log as it is written, read back from disk."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.session import ROOT, in_threads, read_recording, read_recordings

from trainprof.record import event_log, log_chunk
from trainprof.record.event_log import EventLog, event_cost_ns
from trainprof.record.log_chunk import FIRST_CHUNK_BYTES
from trainprof.record.log_reader import log_paths
from trainprof.record.schema import CHUNK_BYTES, RECORD_BYTES, Kind, Topic

PER_CHUNK = CHUNK_BYTES // RECORD_BYTES


@pytest.fixture
def log(tmp_path):
    return EventLog(str(tmp_path), role="script")


def read(log):
    assert log.path is not None
    return read_recording(Path(log.path))


def written(log):
    return [event.value for event in read(log).of(Kind.FORWARD)]


def test_what_is_written_is_read(log):
    site = log.define(Topic.SITE, '["a.py", 3, "f"]')
    log.emit(Kind.TRANSFER, 5, 9, site, 1 << 60, 17)
    recording = read(log)
    [event] = recording.events
    shown = (event.kind, event.start, event.end, event.value, event.flags)
    assert shown == (Kind.TRANSFER, 5, 9, 1 << 60, 17)
    assert event.line == "a.py:3"
    assert recording.header["pid"] == os.getpid()
    assert recording.header["role"] == "script"
    [thread] = recording.of(Kind.THREAD)
    assert (thread.site, thread.value) == (1, threading.get_native_id())
    assert recording.file.stopped_ns is None


def test_nothing_is_opened_before_the_first_record(log, tmp_path):
    log.define(Topic.CLASS, "Net")
    log.note(Topic.ENVIRONMENT, {"torch": "2"})
    log.remember(Kind.TORCH_IMPORT, 1, 2)
    assert list(tmp_path.iterdir()) == []
    log.emit(Kind.FORWARD, 1, 2)
    [path] = log_paths(tmp_path)
    recording = read_recording(path)
    assert recording.notes(Topic.CLASS) == ["Net"]
    assert recording.notes(Topic.ENVIRONMENT) == [{"torch": "2"}]
    assert len(recording.of(Kind.TORCH_IMPORT)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "x" * 24, "x" * 25, "ünï" * 700, "\udc80 lone"])
def test_texts_of_any_length(log, text):
    log.define(Topic.CLASS, text)
    log.emit(Kind.FORWARD, 1, 2)
    late = log.define(Topic.EXCEPTION, text)
    as_read = text.encode("utf-8", "replace").decode()
    assert read(log).texts == {1: (Topic.CLASS, as_read), late: (Topic.EXCEPTION, as_read)}


def test_the_file_grows_by_chunks(log):
    count = 3 * PER_CHUNK
    for number in range(count):
        log.emit(Kind.FORWARD, 1, 2, 0, number)
    assert written(log) == list(range(count))
    assert log.path is not None
    assert os.path.getsize(log.path) == 4 * CHUNK_BYTES
    assert len(read(log).of(Kind.CLOCK)) == 4


def test_what_does_not_fit_a_record_harms_no_other(log):
    log.emit(Kind.FORWARD, -1, 2)
    log.emit(Kind.FORWARD, 1, 2, 1 << 40)
    log.emit(Kind.FORWARD, 1, 2, 0, "text")
    log.emit(Kind.FORWARD, 1, 2, 0, 7)
    assert written(log)[-1] == 7


def test_threads_lose_and_tear_nothing(log):
    threads, each = 8, PER_CHUNK // 2
    ready = threading.Barrier(threads)

    def emit_all(thread):
        ready.wait()
        for number in range(each):
            mark = thread << 32 | number
            log.emit(Kind.FORWARD, mark, mark, 0, mark)

    in_threads([partial(emit_all, number) for number in range(threads)])
    recording = read(log)
    assert all(event.start == event.end == event.value for event in recording.events)
    values = {thread << 32 | number for thread in range(threads) for number in range(each)}
    assert Counter(event.value for event in recording.events) == dict.fromkeys(values, 1)
    assert len({event.thread for event in recording.events}) == threads


def test_a_record_made_while_the_log_grows_is_kept(log, monkeypatch):
    """As a garbage collection or a signal handler may, on the very thread that grows the log."""
    allocate = os.posix_fallocate

    def interrupted(*args):
        log.emit(Kind.FORWARD, 1, 2, 0, 1000)
        allocate(*args)

    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    log.emit(Kind.FORWARD, 1, 2, 0, 1)
    assert sorted(written(log)) == [1, 1000]


class Late(Exception):
    """What the script's handler raises."""


class Signalling:
    """A kind of event at which, once, a signal comes in."""

    is_armed = True

    def __index__(self):
        if self.is_armed:
            self.is_armed = False
            signal.raise_signal(signal.SIGALRM)
        return int(Kind.FORWARD)


SIGNALLING: Any = Signalling


@pytest.fixture(params=[Late, KeyError, struct.error])
def handled(request):
    """What a handler of the script's raises at SIGALRM."""

    def handler(*_):
        raise request.param("now")

    before = signal.signal(signal.SIGALRM, handler)
    yield request.param
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_signal_handler_raises_meanwhile_reaches_the_script(log, handled, is_first):
    if not is_first:
        log.emit(Kind.FORWARD, 1, 2, 0, 1)
    with pytest.raises(handled, match="now") as caught:
        log.emit(SIGNALLING(), 1, 2, 0, 2)
    assert caught.value.__context__ is None
    log.emit(Kind.FORWARD, 1, 2, 0, 3)
    assert written(log) == ([3] if is_first else [1, 3])
    with pytest.raises(handled):
        log.emit_of(threading.get_ident(), SIGNALLING(), 1, 2, 0, 4, 0)
    log.emit(Kind.FORWARD, 1, 2, 0, 5)
    assert written(log)[-1] == 5


SMALL_CHUNK_BYTES = 64 << 10
PER_SMALL_CHUNK = SMALL_CHUNK_BYTES // RECORD_BYTES


def fill_two_chunks(log):
    for _ in range(2 * PER_SMALL_CHUNK):
        log.emit(Kind.FORWARD, 1, 2, 0, 1)


@pytest.mark.parametrize("chunks", [0, 1])
def test_what_a_signal_handler_raises_while_the_log_grows(
    log, handled, chunks, tmp_path, monkeypatch
):
    allocate, is_armed = os.posix_fallocate, False

    def interrupted(*args):
        nonlocal is_armed
        if is_armed:
            is_armed = False
            signal.raise_signal(signal.SIGALRM)
        allocate(*args)

    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    monkeypatch.setattr(log_chunk, "CHUNK_BYTES", SMALL_CHUNK_BYTES)
    for _ in range(chunks):
        log.emit(Kind.FORWARD, 1, 2, 0, 1)
    is_armed = True
    with pytest.raises(handled, match="now"):
        fill_two_chunks(log)
    before = len(written(log)) if chunks else 0
    fill_two_chunks(log)
    assert len(written(log)) == before + 2 * PER_SMALL_CHUNK
    assert len(read(log).of(Kind.THREAD)) == 1
    assert len(log_paths(tmp_path)) == 1


def test_a_fault_of_ours_that_is_like_it_stays_ours(log, handled, monkeypatch):
    def broken(*_):
        raise handled("ours")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    log.emit(Kind.FORWARD, 1, 2)


FORKS = """
import os, sys
from trainprof.record.event_log import EventLog, event_cost_ns
from trainprof.record.schema import Kind, Topic
log = EventLog(sys.argv[1], role="script")
os.register_at_fork(after_in_child=log.reopen_in_child)
net = log.define(Topic.CLASS, "Net")
for n in range(10):
    log.emit(Kind.FORWARD, n, n, net, n)
for _ in range(20):
    child = os.fork()
    if child == 0:
        log.define(Topic.CLASS, "of the child")
        for n in range(50):
            log.emit(Kind.FORWARD, n, n, net, n)
        os._exit(0)
    os.waitpid(child, 0)
silent = os.fork()
if silent == 0:
    os._exit(0)
os.waitpid(silent, 0)
for n in range(10, 30):
    log.emit(Kind.FORWARD, n, n, net, n)
"""


def test_a_forked_child_writes_its_own_log(tmp_path):
    subprocess.run([sys.executable, "-c", FORKS, tmp_path], cwd=ROOT, timeout=60, check=True)
    parent, *children = read_recordings(tmp_path)
    assert [event.value for event in parent.events] == list(range(30))
    assert len(children) == 20
    for child in children:
        assert [event.value for event in child.events] == list(range(50))
        assert {event.text for event in child.events} == {"Net"}
        assert child.header["role"] == "child"
        assert child.header["forked_from"] == parent.header["pid"]


PRINTS = "from trainprof.record.event_log import ancestors; print(*ancestors())"
STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_parent_and_grandparent_come_in_order():
    command = [sys.executable, "-c", STARTS, PRINTS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        pids, _ = child.communicate()
    assert list(map(int, pids.split()))[:3] == [child.pid, os.getpid(), os.getppid()]


MANY = 1_000


def define_many(log, topic):
    return [log.define(topic, json.dumps([number] * 300)) for number in range(MANY)]


@pytest.mark.parametrize("topic", [Topic.LOADER, Topic.STACK])
def test_a_child_writes_the_loaders_and_stacks_that_it_refers_to(log, topic):
    ids = define_many(log, topic)
    log.emit(Kind.FETCH, 1, 2, ids[0])
    parent = read(log)
    assert len(parent.notes(topic)) == MANY
    log.reopen_in_child()
    log.refer(ids[3])
    log.emit(Kind.FETCH, 1, 2, ids[3])
    log.refer(ids[5])
    assert log.define(topic, json.dumps([7] * 300)) == ids[7]
    log.emit(Kind.FETCH, 1, 2, ids[5])
    log.emit(Kind.FETCH, 1, 2, ids[7])
    child = read(log)
    assert [event.text[0] for event in child.events] == [3, 5, 7]
    assert {number: child.texts[number] for number in child.texts} == {
        ids[n]: parent.texts[ids[n]] for n in (3, 5, 7)
    }
    assert child.file.path.stat().st_size == FIRST_CHUNK_BYTES


def test_what_stands_for_itself_or_is_named_in_texts_is_written_at_once(log):
    texts = {topic: '["x"]' for topic in Topic if topic not in (Topic.LOADER, Topic.STACK)}
    for topic, text in texts.items():
        log.define(topic, text)
    log.reopen_in_child()
    log.emit(Kind.FETCH, 1, 2)
    assert dict(read(log).texts.values()) == texts


def test_an_event_costs_what_the_clock_says(monkeypatch):
    reads = itertools.count(0, 100)
    monkeypatch.setattr(event_log.time, "perf_counter_ns", lambda: next(reads))
    # Two reads of 100 ns an event, and one before all of a round.
    assert event_cost_ns() == pytest.approx(200, rel=0.02)
