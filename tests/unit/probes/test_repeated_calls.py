"""Which results of a model's are told as computed again within one forward, and which are not."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import dear_function
from support.dear_function import CLOCK, COST_NS, Dear, Model, dear, dear_view, lines_told, train
from support.session import Recorder
from torch import nn
from torch.nn.utils import parametrize

from trainprof.probes import constants
from trainprof.probes.compilation import CompilationProbe
from trainprof.probes.constants import ConstantsProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.session import Probe
from trainprof.probes.value_numbers import ValueNumbers
from trainprof.record.schema import Topic

ROUNDS = 4


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(constants, "_has_compiled", lambda: False)


def probes() -> list[Probe]:
    return [ForwardProbe(), ConstantsProbe(), OptimizerProbe(), CompilationProbe()]


class Square(Model):
    """Has a weight of 8 x 8 besides."""

    def __init__(self, made: Callable[[Any, torch.Tensor, int], Any]) -> None:
        super().__init__(lambda *given: made(*given) / 100)  # so that it does not diverge
        self.places = nn.Parameter(torch.randn(8, 8) / 9)
        self.inner = nn.Linear(8, 8)


def lines_of(recorder: Recorder, made: Callable[..., Any]) -> dict[int, dict[str, Any]]:
    """Returns the lines of a model with repeats, by the number of each within `made`."""
    recorder.start(*probes(), now=CLOCK)
    train(Square(made))
    first = made.__code__.co_firstlineno
    found = lines_told(recorder, "repeated_calls", __file__)
    return {line - first: one for line, one in found.items() if one["step_ns"]}


def of_what_is_learnt(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        near = (model.places @ model.places.t()).relu().softmax(1)
        near = torch.stack([torch.eye(8), near])[1].mul(0.5)
        x = x + dear(near.T[:, :8])[:4]
    return x


def of_the_batch(model: Any, x: torch.Tensor, step: int) -> Any:
    state = x
    for _ in range(ROUNDS):
        state = state + dear(x.T @ x / 100)[:4]
    return state


def beside_what_changes(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        near = dear(model.inner(model.places))
        x = x + dear(x.T @ x / 100)[:4] @ near / 100
    return x


def in_a_module(model: Any, x: torch.Tensor, step: int) -> Any:
    keys = [model.inner(model.places) for _ in range(ROUNDS)]
    for one in keys:
        x = x + dear(one)[:4]
    return x


def written_to_alike(model: Any, x: torch.Tensor, step: int) -> Any:
    state = x
    for _ in range(ROUNDS):
        table = dear(x.T @ x / 100)
        table.relu_()
        state = state + table[:4]
    return state


def of_views_made_anew(model: Any, x: torch.Tensor, step: int) -> Any:
    edges = model.places @ model.places.T
    for _ in range(ROUNDS):
        near = edges.flatten()[None].view(8, 8).unbind(0)[0].expand(8, 8).T
        x = x + dear(near / 9 + model.inner.weight.view(64).view(8, 8) / 9)[:4]
    return x


def of_repeats_that_are_detached(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        near = (model.places @ model.places.T).detach()
        x = x + dear(near.relu().softmax(1))[:4]
    return x


@pytest.mark.parametrize(
    ("made", "line", "learns"),
    [
        (of_views_made_anew, 4, True),
        (of_repeats_that_are_detached, 3, False),
        (of_what_is_learnt, 4, True),
        (of_the_batch, 3, False),
        (written_to_alike, 3, False),
        (beside_what_changes, 2, True),
        (in_a_module, 3, True),
    ],
)
def test_all_but_the_first_are_told_by_their_line(
    recorder: Recorder, made: Callable[..., Any], line: int, learns: bool
) -> None:
    found = lines_of(recorder, made)
    assert found.keys() == {line}
    again_ns = (ROUNDS - 1) * COST_NS
    assert found[line]["step_ns"] == again_ns
    assert found[line]["learns_ns"] == (again_ns if learns else 0)
    assert (found[line]["package"], found[line]["inside"]) == (None, None)


def of_the_round(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        x = x + dear(x.T @ x / 100)[:4]
    return x


def with_a_number_of_the_round(model: Any, x: torch.Tensor, step: int) -> Any:
    for one in range(ROUNDS):
        x = x + dear(model.places * one)[:4]
    return x


def of_chance(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        x = x + dear(nn.functional.dropout(model.places, 0.5))[:4]
    return x


def of_what_is_written(model: Any, x: torch.Tensor, step: int) -> Any:
    table = model.places.detach() * 1
    for _ in range(ROUNDS):
        table = table.mul_(0.9)
        x = x + dear(table)[:4]
    return x


def of_what_is_written_through_a_view(model: Any, x: torch.Tensor, step: int) -> Any:
    table = x.T @ x / 100
    for one in range(ROUNDS):
        table[one] = 0.1
        x = x + dear(table)[:4]
    return x


def of_what_is_written_elsewhere(model: Any, x: torch.Tensor, step: int) -> Any:
    table = x.T @ x / 100
    for one in range(ROUNDS):
        table.data[one] = one / 100
        x = x + dear(table)[:4]
    return x


def of_what_is_kept_in_one_place(model: Any, x: torch.Tensor, step: int) -> Any:
    for one in range(ROUNDS):
        table = torch.empty(8, 8)
        table.copy_(model.edges / (one + 1))
        x = x + dear(table)[:4]
    return x


def each_written_to_elsewhere(model: Any, x: torch.Tensor, step: int) -> Any:
    """As where each pass hides another part of what all begin with."""
    state = x
    for one in range(ROUNDS):
        table = dear(x.T @ x / 100)
        table[one::ROUNDS] = 0
        state = state + table[:4]
    return state


def equal_at_first(model: Any, x: torch.Tensor, step: int) -> Any:
    """What nobody sees is written between: a neuron that has not fired so far."""
    state = (x.T @ x / 100).detach()
    for one in range(8):
        state.data[0, 0] = 0.5 if one < 6 else one
        x = x + dear(state)[:4]
    return x


def by_rare_chance(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        x = x + dear(torch.bernoulli(torch.ones(8, 8)))[:4]
    return x


def once(model: Any, x: torch.Tensor, step: int) -> Any:
    near = dear(model.places)
    for _ in range(ROUNDS):
        x = x + near[:4]
    return x


def of_nothing_but_buffers(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        x = x + dear(model.edges)[:4]
    return x


def mere_views(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS):
        x = x + dear_view(model.places)[:4]
    return x


def first_without_gradients(model: Any, x: torch.Tensor, step: int) -> Any:
    for one in range(2):
        with torch.set_grad_enabled(one > 0):
            x = x + dear(model.places)[:4]
    return x


def at_different_lines(model: Any, x: torch.Tensor, step: int) -> Any:
    x = x + dear(model.places)[:4]
    return x + dear(model.places)[:4]


def now_and_then(model: Any, x: torch.Tensor, step: int) -> Any:
    for _ in range(ROUNDS if step % 40 == 22 else 1):
        x = x + dear(model.places)[:4]
    return x


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return -gradient


def with_reversed_gradients(model: Any, x: torch.Tensor, step: int) -> Any:
    for one in (model.places, Reversed.apply(model.places)):
        x = x + dear(one)[:4]
    return x


def with_gradients_reversed_ahead_of_a_view(model: Any, x: torch.Tensor, step: int) -> Any:
    for one in (model.places.flatten(), Reversed.apply(model.places).flatten()):
        x = x + dear(one.view(8, 8))[:4]
    return x


def with_gradients_hooked(model: Any, x: torch.Tensor, step: int) -> Any:
    places = model.places * 1
    other = places.view_as(places)
    other.register_hook(torch.neg)
    for one in (places, other, other.view_as(places)):
        x = x + dear(one)[:4]
    return x


def each_hooked(model: Any, x: torch.Tensor, step: int) -> Any:
    for one in range(ROUNDS):
        near = dear(model.places)
        near.register_hook(lambda gradient, one=one: gradient * one)
        x = x + near[:4]
    return x


def of_a_leaf_of_its_own(model: Any, x: torch.Tensor, step: int) -> Any:
    places = model.places * 1
    for one in (places, places.detach().requires_grad_()):
        x = x + dear(one)[:4]
    return x


@pytest.mark.parametrize(
    "made",
    [
        of_the_round,
        with_a_number_of_the_round,
        of_chance,
        of_what_is_written,
        each_written_to_elsewhere,
        equal_at_first,
        by_rare_chance,
        of_what_is_written_through_a_view,
        of_what_is_written_elsewhere,
        of_what_is_kept_in_one_place,
        once,
        of_nothing_but_buffers,
        mere_views,
        first_without_gradients,
        at_different_lines,
        now_and_then,
        with_reversed_gradients,
        with_gradients_reversed_ahead_of_a_view,
        with_gradients_hooked,
        each_hooked,
        of_a_leaf_of_its_own,
    ],
)
def test_what_is_no_repeat_is_not_told(recorder: Recorder, made: Callable[..., Any]) -> None:
    assert lines_of(recorder, made) == {}


def test_what_is_over_is_told_no_longer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dear_function, "STEPS", 200)

    def ever_less(model: Any, x: torch.Tensor, step: int) -> Any:
        for _ in range(ROUNDS if step < 100 else 1):
            x = x + dear(model.places)[:4]
        return x

    assert lines_of(recorder, ever_less) == {}
    notes = [x for x in recorder.read().notes(Topic.ENVIRONMENT) if "repeated_calls" in x]
    assert notes[-2]["repeated_calls"]["lines"]
    assert 100 <= notes[-1]["repeated_calls"]["steps"] < 125
    assert not recorder.session.step_watches


def test_looks_stand_for_the_steps_since_those_before(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dear_function, "STEPS", 200)

    def fewer(model: Any, x: torch.Tensor, step: int) -> Any:
        for _ in range(ROUNDS if step < 100 else 2):
            x = x + dear(model.places)[:4]
        return x

    [line] = lines_of(recorder, fewer).values()
    truth = ((ROUNDS - 1) * 100 + 100) / 200
    assert line["step_ns"] == pytest.approx(truth * COST_NS, rel=0.15)
    assert (line["calls"], line["learns_ns"]) == (2, line["step_ns"])


def test_calls_of_a_model_of_their_own_repeat_nothing(recorder: Recorder) -> None:
    class Often(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Square(once)

        def __call__(self, x: torch.Tensor) -> Any:
            return sum(self.inner(x) for _ in range(ROUNDS))

    recorder.start(*probes(), now=CLOCK)
    train(Often())
    assert lines_told(recorder, "repeated_calls", __file__) == {}


def test_a_parametrization_is_told_by_the_line_that_reads_the_parameter(recorder: Recorder) -> None:
    def made(model: Any, x: torch.Tensor, step: int) -> Any:
        for _ in range(ROUNDS):
            x = model.inner(x)
        return x

    model = Square(made)
    parametrize.register_parametrization(model.inner, "weight", Dear())
    recorder.start(*probes(), now=CLOCK)
    train(model)
    [line] = lines_told(recorder, "repeated_calls", __file__).values()
    assert (line["step_ns"], line["inside"]) == ((ROUNDS - 1) * COST_NS, "parametrization")


def test_what_is_kept_for_a_while_is_no_repeat(recorder: Recorder) -> None:
    def made(model: Any, x: torch.Tensor, step: int) -> Any:
        with parametrize.cached():
            for _ in range(ROUNDS):
                x = model.inner(x)
        return x

    model = Square(made)
    parametrize.register_parametrization(model.inner, "weight", Dear())
    recorder.start(*probes(), now=CLOCK)
    train(model)
    assert not lines_told(recorder, "repeated_calls", __file__)


@pytest.mark.parametrize(
    "made",
    [
        of_what_is_learnt,
        of_chance,
        of_what_is_written,
        of_views_made_anew,
        with_gradients_reversed_ahead_of_a_view,
        with_gradients_hooked,
        of_a_leaf_of_its_own,
    ],
)
def test_losses_are_as_without_us(recorder: Recorder, made: Callable[..., Any]) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        return train(Square(made))

    plain = losses()
    recorder.start(*probes(), now=CLOCK)
    assert losses() == plain


def test_results_are_not_kept_longer_than_without_us(recorder: Recorder) -> None:
    alive = []

    def made(model: Any, x: torch.Tensor, step: int) -> Any:
        for _ in range(ROUNDS):
            near = dear(model.places.detach())
            gone = weakref.ref(near)
            x = x + near[:4].clone()
            del near
            alive.append(gone() is not None)
        return x

    assert lines_of(recorder, made)
    assert not any(alive)


def test_nothing_is_noted_of_a_model_without_repeats(recorder: Recorder) -> None:
    recorder.start(*probes(), now=CLOCK)
    train(Square(of_nothing_but_buffers))
    notes = recorder.read().notes(Topic.ENVIRONMENT)
    assert not [x for x in notes if "repeated_calls" in x and x["repeated_calls"]["lines"]]


def test_numbers_are_given_no_longer_where_the_first_look_met_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    of_call = ValueNumbers.of_call

    def counted(values: Any, *given: Any) -> Any:
        begun.append(model.step)
        return of_call(values, *given)

    monkeypatch.setattr(ValueNumbers, "of_call", counted)

    def beside_a_constant(model: Any, x: torch.Tensor, step: int) -> Any:
        return dear(model.edges)[:4] + x

    model = Square(beside_a_constant)
    recorder.start(*probes(), now=CLOCK)
    train(model)
    assert len(set(begun)) == 1
    assert any(x["step_ns"] for x in lines_told(recorder, "constants", __file__).values())
