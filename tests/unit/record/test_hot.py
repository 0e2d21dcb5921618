"""The hot path in C: it does what its twins in Python do, unseen by the script."""

from __future__ import annotations

import copy
import errno
import functools
import gc
import inspect
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import pytest
from support.session import ROOT, FakeClock, in_threads, read_recording, read_recordings

from trainprof.inside.spans.fetch import StampedIndices
from trainprof.record import log_chunk
from trainprof.record.event_log import EventLog
from trainprof.record.hot import PURE_PYTHON
from trainprof.record.log_reader import read_log
from trainprof.record.schema import RECORD_BYTES, Kind

hot = pytest.importorskip("trainprof.record._hot")

NOTHING = SimpleNamespace(watchers=())
CALLS = 3000


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PURE_PYTHON, raising=False)


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(str(tmp_path), role="script")


def wrapped(
    log: EventLog,
    original: Callable[..., Any],
    hook: str = "timed",
    *given: Any,
    twin: Callable[..., Any] | None = None,
    clock: Callable[[], int] = perf_counter_ns,
    kind: Kind = Kind.BACKWARD,
    limit: int = 0,
) -> Any:
    given = given or (None,) * 9
    clocks = clock, clock
    wrapper = hot.Wrapper(
        hook, original, twin or original, log.emit, *clocks, given, kind=kind, limit=limit
    )
    return functools.update_wrapper(wrapper, original)


def outside(inside: Any, others: set[int]) -> tuple[Any, ...]:
    """What `timed` needs to record outermost calls only."""
    return None, inside, others, *(None,) * 6


def events(log: EventLog) -> list[Any]:
    assert log.path is not None
    return read_recording(Path(log.path)).events


def work(a: int, /, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
    """Works."""
    return a, b, c


def fails(*_: Any, **__: Any) -> Any:
    raise LookupError("the script's own")


def test_a_call_returns_the_same_and_is_recorded(log: EventLog) -> None:
    call = wrapped(log, work)
    before = perf_counter_ns()
    assert call(1) == call(1, 2, c=3) == call(1, b=2) == (1, 2, 3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()
    recorded = events(log)
    assert [event.kind for event in recorded] == [Kind.BACKWARD] * 4
    assert all(before <= x.start <= x.end <= perf_counter_ns() for x in recorded)


def test_a_traceback_has_no_line_of_ours(log: EventLog) -> None:
    def shown(function: Callable[..., Any]) -> str:
        try:
            function(1)
        except LookupError:
            return traceback.format_exc()
        return ""

    call = wrapped(log, fails)
    assert shown(call) == shown(fails)
    assert len(events(log)) == 1


def test_a_wrapper_passes_for_its_original(log: EventLog) -> None:
    call, original = wrapped(log, work), work
    assert isinstance(call, FunctionType)
    assert inspect.isfunction(call)
    assert repr(call) == repr(original)
    assert call.__code__ is original.__code__
    for look in (inspect.signature, inspect.getfullargspec, inspect.getsource, inspect.getdoc):
        assert look(call) == look(original)
    names = "__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__"
    assert [getattr(call, name) for name in names] == [getattr(original, name) for name in names]
    assert call.__wrapped__ is original
    assert copy.copy(call) is copy.deepcopy(call) is call
    assert {call: 1}[call] == 1
    call.mark = 4
    assert call.mark == vars(call)["mark"] == 4
    assert not hasattr(original, "mark")
    with pytest.raises(AttributeError, match="absent"):
        _ = call.absent
    method = wrapped(log, str.upper)
    assert isinstance(method, type(str.upper))
    assert method("a") == "A"


def test_a_wrapper_binds_and_pickles_like_a_function(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Owner:
        def method(self, x: int) -> tuple[Any, int]:
            return self, x

    monkeypatch.setattr(Owner, "method", wrapped(log, Owner.method))
    owner = Owner()
    assert type(owner.method) is MethodType
    assert owner.method(3) == Owner.method(owner, 3) == (owner, 3)
    assert Owner.method is vars(Owner)["method"]
    monkeypatch.setattr(sys.modules[__name__], "work", call := wrapped(log, work), raising=True)
    monkeypatch.setitem(sys.modules, work.__module__, sys.modules[__name__])
    assert pickle.loads(pickle.dumps(call)) is call


def test_only_the_outermost_call_is_recorded(log: EventLog) -> None:
    inside, classes = hot.State(), {id(int): (int(Kind.FORWARD), 5)}

    def nested(depth: int) -> int:
        inner()
        return 0 if depth == 0 else 1 + call(depth - 1)

    inner = wrapped(log, int, "timed", *outside(inside, set()))
    given = inside, set[int](), classes, lambda: True, lambda module: True
    call = wrapped(log, nested, "module", *given, kind=Kind.FORWARD)
    assert call(3) == 3
    assert inside.thread == 0
    with pytest.raises(TypeError):
        call(3, 1)
    assert inside.thread == 0
    inner()
    recorded = [(event.kind, event.site, event.flags) for event in events(log)]
    assert recorded == [(Kind.FORWARD, 5, 3)] * 2 + [(Kind.BACKWARD, 0, 0)]


def test_a_second_threads_inner_calls_are_its_twins(log: EventLog) -> None:
    inside, others, by_twin = hot.State(), set[int](), []
    given = inside, others, {id(int): (int(Kind.FORWARD), 5)}, lambda: True, lambda module: True
    call = wrapped(log, work, "module", *given, twin=lambda *args: by_twin.append(args))
    others.add(threading.get_ident())  # it is in a call; the first thread's has ended
    call(1)
    others.clear()

    def clock() -> int:
        inside.thread = 1  # another thread begins while this one reads the clock
        return 5

    call = wrapped(
        log, work, "module", *given, twin=lambda *args: by_twin.append(args), clock=clock
    )
    call(2)
    assert by_twin == [(1,), (2,)]
    assert inside.thread == 1


def test_an_error_of_a_handler_has_the_scripts_as_its_context(log: EventLog) -> None:
    readings = iter([5])
    with pytest.raises(StopIteration) as raised:
        wrapped(log, fails, clock=readings.__next__)(1)
    assert type(raised.value.__context__) is LookupError
    assert raised.value.__context__.__traceback__ is not None


def test_a_hook_refuses_what_it_cannot_use(log: EventLog) -> None:
    swapped = set[int](), hot.State(), {}, bool, bool
    with pytest.raises(ValueError, match="no hook module"):
        wrapped(log, work, "module", *swapped)


@pytest.mark.parametrize("seed", range(3))
def test_records_are_those_of_the_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed).choice
    byte, site, number = [0, 1, True, 255], [0, (1 << 32) - 1], [0, 1 << 32, (1 << 64) - 1]
    fields = byte, number, number, site, number, byte
    rows = [tuple(map(draw, fields))[: draw([3, 4, 5, 6])] for _ in range(500)]
    bodies = []
    for pure in "01":
        monkeypatch.setenv(PURE_PYTHON, pure)
        (directory := tmp_path / pure).mkdir()
        log = EventLog(str(directory), role="script")
        log.emit(Kind.FORWARD, 1, 2)
        for row in rows:
            log.emit(*row)
        assert log.path is not None
        bodies.append(
            [x for x in records_of(Path(log.path)) if x[0] not in (Kind.CLOCK, Kind.THREAD)]
        )
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) > 5


def records_of(path: Path) -> list[bytes]:
    body = bytes(read_log(path).body)
    records = (body[at : at + RECORD_BYTES] for at in range(0, len(body), RECORD_BYTES))
    return [record for record in records if any(record)]


# Each hook with a call of it that is common, one for its twin, and one that raises.
def hooks(log: EventLog) -> dict[str, list[Callable[[], Any]]]:
    thing, state, owner = SimpleNamespace(_num_yielded=2), hot.State(), SimpleNamespace()
    owner._trainprof, state.is_stamped = state, True
    meter, slow = hot.State(), hot.State()
    meter.to_pass = 1 << 40
    bursts = SimpleNamespace(end=lambda: True)
    known, names = {id(thing): 7}, {"_is_compiling_flag": False}
    classes = {id(SimpleNamespace): (int(Kind.FORWARD), 5)}
    given: dict[str, tuple[Any, ...]] = {
        "timed": (names, state, set(), bool, lambda: 9, NOTHING, NOTHING, lambda: True, NOTHING),
        "step": (known, set(), NOTHING, names),
        "module": (hot.State(), set(), classes, lambda: True, lambda module: True),
        "next": (known, set(), lambda *_: None, lambda *_: None),
        "fetch": (meter, lambda ns: None, slow, lambda *_: None),
        "collate": (state,),
        "copy": (lambda *_, **__: None,),
        "read": ((SimpleNamespace,), SimpleNamespace(holds=True), lambda frame: 3, bursts),
        "caller": (lambda frame: 0,),
    }
    calls: dict[str, list[Callable[[], Any]]] = {}
    for hook, needed in given.items():
        first: Any = owner if hook == "fetch" else thing
        arguments = (first, [1, 2]) if hook == "fetch" else (first,)
        good = wrapped(log, lambda *args, **kwargs: [args, kwargs], hook, *needed, limit=1 << 40)
        bad = wrapped(log, fails, hook, *needed, limit=1 << 40)
        calls[hook] = [
            functools.partial(good, *arguments),
            functools.partial(good, *arguments, more=1),
            functools.partial(caught, bad, *arguments),
            functools.partial(caught, bad, *arguments, more=1),
        ]
    return calls


def caught(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    try:
        function(*args, **kwargs)
    except LookupError as error:
        return str(error)
    return ""


HOOKS = ["timed", "step", "module", "next", "fetch", "collate", "copy", "read", "caller"]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_returns_what_the_original_does_and_leaks_nothing(log: EventLog, hook: str) -> None:
    log.emit(Kind.FORWARD, 1, 2)
    good, with_keyword, *bad = hooks(log)[hook]
    assert good()[1] == {}
    assert with_keyword()[1] == {"more": 1}
    assert [call() for call in bad] == ["the script's own"] * 2
    calls = (good, with_keyword, *bad)

    def blocks_after(count: int) -> int:
        for _ in range(count):
            for call in calls:
                call()
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks_after(CALLS)
    assert blocks_after(CALLS) - before < CALLS // 10


def stamped_in(language: str, indices: list[Any], clock: FakeClock) -> Any:
    if language == "C":
        return hot.StampedIndices(indices, clock)
    stamped = StampedIndices(indices)
    stamped.clock = clock
    return stamped


@pytest.mark.parametrize("language", ["C", "Python"])
@pytest.mark.parametrize("read", [3, 2, 0])
def test_indices_are_stamped_when_they_are_read(read: int, language: str) -> None:
    clock, took = FakeClock(100), [30, 70, 20]
    stamped = stamped_in(language, took, clock)
    for _, ns in zip(range(read), stamped, strict=False):
        clock.advance(ns)
    assert stamped.stamps(clock.now_ns) == [100, 130, 200][:read]
    assert stamped.longest(clock.now_ns) == max(took[:read], default=0)
    assert stamped.longest(150) == (30 if read else 0)  # the rest is later
    assert stamped.stamps(150) == [100, 130][:read]


@pytest.mark.parametrize("language", ["C", "Python"])
def test_indices_that_are_read_again_have_the_later_stamps(language: str) -> None:
    clock = FakeClock(100)
    stamped = stamped_in(language, [5, 6, 7], clock)
    assert list(stamped) == [5, 6, 7]
    clock.advance(50)
    for _ in stamped:
        del stamped[2:]
        clock.advance(20)
    stamped += [8, 9]
    assert list(zip(range(4), stamped, strict=False)) == [(0, 5), (1, 6), (2, 8), (3, 9)]
    assert stamped.stamps(clock.now_ns)[:3] == [190, 190, 190]
    assert stamped.longest(clock.now_ns + 20) == 20


def test_a_fetch_is_stamped_while_its_samples_are_not_short(log: EventLog) -> None:
    state, meter, slow, clock = hot.State(), hot.State(), hot.State(), FakeClock(100)
    state.short_sample_ns, state.is_stamped, state.loader = 20, True, 7
    fetcher, slowest = SimpleNamespace(_trainprof=state), list[tuple[Any, ...]]()
    meter.to_pass, meter.least_ns, took = 9, 32, list[int]()

    def fetch(_: Any, indices: list[int]) -> list[int]:
        return [clock.advance(ns) or ns for ns in indices]

    def record(indices: Any, end: int, loader: int) -> None:
        slowest.append((indices.longest(end), end, loader))
        slow.least_ns = 31

    call = wrapped(log, fetch, "fetch", meter, took.append, slow, record, clock=clock)
    asked = [30, 10]
    for indices in (asked, [25, 25], [31, 1], [1, 1], [99, 1]):
        assert call(fetcher, indices) == indices
    assert slowest == [(30, 140, 7), (31, 222, 7)]
    assert (asked, state.samples, state.samples_ns) == ([30, 10], 8, 124)
    assert (state.is_stamped, meter.to_pass, took) == (False, 4, [40, 50, 32, 100])


@pytest.mark.parametrize("original", [lambda *_: [1], fails])
@pytest.mark.parametrize("late", [1, 3])
def test_what_is_raised_after_a_fetch_reaches_the_script(
    log: EventLog, late: int, original: Callable[..., Any]
) -> None:
    state, meter = hot.State(), hot.State()
    meter.to_pass, state.is_stamped = 1, True
    given: list[Any] = [meter, lambda _: None, hot.State(), lambda *_: None]
    given[late] = raise_late
    with pytest.raises(Late):
        wrapped(log, original, "fetch", *given)(SimpleNamespace(_trainprof=state), [1])


@pytest.mark.parametrize("language", ["C", "Python"])
def test_only_the_newest_iterator_of_indices_stamps_them(language: str) -> None:
    clock = FakeClock(100)
    stamped = stamped_in(language, [5, 6, 7], clock)
    older = iter(stamped)
    assert (next(older), next(older)) == (5, 6)
    clock.advance(20)
    newer = iter(stamped)
    assert (next(newer), next(older)) == (5, 7)
    clock.advance(30)
    assert (stamped.stamps(200), stamped.longest(150)) == ([120], 30)
    assert list(older) == []
    stamped.append(8)
    assert list(older) == []


def test_stamping_leaks_nothing_and_passes_on_what_the_clock_raises() -> None:
    def blocks_after(count: int) -> int:
        for _ in range(count):
            assert caught(list, hot.StampedIndices([1, 2], fails))
            stamped = hot.StampedIndices([1, 2, 3], perf_counter_ns)
            assert next(iter(stamped)) == 1
            assert [*stamped, len(stamped.stamps(perf_counter_ns()))] == [1, 2, 3, 3]
        return sys.getallocatedblocks()

    with pytest.raises(TypeError):
        hot.StampedIndices(3, perf_counter_ns)  # type: ignore[arg-type]
    before = blocks_after(CALLS)
    assert blocks_after(CALLS) - before < CALLS // 10


def test_what_is_no_longer_used_is_freed(tmp_path: Path) -> None:
    def use() -> list[weakref.ref[Any]]:
        def original() -> None:
            return None

        def twin() -> Any:
            return call, log  # a cycle

        log = EventLog(str(tmp_path), role="script")
        call = wrapped(log, original, twin=twin)
        call()
        return [weakref.ref(thing) for thing in (call, original, log)]

    freed = use()
    gc.collect()
    assert [reference() for reference in freed] == [None] * 3


def test_threads_lose_nothing(log: EventLog) -> None:
    call, gate = wrapped(log, work), threading.Barrier(4)
    in_threads([lambda: [gate.wait(), *map(call, range(CALLS))]] * 4)
    recorded = events(log)
    assert len(recorded) == 4 * CALLS
    assert len({event.thread for event in recorded}) == 4


def test_a_forked_child_records_into_its_own_log(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path), role="script")
    call = wrapped(log, work)
    call(1)
    child = os.fork()
    if child == 0:
        log.reopen_in_child()
        call(1)
        call(2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    call(3)
    assert [len(recording.events) for recording in read_recordings(tmp_path)] == [2, 2]


class Late(Exception):
    """What the script's signal handler raises."""


def raise_late(*_: Any) -> None:
    raise Late


@pytest.mark.parametrize("reading", [1, 2])
@pytest.mark.parametrize("original", [work, fails])
def test_what_a_handler_raises_at_a_clock_reaches_the_script(
    log: EventLog, original: Callable[..., Any], reading: int
) -> None:
    readings = itertools.count(1)

    def clock() -> int:
        if next(readings) == reading:
            signal.raise_signal(signal.SIGUSR1)
        return 5

    before = signal.signal(signal.SIGUSR1, raise_late)
    state, classes = hot.State(), {id(int): (int(Kind.FORWARD), 5)}
    given = state, set[int](), classes, lambda: True, lambda module: True
    try:
        for hook, needed in (("timed", ()), ("module", given)):
            readings = itertools.count(1)
            with pytest.raises(Late):
                wrapped(log, original, hook, *needed, clock=clock)(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert state.thread == 0


def test_a_handler_within_a_call_raises_as_without_us(log: EventLog) -> None:
    def original() -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_late)
    try:
        with pytest.raises(Late):
            wrapped(log, original)()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(events(log)) == 1


class Reading:
    """Its attributes are properties of the script."""

    @property
    def _num_yielded(self) -> int:
        raise Late

    _trainprof = _num_yielded


WHERE_THE_SCRIPT_MAY_RUN: list[tuple[str, tuple[Any, ...]]] = [
    ("timed", (*(None,) * 3, raise_late, *(None,) * 5)),
    ("timed", (*(None,) * 7, raise_late, NOTHING)),
    ("module", (hot.State(), set(), {id(Reading): (int(Kind.BACKWARD), 5)}, raise_late, bool)),
    ("module", (hot.State(), set(), {id(Reading): (int(Kind.BACKWARD), 5)}, bool, raise_late)),
    ("next", ({}, set(), raise_late, raise_late)),
    ("fetch", (hot.State(), raise_late, hot.State(), raise_late)),
]


@pytest.mark.parametrize(("hook", "given"), WHERE_THE_SCRIPT_MAY_RUN)
def test_what_is_raised_in_code_of_the_script_reaches_it(
    log: EventLog, hook: str, given: tuple[Any, ...]
) -> None:
    """As by its modes, its properties and its signal handlers in these."""
    arguments = (Reading(), [1]) if hook == "fetch" else (Reading(),)
    with pytest.raises(Late):
        wrapped(log, lambda *_: 1, hook, *given)(*arguments)
    if hook == "module":
        with pytest.raises(Late) as raised:
            wrapped(log, fails, hook, *given)(*arguments)
        assert type(raised.value.__context__) is LookupError


def test_an_original_that_changes_is_called_as_it_is_then(log: EventLog) -> None:
    def original() -> int:
        return 1

    class Partial(functools.partial[int]):
        pass

    partial = Partial(original)
    calls = wrapped(log, original), wrapped(log, partial)
    assert [call() for call in calls] == [1, 1]
    original.__code__ = (lambda: 2).__code__
    assert [call() for call in calls] == [2, 2]
    Partial.__call__ = lambda self: 3  # type: ignore[method-assign, assignment, misc]
    assert [call() for call in calls] == [2, partial()] == [2, 3]


def test_copies_have_no_state_of_ours() -> None:
    state = hot.State()
    copies = copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))
    assert copies == (None, None, None)


def test_a_generator_is_passed_on_untouched(log: EventLog) -> None:
    def numbers() -> Any:
        yield from (1, 2)

    generator = wrapped(log, numbers)()
    assert inspect.isgenerator(generator)
    assert list(generator) == [1, 2]


def test_a_full_disk_stops_the_recording_only(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = wrapped(log, work)
    call(1)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(log_chunk, "allocate", full)
    log.trim()  # the next record needs another chunk
    assert [call(n)[0] for n in range(5000)] == [*range(5000)]
    assert len(events(log)) == 1


def test_clocks_in_python_are_read(log: EventLog) -> None:
    clock = FakeClock(100)
    wrapped(log, clock.advance, clock=clock)(7)
    [event] = events(log)
    assert (event.start, event.end) == (100, 107)


AT_EXIT = """
import atexit, sys
from trainprof.record import _hot
from trainprof.record.event_log import EventLog
from time import perf_counter_ns
log = EventLog(sys.argv[1], role="script")
call = _hot.Wrapper("timed", print, print, log.emit, perf_counter_ns, perf_counter_ns, (None,) * 9)
class Last:
    call = call
    def __del__(self):
        Last.call("deleted")
sys.modules["kept"] = Last()
atexit.register(call, "at exit")
call("first", flush=True)
"""


def test_it_works_while_python_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split("\n")[:2] == ["first", "at exit"]
