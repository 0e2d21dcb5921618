"""Where threads are seen to stand, and what the thread that looks leaves behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Event, Recorder, Recording

from trainprof.probes import looks
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.looks import LooksProbe, why_not_here
from trainprof.record.schema import Kind, LookFlag, Topic

pytestmark = pytest.mark.skipif(why_not_here() is not None, reason="not told here")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "PERIODS_NS", ((1_000, 1_000_000),))


def compute() -> None:
    torch.nn.Linear(2, 2)(torch.ones(1, 2))


def burn() -> int:
    return sum(number for number in range(200_000))


def frames(recording: Recording, look: Event) -> list[str]:
    """Returns the functions of the user's that a look met, innermost first."""
    return [json.loads(recording.texts[site][1])[2] for site in look.text]


@pytest.mark.usefixtures("often")
def test_a_busy_line_is_met_and_so_is_the_line_that_called_it(recorder: Recorder) -> None:
    probe = LooksProbe()
    recorder.start(probe, ForwardProbe())
    compute()
    met: list[Event] = []
    for wanted in range(60, 1200, 60):  # on full cores many looks come too late to tell anything
        while probe._looks < wanted:
            burn()
        recording = recorder.read()
        met = [one for one in recording.of(Kind.LOOK) if one.text and one.flags & LookFlag.KNOWN]
        if len(met) >= 30:
            break
    assert recording.notes(Topic.PROBE_FAILED) == []
    assert all(one.start <= one.end and not one.flags & LookFlag.WAITS for one in met)
    burning = [one for one in met if "burn" in frames(recording, one)[:2]]
    assert len(burning) > len(met) / 2
    callers = [" ".join(frames(recording, one)[1:]) for one in burning]
    assert all("test_a_busy_line" in names for names in callers)


@pytest.mark.usefixtures("often")
def test_a_thread_that_waits_for_another_is_told_from_one_that_works(recorder: Recorder) -> None:
    probe, never = LooksProbe(), threading.Event()
    recorder.start(probe, ForwardProbe())
    compute()
    while probe._looks < 30:
        never.wait(0.01)
    waiting = recorder.read().of(Kind.LOOK)
    while probe._looks < 60:
        burn()
    working = recorder.read().of(Kind.LOOK)[len(waiting) :]
    assert sum(one.flags & LookFlag.WAITS > 0 for one in waiting) > len(waiting) / 2
    assert sum(one.flags & LookFlag.WAITS > 0 for one in working) < len(working) / 2


@pytest.mark.usefixtures("often")
def test_what_lets_nobody_else_run_is_told_from_what_does(recorder: Recorder) -> None:
    probe, released = LooksProbe(), threading.Lock()
    recorder.start(probe, ForwardProbe())
    compute()
    released.acquire()
    while probe._looks < 60:  # as torch's operators, this lets others run meanwhile
        released.acquire(timeout=0.02)
    idle = recorder.read().of(Kind.LOOK)
    while probe._looks < 120:
        burn()
    working = recorder.read().of(Kind.LOOK)[len(idle) + 1 :]
    assert sum(one.value > 0 for one in idle) < len(idle) / 3
    assert sum(one.value > 0 for one in working) > len(working) / 3
    assert all(one.value <= one.end - one.start for one in working)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("is_busy", [False, True])
def test_another_thread_that_runs_python_code_is_told(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    probe, is_over = LooksProbe(), threading.Event()
    own = threading.get_ident()
    idle = [frame for thread, frame in sys._current_frames().items() if thread != own]
    of_tests = {frame.f_code.co_filename for frame in idle}  # those that run the tests wait, too
    monkeypatch.setattr(looks, "_WAITING_FILES", looks._WAITING_FILES | of_tests)

    def other() -> None:
        while is_busy and not is_over.is_set():
            burn()
        is_over.wait()

    recorder.start(probe, ForwardProbe())
    compute()
    thread = threading.Thread(target=other)
    thread.start()
    while probe._looks < 60:
        burn()
    met = recorder.read().of(Kind.LOOK)
    is_over.set()
    thread.join()
    crowded = sum(one.flags & LookFlag.CROWDED > 0 for one in met)
    assert crowded > len(met) / 2 if is_busy else crowded < len(met) / 4


MS = 1_000_000


@pytest.mark.parametrize(
    ("waited_ms", "times", "off_ms", "is_sure"),
    [
        (5.1, 2, 0, True),  # asked after 5 ms, and let go at once
        (3.0, 1, 0, False),  # let go by itself
        (6.5, 2, 0, False),  # after 3 ms for a moment, and again after 3.5 ms
        (6.5, 2, 1.5, True),  # was off its core meanwhile
        (12.0, 3, 0, False),
        (42.0, 9, 0, True),  # one call in C, asked again and again
        (42.0, 14, 0, False),
    ],
)
def test_of_a_thread_that_takes_the_interpreter_back_nobody_knows_where_it_stood(
    waited_ms: float, times: int, off_ms: float, is_sure: bool
) -> None:
    told = looks._was_made_to_let_go(round(waited_ms * MS), times, round(off_ms * MS))
    assert told is is_sure


def test_nothing_is_looked_at_before_something_computes(recorder: Recorder) -> None:
    probe = LooksProbe()
    recorder.start(probe, ForwardProbe())
    assert recorder.read().of(Kind.LOOK) == []
    assert probe._stop is None


@pytest.mark.usefixtures("often")
def test_the_script_sees_no_thread_of_its_own_and_none_goes_on(recorder: Recorder) -> None:
    before, was_enabled = threading.enumerate(), gc.isenabled()
    probe = LooksProbe()
    session = recorder.start(probe, ForwardProbe())
    compute()
    assert threading.enumerate() == before
    while probe._looks < 3:
        burn()
    for finish in session.at_end:
        finish()
    looks_taken = probe._looks
    burn()
    assert probe._looks == looks_taken
    assert gc.isenabled() is was_enabled


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
@pytest.mark.usefixtures("often")
def test_no_signal_of_the_script_is_delivered_to_it(recorder: Recorder) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = set(os.listdir("/proc/self/task"))
    probe = LooksProbe()
    recorder.start(probe, ForwardProbe())
    compute()
    while probe._looks < 1:
        burn()
    [ours] = [
        task for task in set(os.listdir("/proc/self/task")) - before if blocks(task, signal.SIGINT)
    ]
    assert all(blocks(ours, one) for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def blocks(task: str, one: int) -> bool:
    """Tells whether a thread of this process has a signal blocked."""
    status = Path(f"/proc/self/task/{task}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    return bool(blocked >> (one - 1) & 1)


@pytest.mark.usefixtures("often")
def test_a_forked_child_is_not_looked_at_and_its_parent_still_is(recorder: Recorder) -> None:
    probe = LooksProbe()
    recorder.start(probe, ForwardProbe())
    compute()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if probe._stop is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    before = probe._looks
    while probe._looks < before + 3:
        burn()


def test_lines_that_are_timed_are_not_looked_at(recorder: Recorder) -> None:
    probe = LooksProbe()
    recorder.start(probe, ForwardProbe(), options={"lines": {"only": None}})
    compute()
    assert probe._stop is None


@pytest.mark.parametrize(
    ("attribute", "value", "why"),
    [
        ("platform", "beos", None),
        ("_is_gil_enabled", lambda: False, "not without the GIL"),
    ],
)
def test_where_it_cannot_be_done_says_why(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, why: str | None
) -> None:
    monkeypatch.setattr(looks.sys, attribute, value, raising=False)
    assert why_not_here() == why
