"""The log as it is written, read back from disk."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.session import ROOT, read_recording, read_recordings

from trainprof.record import log_chunk
from trainprof.record.event_log import EventLog
from trainprof.record.log_reader import log_paths, read_log
from trainprof.record.schema import CHUNK_BYTES, HEADER_BYTES, RECORD_BYTES, Kind, Topic

PER_CHUNK = CHUNK_BYTES // RECORD_BYTES


@pytest.fixture
def log(tmp_path):
    return EventLog(str(tmp_path), role="script")


def written(log):
    assert log.path is not None
    return [event.value for event in read_recording(Path(log.path)).of(Kind.FORWARD)]


def in_python(code, *words):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_is_written_is_read(log):
    site = log.define(Topic.SITE, '["a.py", 3, "f"]')
    log.emit(Kind.TRANSFER, 5, 9, site, 1 << 60, 17)
    assert log.path is not None
    recording = read_recording(Path(log.path))
    [event] = recording.events
    assert (event.kind, event.start, event.end, event.value, event.flags) == (
        Kind.TRANSFER,
        5,
        9,
        1 << 60,
        17,
    )
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


def test_the_same_text_has_the_same_id(log):
    first = log.define(Topic.CLASS, "Net")
    assert log.define(Topic.OPTIMIZER, "Net") != first
    assert log.define(Topic.CLASS, "Net") == first


@pytest.mark.parametrize("text", ["", "x" * 24, "x" * 25, "ünï" * 700, "\udc80 lone"])
def test_texts_of_any_length(log, text):
    log.define(Topic.CLASS, text)
    log.emit(Kind.FORWARD, 1, 2)
    late = log.define(Topic.EXCEPTION, text)
    assert log.path is not None
    texts = read_recording(Path(log.path)).texts
    as_read = text.encode("utf-8", "replace").decode()
    assert texts == {1: (Topic.CLASS, as_read), late: (Topic.EXCEPTION, as_read)}


def test_the_file_grows_by_chunks(log):
    count = 3 * PER_CHUNK
    for number in range(count):
        log.emit(Kind.FORWARD, 1, 2, 0, number)
    assert written(log) == list(range(count))
    assert log.path is not None
    assert os.path.getsize(log.path) == 4 * CHUNK_BYTES
    recording = read_recording(Path(log.path))
    clocks = recording.of(Kind.CLOCK)
    assert len(clocks) == 4
    assert [c.start for c in clocks] == sorted(c.start for c in clocks)


def test_what_does_not_fit_a_record_harms_no_other(log):
    log.emit(Kind.FORWARD, -1, 2)
    log.emit(Kind.FORWARD, 1, 2, 1 << 40)
    log.emit(Kind.FORWARD, 1, 2, 0, "text")
    log.emit(Kind.FORWARD, 1, 2, 0, 7)
    assert written(log)[-1] == 7


def test_threads_lose_and_tear_nothing(log):
    threads, each = 8, PER_CHUNK // 2
    interval = sys.getswitchinterval()
    ready = threading.Barrier(threads)

    def emit_all(thread):
        ready.wait()
        for number in range(each):
            mark = thread << 32 | number
            log.emit(Kind.FORWARD, mark, mark, 0, mark)

    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=emit_all, args=(n,)) for n in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert log.path is not None
    [path] = log_paths(Path(log.path).parent)
    recording = read_recording(path)
    assert all(event.start == event.end == event.value for event in recording.events)
    assert Counter(event.value >> 32 for event in recording.events) == dict.fromkeys(
        range(threads), each
    )
    assert len({event.value for event in recording.events}) == threads * each
    of_thread = {event.value >> 32: event.thread for event in recording.events}
    assert len(set(of_thread.values())) == len(recording.of(Kind.THREAD)) == threads


def test_threads_that_define_texts_share_ids(log):
    log.emit(Kind.FORWARD, 1, 2)
    ready = threading.Barrier(4)
    ids: list[dict[str, int]] = []

    def define_all():
        ready.wait()
        ids.append({str(n): log.define(Topic.CLASS, str(n)) for n in range(2000)})

    running = [threading.Thread(target=define_all) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(one == ids[0] for one in ids)
    assert log.path is not None
    texts = read_recording(Path(log.path)).texts
    assert {text: number for number, (_, text) in texts.items()} == ids[0]


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


@pytest.fixture(params=[Late, TimeoutError, KeyError, ValueError, struct.error, RuntimeError])
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
    assert log.path is not None
    assert len(read_recording(Path(log.path)).of(Kind.THREAD)) == 1
    assert len(log_paths(tmp_path)) == 1


def test_a_fault_of_ours_that_is_like_it_stays_ours(log, handled, monkeypatch):
    def broken(*_):
        raise handled("ours")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    log.emit(Kind.FORWARD, 1, 2)


FORKS = """
import os, sys
from trainprof.record.event_log import EventLog
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
    done = in_python(FORKS, tmp_path)
    assert done.returncode == 0, done.stderr
    parent, *children = read_recordings(tmp_path)
    assert [event.value for event in parent.events] == list(range(30))
    assert len(children) == 20
    for child in children:
        assert [event.value for event in child.events] == list(range(50))
        assert {event.text for event in child.events} == {"Net"}
        assert child.header["role"] == "child"
        assert child.header["forked_from"] == parent.header["pid"]


KILLED = """
import os, sys
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Kind
log = EventLog(sys.argv[1], role="script")
for n in range(1, 100_000):
    log.emit(Kind.FORWARD, n, n, 0, n)
    if n % 10_000 == 0:
        os.write(1, b"%d\\n" % n)
        sys.stdin.read(1)
"""


def test_a_killed_process_has_lost_nothing(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            known = int(process.stdout.readline())
            process.stdin.write(b"x")
            process.stdin.flush()
        process.send_signal(signal.SIGKILL)  # while it writes
    [path] = log_paths(tmp_path)
    *whole, last = read_recording(path).events
    assert [(event.start, event.end, event.value) for event in whole] == [
        (number, number, number) for number in range(1, len(whole) + 1)
    ]
    assert len(whole) + 1 >= known
    # The one in the making may be half there, written from its start on.
    assert (last.start, last.end, last.value) in {
        (len(whole) + 1,) * kept + (0,) * (3 - kept) for kept in range(4)
    }


CLOSED = """
import os, sys
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Kind
log = EventLog(sys.argv[1], role="script")
keep = os.register_at_fork(after_in_child=log.reopen_in_child)
log.emit(Kind.FORWARD, 0, 0, 0, 0)
os.closerange(3, 256)
mine = [open(sys.argv[2] + str(n), "w") for n in range(4)]   # one of them has our old number
for n in range(1, 70_000):
    log.emit(Kind.FORWARD, n, n, 0, n)
for n, file in enumerate(mine):
    file.write(f"mine {n}")
    file.flush()
    os.fstat(file.fileno())
child = os.fork()
if child == 0:
    log.emit(Kind.FORWARD, 0, 0, 0, 0)
    for file in mine:
        os.fstat(file.fileno())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
left_to_the_end = mine
left_to_the_end[0].write(", unflushed")
"""


def test_a_script_may_close_our_descriptors_and_keeps_its_own(tmp_path):
    events = tmp_path / "events"
    events.mkdir()
    done = in_python(CLOSED, events, tmp_path / "mine")
    assert (done.returncode, done.stderr) == (0, "")
    parent = read_recordings(events)[0]
    assert [event.value for event in parent.events] == list(range(70_000))
    assert (tmp_path / "mine0").read_text() == "mine 0, unflushed"
    assert (tmp_path / "mine3").read_text() == "mine 3"


FULL = """
import sys, time
from trainprof.record.event_log import EventLog
from trainprof.record.schema import Kind
log = EventLog(sys.argv[1], role="script")
begin = time.perf_counter_ns()
for n in range(200_000):
    log.emit(Kind.FORWARD, n, n, 0, n)
print(begin, time.perf_counter_ns())
"""


def limited(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("chunks", [0, 2])
def test_a_file_that_may_not_grow_stops_recording_not_the_script(tmp_path, chunks):
    size = chunks * CHUNK_BYTES + HEADER_BYTES + 100
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: limited(size),
    )
    begin, end = map(int, done.stdout.split())
    [path] = log_paths(tmp_path)
    recording = read_recording(path)
    assert recording.header["role"] == "script"
    assert recording.file.stopped_errno == errno.EFBIG
    assert recording.file.stopped_ns is not None
    assert begin < recording.file.stopped_ns < end
    values = [event.value for event in recording.events]
    assert values == list(range(len(values)))
    assert chunks * PER_CHUNK - 200 <= len(values) <= chunks * PER_CHUNK


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip("may not mount a tmpfs here")
    yield place
    # Lazily: what this process has mapped of the recording keeps the disk busy.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_stops_recording_not_the_script(small_disk):
    done = in_python(FULL, small_disk)
    assert done.returncode == 0, done.stderr
    [path] = log_paths(small_disk)
    recording = read_recording(path)
    assert recording.file.stopped_errno == errno.ENOSPC
    assert [event.value for event in recording.events] == list(range(len(recording.events)))
    assert len(recording.events) > PER_CHUNK - 200


def test_a_missing_directory_is_no_fault(tmp_path):
    log = EventLog(str(tmp_path / "gone"), role="script")
    log.emit(Kind.FORWARD, 1, 2)
    log.note(Topic.ENVIRONMENT, {})
    log.emit(Kind.FORWARD, 1, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_filesystem_without_fallocate_is_filled(log, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    log.emit(Kind.FORWARD, 1, 2, 0, 5)
    assert written(log) == [5]
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


def test_an_odd_argv_is_no_fault(log, monkeypatch):
    monkeypatch.setattr(sys, "argv", [Path("x" * 5000)])
    log.emit(Kind.FORWARD, 1, 2, 0, 3)
    assert written(log) == [3]
    assert log.path is not None
    assert read_log(Path(log.path)).header["argv0"].startswith("xxx")


def test_the_header_is_one_json_object(log):
    log.emit(Kind.FORWARD, 1, 2)
    assert log.path is not None
    assert json.loads(json.dumps(read_log(Path(log.path)).header)).keys() >= {
        "pid",
        "ppid",
        "ancestors",
        "forked_from",
        "role",
        "perf_ns",
        "time_ns",
        "rank",
    }
