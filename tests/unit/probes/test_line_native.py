"""Whether the thread that looks is fooled, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from trainprof.probes import line_native
from trainprof.probes.line_native import CodeWatch, why_not_here
from trainprof.probes.line_timer import label

MS = 1_000_000
INTERVAL_NS = MS // 2

pytestmark = pytest.mark.skipif(why_not_here() is not None, reason="not told here")


def at_a_call(use: Callable[[FrameType], Any]) -> Any:
    return next(map(use, [sys._getframe()]))  # of C code, as the innermost frame's calls are


def not_at_a_call(use: Callable[[FrameType], Any]) -> Any:
    def generator() -> Iterator[int]:
        yield 1

    paused = generator()
    next(paused)
    return use(paused.gi_frame)


@pytest.mark.parametrize(
    ("stand", "waited_ns", "is_in_c"),
    [
        pytest.param(at_a_call, MS * 4 // 10, False, id="let go while we waited"),
        pytest.param(at_a_call, MS * 6 // 10, False, id="let go when asked to"),
        pytest.param(at_a_call, MS * 3, True, id="a call kept it"),
        pytest.param(not_at_a_call, MS * 3, False, id="a core was wanted, not the GIL"),
    ],
)
def test_how_long_the_gil_was_waited_for_tells_c_code_that_keeps_it(
    stand: Callable[..., Any], waited_ns: int, is_in_c: bool
) -> None:
    found = stand(lambda frame: line_native._kept_gil(frame, waited_ns, INTERVAL_NS))
    assert found is is_in_c


def test_the_script_is_told_the_switch_interval_that_it_knows() -> None:
    functions = sys.getswitchinterval, sys.setswitchinterval
    before = sys.getswitchinterval()
    watch = CodeWatch({label(at_a_call.__code__)})
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    watch.start()
    watch.start()
    try:
        assert sys.getswitchinterval() == before
        assert functions[0]() == line_native.SWITCH_INTERVAL_S
        sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == 0.02
        assert functions[0]() == line_native.SWITCH_INTERVAL_S
        sys.setswitchinterval(0.0001)
        assert functions[0]() == sys.getswitchinterval() == pytest.approx(0.0001)
        with pytest.raises(ValueError, match="strictly positive"):
            sys.setswitchinterval(0)
        sys.setswitchinterval(before)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    finally:
        watch.stop()
    watch.stop()
    assert (sys.getswitchinterval, sys.setswitchinterval) == functions
    assert sys.getswitchinterval() == before


def test_a_watch_starts_from_zero_in_a_forked_process() -> None:
    watch = CodeWatch({label(at_a_call.__code__)})
    get = sys.getswitchinterval
    before = get()
    watch.looks[label(at_a_call.__code__), 1] = (5, 5)
    watch.start()
    pid = os.fork()
    if pid == 0:
        watch.after_fork()
        is_reset = not watch.looks and sys.getswitchinterval is get and get() == before
        os._exit(0 if is_reset else 1)
    watch.stop()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_threads_that_wait_for_work_are_not_busy_and_others_are() -> None:
    idle = line_native._Others(0)
    for _ in range(line_native._LOOKS_AT_OTHERS):
        at_a_call(lambda frame: idle.look({1: frame}))
    assert not idle.are_busy()

    busy = line_native._Others(0)
    for _ in range(line_native._LOOKS_AT_OTHERS):
        not_at_a_call(lambda frame: busy.look({1: frame}))
    assert busy.are_busy()


@pytest.mark.parametrize(
    ("attribute", "value", "why"),
    [
        ("version_info", (3, 13, 0), "not on Python 3.13"),
        ("platform", "darwin", "not on darwin"),
        ("implementation", type("of", (), {"name": "pypy"}), "not on pypy"),
    ],
)
def test_an_interpreter_that_does_not_allow_it(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, why: str
) -> None:
    monkeypatch.setattr(line_native.sys, attribute, value)
    assert why_not_here() == why
