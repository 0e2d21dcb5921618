"""Stack samples: where threads are, who computes, and what the sampler leaves behind."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional
from support.machine import attempts
from support.session import Event, Recorder, Recording

from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.process.own_thread import no_collections
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.stacks import sampler
from trainprof.inside.stacks.sampler import (
    StackSampler,
    ThreadCpuShares,
    TorchUse,
    why_unsupported,
)
from trainprof.record.schema import Kind, StackFlag, Topic

pytestmark = pytest.mark.skipif(why_unsupported() is not None, reason="not sampled here")
MS = 1_000_000


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "PERIODS_NS", ((1_000, MS),))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those threads that run the tests count as waiting."""
    own = threading.get_ident()
    idle = [frame for thread, frame in sys._current_frames().items() if thread != own]
    of_tests = {frame.f_code.co_filename for frame in idle}
    monkeypatch.setattr(sampler, "_WAITING_FILES", sampler._WAITING_FILES | of_tests)


def compute() -> None:
    torch.nn.Linear(2, 2)(torch.ones(1, 2))


def burn(count: int = 200_000) -> int:
    return sum(number for number in range(count))


def start(recorder: Recorder, **options: Any) -> StackSampler:
    """Samples this thread from now on."""
    probe = StackSampler()
    recorder.start(probe, ForwardProbe(), **options)
    compute()
    return probe


def work_until(probe: StackSampler, samples: int, work: Callable[[], object] = burn) -> None:
    while probe._samples < samples:
        work()


def frames(recording: Recording, sample: Event) -> list[str]:
    """Returns the user's functions in a sample, innermost first."""
    return names(recording, [site for site in sample.text if isinstance(site, int)])


def names(recording: Recording, sites: list[int]) -> list[str]:
    return [json.loads(recording.texts[site][1])[2] for site in sites]


def count(samples: Iterable[Event], flag: StackFlag) -> int:
    return sum(sample.flags & flag > 0 for sample in samples)


@pytest.mark.usefixtures("often")
def test_a_busy_line_is_sampled_and_so_is_the_line_that_called_it(recorder: Recorder) -> None:
    probe = start(recorder)
    samples: list[Event] = []
    for wanted in range(60, 1200, 60):  # on full cores many samples are late
        work_until(probe, wanted)
        recording = recorder.read()
        looks = recording.of(Kind.STACK_SAMPLE)
        samples = [x for x in looks if x.text and x.flags & StackFlag.KNOWN]
        if len(samples) >= 30:
            break
    assert recording.notes(Topic.PROBE_FAILED) == []
    assert all(sample.start <= sample.end for sample in samples)
    assert count(samples, StackFlag.WAITS) == 0
    stacks = [frames(recording, sample) for sample in samples]
    burning = [stack for stack in stacks if "burn" in stack[:2]]
    assert len(burning) > len(samples) / 2
    assert all("test_a_busy_line" in " ".join(stack[1:]) for stack in burning)


@pytest.mark.usefixtures("often")
def test_a_thread_that_waits_and_one_that_works(recorder: Recorder) -> None:
    probe, never = start(recorder), threading.Event()
    work_until(probe, 30, lambda: never.wait(0.01))
    waiting = recorder.read().of(Kind.STACK_SAMPLE)
    work_until(probe, 60)
    working = recorder.read().of(Kind.STACK_SAMPLE)[len(waiting) :]
    for samples, is_wait in ((waiting, True), (working, False)):
        # One that had to wait stands for all that were due meanwhile: each counts once here.
        each = {sample.end: sample for sample in samples}.values()
        assert (count(each, StackFlag.WAITS) > len(each) / 2) is is_wait


@pytest.mark.usefixtures("often", "alone")
@pytest.mark.parametrize("is_asleep", [False, True])
def test_who_runs_while_the_gil_is_free_and_who_sleeps(recorder: Recorder, is_asleep: bool) -> None:
    probe, is_over, data = start(recorder), threading.Event(), bytes(2_000_000)

    def other() -> None:
        while not is_over.is_set():
            zlib.crc32(data)

    thread = threading.Thread(target=other)
    thread.start()
    begin = 16
    for attempt in attempts():  # with another test the other thread may hold the only core
        work = (lambda: time.sleep(0.02)) if is_asleep else (lambda: zlib.crc32(data))
        work_until(probe, 80 * (attempt + 1), work)
        free = [x for x in recorder.read().of(Kind.STACK_SAMPLE) if x.value == 0][begin:]
        runs = count(free, StackFlag.RUNS)
        is_right = runs < len(free) / 4 if is_asleep else runs > len(free) / 2
        if free and is_right:
            break
        begin += len(free)
    is_over.set()
    thread.join()
    assert free
    assert is_right


@pytest.mark.usefixtures("often", "alone")
@pytest.mark.parametrize(
    ("work", "operators", "arrays"),
    [
        ("torch", True, False),
        ("a library with torch", True, False),
        ("a library with arrays", False, True),
        ("a library", False, False),
        ("asleep", False, False),
        ("python", False, False),
    ],
)
def test_torchs_operators_and_what_else_lets_others_run(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, work: str, operators: bool, arrays: bool
) -> None:
    numbers, data = torch.rand(1_000_000), bytes(2_000_000)
    if "library" in work:
        # The frames that call it are a library's then.
        monkeypatch.setattr(CallSites, "is_user_code", lambda *_: False)
    names: dict[str, Any] = {"zlib": zlib, **({"numpy": numpy} if arrays else {})}
    text = "def compute(data):\n    zlib.crc32(data)\n"
    exec(compile(text, "/library/other.py", "exec"), names)
    does: dict[str, Callable[[], object]] = {
        "asleep": lambda: time.sleep(0.02),
        "python": burn,
        "a library": lambda: names["compute"](data),
        "a library with arrays": lambda: names["compute"](data),
    }
    # Samples so close to one another may meet who was made to let go still waiting for a core.
    for _attempt in attempts():
        probe = start(recorder)
        work_until(probe, 80, does.get(work, lambda: numbers.softmax(0).exp().sum()))
        recorder.stop()
        samples = recorder.read().of(Kind.STACK_SAMPLE)[8:]
        of_torch, of_arrays = (count(samples, x) for x in (StackFlag.OPERATOR, StackFlag.ARRAYS))
        are_operators = of_torch > len(samples) / 2 if operators else of_torch < len(samples) / 4
        are_arrays = of_arrays > len(samples) / 2 if arrays else of_arrays == 0
        if are_operators and are_arrays:
            break
    assert (are_operators, are_arrays) == (True, True)


DRAWS, NUMBERS = random.Random(1), [*range(20_000)]


def shuffle() -> None:
    DRAWS.shuffle(NUMBERS)


@pytest.mark.usefixtures("often")
def test_what_a_line_calls_of_a_library_is_sampled_with_it(recorder: Recorder) -> None:
    probe, calls = start(recorder), list[list[str]]()
    for wanted in range(60, 1200, 60):
        work_until(probe, wanted, shuffle)
        recording = recorder.read()
        samples = [x for x in recording.of(Kind.STACK_SAMPLE) if x.text]
        inside = [x.text[0] for x in samples if frames(recording, x)[:1] == ["shuffle"]]
        calls = [names(recording, called) for called in inside if isinstance(called, list)]
        if len(calls) >= 10:
            break
    own = "Random.shuffle" if sys.version_info >= (3, 11) else "shuffle"
    assert calls.count([own]) == len(calls) >= 10  # whatever that calls in its own module


def hold() -> None:
    sum(range(3_000_000))  # C code, in which no other thread gets the GIL


def let_go() -> None:
    time.sleep(0.03)


@pytest.mark.usefixtures("alone")
def test_who_holds_the_gil_for_longer_than_a_period_counts_for_all_of_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "PERIODS_NS", ((1_000, 10 * MS),))
    start(recorder)
    spent = {hold: 0.0, let_go: 0.0}
    for _attempt in attempts():
        for work in [hold, let_go] * 25:
            begin = time.perf_counter()
            work()
            spent[work] += time.perf_counter() - begin
        recording = recorder.read()
        stacks = [{*frames(recording, sample)} for sample in recording.of(Kind.STACK_SAMPLE)]
        held, asleep = (sum(name in stack for stack in stacks) for name in ("hold", "let_go"))
        share, truth = held / max(held + asleep, 1), spent[hold] / sum(spent.values())
        if abs(share - truth) < 0.1 and held + asleep > 100:
            break
    assert share == pytest.approx(truth, abs=0.1)


@pytest.mark.usefixtures("often", "alone")
@pytest.mark.parametrize("is_busy", [False, True])
def test_another_thread_that_runs_python_code(recorder: Recorder, is_busy: bool) -> None:
    probe, is_over = start(recorder), threading.Event()

    def other() -> None:
        while is_busy and not is_over.is_set():
            burn()
        is_over.wait()

    thread = threading.Thread(target=other)
    thread.start()
    work_until(probe, 60)
    samples = recorder.read().of(Kind.STACK_SAMPLE)
    is_over.set()
    thread.join()
    crowded = count(samples, StackFlag.CROWDED)
    assert crowded > len(samples) / 2 if is_busy else crowded < len(samples) / 4


@pytest.mark.parametrize(
    ("waited_ms", "times", "off_ms", "is_sure"),
    [
        (5.1, 2, 0, True),  # asked after 5 ms, and released at once
        (3.0, 1, 0, False),  # released by itself
        (6.5, 2, 0, False),  # after 3 ms for a moment, and again after 3.5 ms
        (6.5, 2, 1.5, True),  # was off its core meanwhile
        (12.0, 3, 0, False),
        (42.0, 9, 0, True),  # one call in C, asked again and again
        (42.0, 14, 0, False),
    ],
)
def test_of_a_thread_that_takes_the_gil_back_its_place_is_unknown(
    waited_ms: float, times: int, off_ms: float, is_sure: bool
) -> None:
    is_known = sampler._was_forced_to_release(round(waited_ms * MS), times, round(off_ms * MS))
    assert is_known is is_sure


# A polite guest


@pytest.mark.usefixtures("often")
def test_the_script_sees_no_thread_and_no_collector_switched_off(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What releases the GIL, as naming does, would let the script find the collector off."""
    threads, was_enabled = threading.enumerate(), gc.isenabled()
    is_on: list[bool] = []
    named = StackSampler._stack

    def naming(self: StackSampler, stack: Any) -> int:
        is_on.append(gc.isenabled())
        return named(self, stack)

    monkeypatch.setattr(StackSampler, "_stack", naming)
    probe = StackSampler()
    session = recorder.start(probe, ForwardProbe())
    assert (recorder.read().of(Kind.STACK_SAMPLE), probe._samples) == ([], 0)
    compute()
    assert threading.enumerate() == threads
    work_until(probe, 10)
    session.on_end()
    samples = probe._samples
    burn()
    assert probe._samples == samples
    assert gc.isenabled() is was_enabled
    assert len(is_on) >= 9
    assert all(is_on)


def blocks(task: str, number: int) -> bool:
    """Whether a thread of this process has a signal blocked."""
    status = Path(f"/proc/self/task/{task}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    return bool(blocked >> (number - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
@pytest.mark.usefixtures("often")
def test_no_signal_of_the_script_is_delivered_to_it(recorder: Recorder) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = set(os.listdir("/proc/self/task"))
    work_until(start(recorder), 1)
    new = set(os.listdir("/proc/self/task")) - before
    [ours] = [task for task in new if blocks(task, signal.SIGINT)]
    assert all(blocks(ours, x) for x in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


@pytest.mark.usefixtures("often")
def test_a_forked_child_is_not_sampled_and_its_parent_still_is(recorder: Recorder) -> None:
    probe = start(recorder)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if probe._thread._stop is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    work_until(probe, probe._samples + 3)


def test_a_fork_in_the_midst_of_a_sample_leaves_the_collector_as_it_was(recorder: Recorder) -> None:
    probe = StackSampler()
    recorder.start(probe)
    with no_collections():
        assert not gc.isenabled()
        probe._forget()  # as a child does, in which this thread does not go on
        assert gc.isenabled()
    gc.disable()
    try:
        with no_collections():
            probe._forget()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_lines_that_are_timed_are_not_sampled(recorder: Recorder) -> None:
    assert start(recorder, options={"lines": {"only": None}})._watched == []


# CPU shares of threads, by planted times on a core


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Time on a core by native id, ns; idents are the native ids plus 1000."""
    had: dict[int, int] = {}
    monkeypatch.setattr(sampler, "core_times", lambda native: lambda: (had[native], 0))
    monkeypatch.setattr(
        sampler, "_native_id", lambda ident: ident - 1000 if ident - 1000 in had else None
    )
    return had


def test_shares_are_of_the_time_since_they_were_asked_for(cores: dict[int, int]) -> None:
    threads = ThreadCpuShares()
    cores.update({1: 5 * MS, 2: 0})
    assert threads.shares([1001, 1002, 1003], 0) == {1001: None, 1002: None, 1003: None}
    cores.update({1: 35 * MS, 2: 0})
    assert threads.shares([1001, 1002, 1003], 40 * MS) == {1001: 0.75, 1002: 0.0, 1003: None}
    assert threads.busy == {1001}
    # So soon the GIL may not have gone round: what was known still holds.
    assert threads.shares([1001, 1002], 45 * MS) == {1001: 0.75, 1002: 0.0}
    cores[2] = 6 * MS
    assert threads.shares([1001, 1002], 100 * MS) == {1001: 0.0, 1002: 0.1}
    assert threads.busy == {1002}
    # Who is asked for more rarely has a share of a longer time.
    cores[1] += 20 * MS
    assert threads.shares([1001], 180 * MS) == {1001: 0.25}


# Whose code may have called torch's operators


def uses(names: dict[str, Any], does: str = "return x") -> tuple[bool, bool]:
    """Whether a function of a module with these names may compute by torch, and by arrays."""
    users, module = TorchUse(), dict(names)
    exec(compile(f"def compute(x=None):\n    {does}\n", "/library/loss.py", "exec"), module)
    code = module["compute"].__code__
    assert users.uses(code, lambda: None) == (False, False)  # it is another's turn by now
    assert users.uses(code, lambda: module) == users.uses(code, lambda: pytest.fail("it is known"))
    return users.uses(code, lambda: module)


SCIPY = ModuleType("scipy.optimize")
ALL = {"torch": torch, "np": numpy, "optimize": SCIPY, "exp": numpy.exp}


@pytest.mark.parametrize(
    ("names", "does", "by_torch", "by_arrays"),
    [
        ({"torch": torch}, "return x", True, False),
        ({"F": torch.nn.functional}, "return x", True, False),
        ({"Tensor": torch.Tensor}, "return x", True, False),
        ({"exp": torch.exp}, "return x", True, False),
        ({"gelu": torch.nn.functional.gelu}, "return x", True, False),
        ({"float32": torch.float32}, "return x", True, False),
        ({"np": numpy, "torch": torch}, "return x", True, False),
        ({"torchvision": ModuleType("torchvision")}, "return x", False, False),
        ({"np": numpy, "sqrt": math.sqrt, "array": numpy.ones(1)}, "return x", False, True),
        ({"optimize": SCIPY}, "return x", False, True),
        ({"backends": ModuleType("einops")}, "return x", False, False),
        (ALL, "return x.softmax(0)", True, False),
        (ALL, "return np.sort(x)", False, False),
        (ALL, "return x.numpy()", False, False),
        (ALL, "import numpy; return x", False, False),
        (ALL, "return optimize.root(x)", False, False),
        (ALL, "return exp(x)", False, False),
    ],
)
def test_what_a_function_and_its_module_name(
    names: dict[str, Any], does: str, by_torch: bool, by_arrays: bool
) -> None:
    assert uses(names, does) == (by_torch, by_arrays)


def test_nothing_of_the_modules_own_runs_for_it() -> None:
    def fails(self: Any, name: str) -> Any:
        raise AssertionError(name)

    meta = type("Meta", (type,), {"__getattribute__": fails})
    lazy = type("Lazy", (ModuleType,), {"__getattribute__": fails})
    odd_class = meta("Odd", (), {"__getattribute__": fails})
    nameless = ModuleType("nameless")
    del nameless.__name__
    vars(nameless)["__getattr__"] = lambda name: pytest.fail(name)
    odd = {"Odd": odd_class, "odd": object.__new__(odd_class), "lazy": lazy("torch")}
    assert uses({**odd, "nameless": nameless}) == (False, False)
    assert uses({**odd, "nameless": nameless, "torch": torch}) == (True, False)
