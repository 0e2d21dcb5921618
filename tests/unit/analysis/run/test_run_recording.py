"""What of a run directory can be read, and whether a process of the run is still there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainprof.analysis.run.recording import read_recording
from trainprof.analysis.statistics.time_weighted import NS_PER_S
from trainprof.record.event_log import EventLog
from trainprof.record.run_directory import RunDirectory
from trainprof.record.running import SLACK_NS, is_alive
from trainprof.record.schema import Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="starts of processes are in /proc")


def killed_as_it_makes_its_log(log: EventLog, *, has_allocated: bool) -> None:
    """Forks a process that begins a log of its own, and is killed before anything is written."""
    allocate = os.posix_fallocate

    def is_killed(*where: int) -> None:
        if has_allocated:
            allocate(*where)
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        os.posix_fallocate = is_killed
        log.reopen_in_child()
        log.emit(Kind.FORWARD, 1, 2)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="logs are written, not allocated")
@pytest.mark.parametrize("has_allocated", [False, True])
@pytest.mark.parametrize("script_recorded", [False, True])
def test_a_process_that_is_killed_as_it_makes_its_log(
    tmp_path: Path, has_allocated: bool, script_recorded: bool
) -> None:
    directory = RunDirectory(tmp_path)
    directory.events.mkdir()
    directory.manifest.write_text('{"schema_version": 1}')
    log = EventLog(str(directory.events), role="script")
    if script_recorded:
        log.emit(Kind.FORWARD, 1, 2)
    killed_as_it_makes_its_log(log, has_allocated=has_allocated)
    [empty] = [path for path in directory.events.iterdir() if not path.read_bytes().rstrip(b"\0")]
    recording = read_recording(directory)
    assert len(recording.logs) == script_recorded
    # It had recorded nothing; that nothing at all is there needs a reason.
    assert recording.damage == ([] if script_recorded else [f"{empty.name} is empty"])


HOUR_NS = 3600 * NS_PER_S


def manifest(spawned_ns: int | None, name: str = os.uname().nodename) -> dict[str, object]:
    return {"host": {"name": name}, "times": {"spawned_ns": spawned_ns}}


def test_a_process_of_the_run_is_alive_until_it_ends() -> None:
    began_ns = time.perf_counter_ns()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_alive(process.pid, manifest(began_ns), known_ns=time.perf_counter_ns())
        assert not is_alive(process.pid, manifest(began_ns, "another"), known_ns=began_ns)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        # Ended, and nobody has waited for it.
        assert not is_alive(process.pid, manifest(began_ns), known_ns=began_ns)
    assert not is_alive(process.pid, manifest(began_ns), known_ns=began_ns)


def test_a_process_that_is_killed_has_ended_before_it_is_gone() -> None:
    """The end of its output can be read while the kernel still takes the rest of it apart."""
    script = "b = bytearray(1 << 28); print(flush=True); input()"
    began_ns = time.perf_counter_ns()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert is_alive(process.pid, manifest(began_ns), known_ns=began_ns)
        process.kill()
        process.stdout.read()  # to its end
        assert not is_alive(process.pid, manifest(began_ns), known_ns=began_ns)


def test_another_process_under_the_same_pid_is_not_it() -> None:
    now_ns = time.perf_counter_ns()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        before, after = now_ns - HOUR_NS, now_ns + HOUR_NS
        assert not is_alive(process.pid, manifest(before), known_ns=now_ns - 2 * SLACK_NS)
        # The run belongs to the time before the machine was started again.
        assert not is_alive(process.pid, manifest(after), known_ns=after)


@pytest.mark.parametrize("pid", [None, 0, -1, "1", 1.0, True, 2**31, 10**30])
def test_what_is_no_pid_is_no_process(pid: object) -> None:
    assert not is_alive(pid, manifest(None), known_ns=None)
    assert is_alive(os.getpid(), manifest(None), known_ns=None)
