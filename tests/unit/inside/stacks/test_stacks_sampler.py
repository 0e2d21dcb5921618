"""Where threads are seen to stand, and what the thread that looks leaves behind."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support.machine import attempts
from support.session import Event, Recorder, Recording

from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.stacks import sampler
from trainprof.inside.stacks.sampler import StackSampler, why_not_here
from trainprof.record.schema import Kind, LookFlag, Topic

pytestmark = pytest.mark.skipif(why_not_here() is not None, reason="not told here")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "PERIODS_NS", ((1_000, 1_000_000),))


def of_library(text: str, **names: Any) -> Any:
    """Returns the function `compute` of a module that has these names."""
    exec(compile(text, "/library/other.py", "exec"), names)
    return names["compute"]


def compute() -> None:
    torch.nn.Linear(2, 2)(torch.ones(1, 2))


def burn() -> int:
    return sum(number for number in range(200_000))


def frames(recording: Recording, look: Event) -> list[str]:
    """Returns the functions of the user's that a look met, innermost first."""
    return [json.loads(recording.texts[site][1])[2] for site in look.text]


@pytest.mark.usefixtures("often")
def test_a_busy_line_is_met_and_so_is_the_line_that_called_it(recorder: Recorder) -> None:
    probe = StackSampler()
    recorder.start(probe, ForwardProbe())
    compute()
    met: list[Event] = []
    for wanted in range(60, 1200, 60):  # on full cores many looks come too late to tell anything
        while probe._samples < wanted:
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
    probe, never = StackSampler(), threading.Event()
    recorder.start(probe, ForwardProbe())
    compute()
    while probe._samples < 30:
        never.wait(0.01)
    waiting = recorder.read().of(Kind.LOOK)
    while probe._samples < 60:
        burn()
    working = recorder.read().of(Kind.LOOK)[len(waiting) :]
    for met, is_wait in ((waiting, True), (working, False)):
        # One that had to wait stands for all that were due meanwhile: each counts once here.
        flags = {one.end: one.flags for one in met}.values()
        waits = sum(flag & LookFlag.WAITS > 0 for flag in flags)
        assert (waits > len(flags) / 2) is is_wait


@pytest.mark.usefixtures("often")
@pytest.mark.usefixtures("often", "alone")
@pytest.mark.parametrize("is_asleep", [False, True])
def test_who_runs_while_the_interpreter_is_free_is_told_from_who_sleeps(
    recorder: Recorder, is_asleep: bool
) -> None:
    probe, is_over, data = StackSampler(), threading.Event(), bytes(2_000_000)

    def other() -> None:
        while not is_over.is_set():
            zlib.crc32(data)

    recorder.start(probe, ForwardProbe())
    compute()
    thread = threading.Thread(target=other)
    thread.start()
    begin = 16
    for attempt in attempts():  # beside another test the other thread may hold the only core
        while probe._samples < 80 * (attempt + 1):
            if is_asleep:
                time.sleep(0.02)
            else:
                zlib.crc32(data)
        free = [one for one in recorder.read().of(Kind.LOOK) if one.value == 0][begin:]
        runs = sum(one.flags & LookFlag.RUNS > 0 for one in free)
        is_right = runs < len(free) / 4 if is_asleep else runs > len(free) / 2
        if free and is_right:
            break
        begin += len(free)
    is_over.set()
    thread.join()
    assert free
    assert runs < len(free) / 4 if is_asleep else runs > len(free) / 2


@pytest.mark.usefixtures("often", "alone")
@pytest.mark.parametrize(
    "work",
    [
        "torch",
        "asleep",
        "python",
        "another library",
        "a library of arrays",
        "a library that uses torch",
    ],
)
def test_torchs_operators_are_told_from_what_else_lets_others_run(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    numbers, data = torch.rand(1_000_000), bytes(2_000_000)
    if "library" in work:
        # The frames that call it are a library's then.
        monkeypatch.setattr(CallSites, "is_user_code", lambda *_: False)
    arrays = {"numpy": numpy} if work == "a library of arrays" else {}
    other = of_library("def compute(data):\n    zlib.crc32(data)\n", zlib=zlib, **arrays)

    def do() -> None:
        if work in ("torch", "a library that uses torch"):
            numbers.softmax(0).exp().sum()
        elif work in ("another library", "a library of arrays"):
            other(data)
        elif work == "asleep":
            time.sleep(0.02)
        else:
            burn()

    is_torch = work in ("torch", "a library that uses torch")
    # Looks so close to one another may find who was made to let go still waiting for a core.
    for _attempt in attempts():
        probe = StackSampler()
        recorder.start(probe, ForwardProbe())
        compute()
        while probe._samples < 80:
            do()
        recorder.stop()
        met = recorder.read().of(Kind.LOOK)[8:]
        of_arrays = sum(one.flags & LookFlag.ARRAYS > 0 for one in met)
        operators = sum(one.flags & LookFlag.OPERATOR > 0 for one in met)
        is_right = operators > len(met) / 2 if is_torch else operators < len(met) / 4
        if is_right and (of_arrays > len(met) / 2 if arrays else of_arrays == 0):
            break
    assert operators > len(met) / 2 if is_torch else operators < len(met) / 4
    assert of_arrays > len(met) / 2 if arrays else of_arrays == 0


def test_what_lets_nobody_else_run_is_told_from_what_does(recorder: Recorder) -> None:
    probe, released = StackSampler(), threading.Lock()
    recorder.start(probe, ForwardProbe())
    compute()
    released.acquire()
    while probe._samples < 60:  # as torch's operators, this lets others run meanwhile
        released.acquire(timeout=0.02)
    idle = recorder.read().of(Kind.LOOK)
    while probe._samples < 120:
        burn()
    working = recorder.read().of(Kind.LOOK)[len(idle) + 1 :]
    assert sum(one.value > 0 for one in idle) < len(idle) / 3
    assert sum(one.value > 0 for one in working) > len(working) / 3
    assert all(one.value <= one.end - one.start for one in working)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those threads that run the tests count as waiting."""
    own = threading.get_ident()
    idle = [frame for thread, frame in sys._current_frames().items() if thread != own]
    of_tests = {frame.f_code.co_filename for frame in idle}
    monkeypatch.setattr(sampler, "_WAITING_FILES", sampler._WAITING_FILES | of_tests)


def burn_briefly() -> int:
    """Python code of a good millisecond, which lets go behind itself."""
    return sum(number for number in range(60_000))


@pytest.mark.usefixtures("alone")
def test_who_lets_go_for_moments_is_met_late_or_where_it_works(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each moment makes whoever waits for the interpreter begin anew, until a longer one comes."""
    monkeypatch.setattr(sampler, "PERIODS_NS", ((1_000, 10_000_000),))
    data = bytes(8_000)
    probe = StackSampler()
    recorder.start(probe, ForwardProbe())
    compute()
    begin = 0
    for wanted in range(60, 361, 60):  # on full cores many looks come late all the same
        while probe._samples < wanted:
            for _ in range(12):
                burn_briefly()
                zlib.crc32(data)  # lets go of the interpreter
            time.sleep(0.003)
        recording = recorder.read()
        met = recording.of(Kind.LOOK)[begin:]
        begin += len(met)
        known = [one for one in met if one.flags & LookFlag.KNOWN]
        burning = {"burn_briefly", "<genexpr>"}
        elsewhere = [one for one in known if not burning & {*frames(recording, one)}]
        # It sleeps for about a fifth of the time, and has no core for some of the rest.
        if len(elsewhere) < 0.4 * len(met):
            break
    else:
        where = [(one.flags & LookFlag.KNOWN, *frames(recording, one)[:2]) for one in met]
        raise AssertionError({place: where.count(place) for place in where})


def hold() -> None:
    sum(range(3_000_000))  # C code, in which no other thread gets the interpreter


def let_go() -> None:
    time.sleep(0.03)


@pytest.mark.usefixtures("alone")
def test_who_keeps_others_out_for_longer_than_a_period_counts_for_all_of_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "PERIODS_NS", ((1_000, 10_000_000),))
    recorder.start(StackSampler(), ForwardProbe())
    compute()
    spent = {hold: 0.0, let_go: 0.0}
    for _attempt in attempts():
        for work in [hold, let_go] * 25:
            begin = time.perf_counter()
            work()
            spent[work] += time.perf_counter() - begin
        recording = recorder.read()
        met = [{*frames(recording, one)} for one in recording.of(Kind.LOOK)]
        held = sum("hold" in names for names in met)
        asleep = sum("let_go" in names for names in met)
        share, truth = held / max(held + asleep, 1), spent[hold] / sum(spent.values())
        if abs(share - truth) < 0.1 and held + asleep > 100:
            break
    assert share == pytest.approx(truth, abs=0.1)


@pytest.mark.usefixtures("often", "alone")
@pytest.mark.parametrize("is_busy", [False, True])
def test_another_thread_that_runs_python_code_is_told(recorder: Recorder, is_busy: bool) -> None:
    probe, is_over = StackSampler(), threading.Event()

    def other() -> None:
        while is_busy and not is_over.is_set():
            burn()
        is_over.wait()

    recorder.start(probe, ForwardProbe())
    compute()
    thread = threading.Thread(target=other)
    thread.start()
    while probe._samples < 60:
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
    told = sampler._was_made_to_let_go(round(waited_ms * MS), times, round(off_ms * MS))
    assert told is is_sure


def test_nothing_is_looked_at_before_something_computes(recorder: Recorder) -> None:
    probe = StackSampler()
    recorder.start(probe, ForwardProbe())
    assert recorder.read().of(Kind.LOOK) == []
    assert probe._samples == 0


@pytest.mark.usefixtures("often")
def test_the_script_sees_no_thread_of_its_own_and_none_goes_on(recorder: Recorder) -> None:
    before, was_enabled = threading.enumerate(), gc.isenabled()
    probe = StackSampler()
    session = recorder.start(probe, ForwardProbe())
    compute()
    assert threading.enumerate() == before
    while probe._samples < 3:
        burn()
    for finish in session.at_end:
        finish()
    samples_taken = probe._samples
    burn()
    assert probe._samples == samples_taken
    assert gc.isenabled() is was_enabled


@pytest.mark.usefixtures("often")
def test_code_is_read_and_places_are_written_down_while_the_collector_is_on(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may let go of the interpreter, and the script would find the collector off."""
    is_on: list[bool] = []
    probe = StackSampler()
    named = probe._stack
    monkeypatch.setattr(probe, "_stack", lambda stack: is_on.append(gc.isenabled()) or named(stack))
    recorder.start(probe, ForwardProbe())
    compute()
    while probe._samples < 10:
        burn()
    probe._pause()
    assert len(is_on) >= 9
    assert all(is_on)


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
@pytest.mark.usefixtures("often")
def test_no_signal_of_the_script_is_delivered_to_it(recorder: Recorder) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = set(os.listdir("/proc/self/task"))
    probe = StackSampler()
    recorder.start(probe, ForwardProbe())
    compute()
    while probe._samples < 1:
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
    probe = StackSampler()
    recorder.start(probe, ForwardProbe())
    compute()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if probe._stop is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    before = probe._samples
    while probe._samples < before + 3:
        burn()


def test_lines_that_are_timed_are_not_looked_at(recorder: Recorder) -> None:
    probe = StackSampler()
    recorder.start(probe, ForwardProbe(), options={"lines": {"only": None}})
    compute()
    assert probe._watched == []


@pytest.mark.parametrize(
    ("attribute", "value", "why"),
    [("platform", "beos", None), ("_is_gil_enabled", lambda: False, "not without the GIL")],
)
def test_where_it_cannot_be_done_says_why(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, why: str | None
) -> None:
    monkeypatch.setattr(sampler.sys, attribute, value, raising=False)
    assert why_not_here() == why


@pytest.mark.usefixtures("often")
def test_where_a_thread_stands_is_read_before_it_can_go_on(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of the kernel lets go of the interpreter, and the script goes on meanwhile."""
    armed, asked, moved = threading.Event(), threading.Event(), threading.Event()
    calls = itertools.count()

    def waits() -> int:
        is_behind_the_wait = next(calls) % 2 == 1
        if is_behind_the_wait and armed.is_set() and not asked.is_set():
            asked.set()
            moved.wait(30)
        return 0

    def stays() -> None:
        armed.set()
        while not asked.is_set():
            pass

    def goes_on() -> None:
        moved.set()
        begun = probe._samples
        while probe._samples < begun + 2:
            pass

    monkeypatch.setattr(sampler, "times_waited", lambda: waits)
    probe = StackSampler()
    recorder.start(probe, ForwardProbe())
    compute()
    stays()
    written = len(recorder.read().of(Kind.LOOK))
    goes_on()
    recording = recorder.read()
    held, *later = [frames(recording, one) for one in recording.of(Kind.LOOK)[written:]]
    assert "goes_on" not in held
    assert any("goes_on" in names for names in later)
