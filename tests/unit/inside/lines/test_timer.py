"""line_profiler as we drive it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from trainprof.inside.lines.timer import LineTimer, label, overhead_ns


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> LineTimer:
    for name in ("gettrace", "settrace"):  # which the timer replaces
        monkeypatch.setattr(sys, name, getattr(sys, name))
    return LineTimer(added=lambda *_: None, left=lambda: None, stood_down=pytest.fail)


def hits(timer: LineTimer, function: Any) -> list[int]:
    return [hits for _, hits, _ in timer.timings()[label(function.__code__)]]


def test_two_functions_of_the_same_bytes(timer: LineTimer) -> None:
    def first() -> int:
        return 1

    def second() -> int:
        return 1

    decorated = timer(second)
    assert timer.add_code(first.__code__)
    with timer:
        first()
        first()
        decorated()
    assert (hits(timer, first), hits(timer, second)) == ([2], [1])


def test_a_pause_loses_no_hit_of_the_frames_around_it(timer: LineTimer) -> None:
    def not_seen() -> int:
        return 1

    def paused() -> None:
        with timer.paused():
            not_seen()

    def function() -> None:
        paused()
        paused()

    for code in (function.__code__, not_seen.__code__):
        timer.add_code(code)
    with timer:
        function()
        not_seen()
    assert (hits(timer, function), hits(timer, not_seen)) == ([1, 1], [1])


def test_what_a_line_costs_is_measured() -> None:
    cost = overhead_ns()
    assert cost is not None
    assert 0 < cost < 1e6
