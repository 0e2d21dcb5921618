"""Which steps are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.session import FakeClock

from trainprof.probes.step_looks import StepLooks

STEP_NS = 1_000_000


class Stepping:
    """Of a session, what looks ask it."""

    def __init__(self) -> None:
        self.now = FakeClock()

    def watch_steps(self, stepped: Callable[[Any], None], *, is_on: bool) -> None:
        pass

    def looked_since(self, since_ns: int) -> int:
        return self.now() - since_ns


def looked_at(steps: int, cost_ns: int) -> list[int]:
    """Returns the numbers of the steps that are looked at, of so many, where a look costs that."""
    session: Any = Stepping()
    found: list[int] = []

    def closes(_: Any) -> None:
        found.append(looks.taken)
        began_ns = session.now()
        session.now.advance(cost_ns)
        looks.spent(began_ns)

    looks = StepLooks(session, lambda: None, closes)
    looks.begin(looks.stepped)
    for _ in range(steps):
        session.now.advance(STEP_NS)
        looks.stepped(None)
    return found


def test_they_are_ever_further_apart() -> None:
    assert looked_at(100, 0) == [13, 17, 22, 28, 36, 46, 58, 73, 92]


def test_one_comes_late_in_whatever_is_trained() -> None:
    assert all(looked_at(steps, 0)[-1] > 0.75 * steps for steps in range(20, 2_000, 37))


@pytest.mark.parametrize("steps", [1_000, 10_000])
def test_costly_ones_are_put_off_until_they_are_little_of_all(steps: int) -> None:
    found = looked_at(steps, STEP_NS)
    assert len(found) * STEP_NS < 0.01 * steps * STEP_NS
    assert found[-1] > 0.6 * steps
