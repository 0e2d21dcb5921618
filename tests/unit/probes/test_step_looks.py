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


def test_a_look_lasts_until_the_same_optimizer_comes_again() -> None:
    """All that steps in turn is seen in each: a generator and its judge, trained thrice."""
    session: Any = Stepping()
    turn = ("judge", "judge", "judge", "generator")
    spans: list[int] = []
    opened = 0

    def opens() -> None:
        nonlocal opened
        opened = looks.taken

    looks = StepLooks(session, opens, lambda _: spans.append(looks.taken - opened))
    looks.begin(looks.stepped)
    for step in range(400):
        session.now.advance(STEP_NS)
        looks.stepped(turn[step % len(turn)])
    assert set(spans) <= {1, 2, 4}
    assert 4 in spans


def test_a_look_ends_where_an_optimizer_never_comes_again() -> None:
    session: Any = Stepping()
    closed: list[int] = []
    looks = StepLooks(session, lambda: None, lambda _: closed.append(looks.taken))
    looks.begin(looks.stepped)
    each = [object() for _ in range(60)]  # all at once: none has the place of another
    for one in each:
        session.now.advance(STEP_NS)
        looks.stepped(one)
    assert closed[0] == 21


def test_one_comes_late_in_whatever_is_trained() -> None:
    assert all(looked_at(steps, 0)[-1] > 0.75 * steps for steps in range(20, 2_000, 37))


@pytest.mark.parametrize("steps", [1_000, 10_000])
def test_costly_ones_are_put_off_until_they_are_little_of_all(steps: int) -> None:
    found = looked_at(steps, STEP_NS)
    assert len(found) * STEP_NS < 0.01 * steps * STEP_NS
    assert found[-1] > 0.6 * steps
