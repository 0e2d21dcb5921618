"""line_profiler as we drive it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

from trainprof.inside.lines.timer import USES_MONITORING, LineTimer, label, overhead_ns

traces = pytest.mark.skipif(USES_MONITORING, reason="line_profiler does not trace here")


class Timed:
    """A timer, and what it has told."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.left = 0
        self.reasons: list[str] = []
        self.timer = LineTimer(
            added=lambda _, name: self.added.append(name),
            left=self._leave,
            stood_down=self.reasons.append,
        )

    def _leave(self) -> None:
        self.left += 1

    def hits(self, function: Callable[..., Any] | CodeType) -> list[int]:
        code = function if isinstance(function, CodeType) else function.__code__
        rows = self.timer.timings()[label(code)]
        return [hits for _, hits, _ in rows]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    for name in ("gettrace", "settrace"):  # which the timer replaces
        monkeypatch.setattr(sys, name, getattr(sys, name))
    return Timed()


def test_a_call_that_runs_already_is_timed_from_then_on(timed: Timed) -> None:
    def function() -> None:
        timed.timer.add_code(sys._getframe().f_code)
        timed.timer.enable_by_count()
        for _ in range(3):
            pass
        timed.timer.disable_by_count()

    function()
    assert timed.hits(function)[:2] == [4, 3]


def test_two_functions_of_the_same_bytes(timed: Timed) -> None:
    def first() -> int:
        return 1

    def second() -> int:
        return 1

    decorated = timed.timer(second)
    assert timed.timer.add_code(first.__code__)
    with timed.timer:
        first()
        first()
        decorated()
    assert (timed.hits(first), timed.hits(second)) == ([2], [1])
    assert [name.rpartition(".")[2] for name in timed.added] == ["second"]


def test_what_is_no_function_is_given_back(timed: Timed) -> None:
    for thing in (3, "text", None, len):
        assert timed.timer(thing) is thing


def test_a_pause_loses_no_hit_of_the_frames_around_it(timed: Timed) -> None:
    def paused() -> None:
        with timed.timer.paused():
            not_seen()

    def not_seen() -> int:
        return 1

    def function() -> None:
        paused()
        paused()

    for code in (function.__code__, not_seen.__code__):
        timed.timer.add_code(code)
    with timed.timer:
        function()
        not_seen()
    assert (timed.hits(function), timed.hits(not_seen)) == ([1, 1], [1])


def test_switched_off_it_lets_functions_run_bare(timed: Timed) -> None:
    @timed.timer
    def function() -> int:
        return 1

    timed.timer.enable_by_count()
    timed.timer.switch_off()
    assert (function(), timed.timer.enable_count) == (1, 0)
    assert timed.timer.timings()[label(function.__wrapped__.__code__)] == []


def test_what_a_line_costs_is_measured() -> None:
    cost = overhead_ns()
    assert cost is not None
    assert 0 < cost < 1e6
