"""Which steps are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def spans(order: Sequence[object], steps: int) -> list[tuple[object, ...]]:
    """Returns the optimizers that stepped in each look, of those that step in such an order."""
    session: Any = Stepping()
    found: list[tuple[object, ...]] = []
    stepped: list[object] = []
    looks = StepLooks(session, stepped.clear, lambda _: found.append(tuple(stepped)))
    looks.begin(looks.stepped)
    for step in range(steps):
        session.now.advance(STEP_NS)
        stepped.append(order[step % len(order)])
        looks.stepped(stepped[-1])
    return found


def test_they_are_ever_further_apart() -> None:
    assert looked_at(100, 0) == [13, 17, 22, 28, 36, 46, 58, 73, 92]


def test_a_look_lasts_until_the_same_optimizer_comes_again() -> None:
    """All that steps in turn is seen in each, of the one that steps most a single step."""
    in_turn = spans(("judge", "generator"), 400)
    assert set(in_turn) == {("judge", "generator")} | {("generator", "judge")}
    often = spans(("generator", "generator", "generator", "judge"), 800)
    assert set(often) <= {("generator",), ("judge", "generator")}
    assert ("judge", "generator") in often
    assert all(span.count("generator") == 1 for span in often)


def test_a_look_lasts_one_step_where_each_has_an_optimizer_of_its_own() -> None:
    each = [object() for _ in range(60)]  # all at once: none has the place of another
    assert {len(span) for span in spans(each, 60)} == {1}


def test_who_follows_is_looked_at_as_soon_as_it_has_stepped_most() -> None:
    first = spans(["first"] * 400 + ["second"] * 400, 800)
    assert {len(span) for span in first} == {1}
    assert sum(span == ("second",) for span in first) >= 2


def test_a_look_ends_where_an_optimizer_does_not_come_again() -> None:
    """What is known already steps on, in turns."""
    order = [*"abc" * 5, *["a"] * 20, *"bc" * 40]
    assert max(map(len, spans(order, len(order)))) <= 9


def test_one_comes_late_in_whatever_is_trained() -> None:
    assert all(looked_at(steps, 0)[-1] > 0.75 * steps for steps in range(20, 2_000, 37))


@pytest.mark.parametrize("steps", [1_000, 10_000])
def test_costly_ones_are_put_off_until_they_are_little_of_all(steps: int) -> None:
    found = looked_at(steps, STEP_NS)
    assert len(found) * STEP_NS < 0.01 * steps * STEP_NS
    assert found[-1] > 0.6 * steps
