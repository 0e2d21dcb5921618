"""Whether a process of a run is still there, or another one that was given its pid."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from trainprof.analysis.run.recording import NS_PER_S, SLACK_NS, is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="starts of processes are in /proc")

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
