"""Which forwards are told of that no backward pass goes through, and which are not."""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainprof.probes import unused_forwards
from trainprof.probes.backward import BackwardProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.unused_forwards import UnusedForwardsProbe
from trainprof.record.schema import Topic

STEPS = 80
CLOCK = FakeClock()


class Model(nn.Sequential):
    pass


class Other(nn.Sequential):
    pass


def layers() -> tuple[nn.Module, ...]:
    return nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)


def start(recorder: Recorder) -> UnusedForwardsProbe:
    probe = UnusedForwardsProbe()
    recorder.start(probe, ForwardProbe(), BackwardProbe(), OptimizerProbe(), now=CLOCK)
    return probe


def told(recorder: Recorder) -> list[dict[str, Any]] | None:
    """Returns what has been told by the script's end, without damage to the probes."""
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "unused_forwards" in x]
    found: list[dict[str, Any]] | None = notes[-1]["unused_forwards"] if notes else None
    return found


Beside = Callable[[int, nn.Module, torch.Tensor], Any]


def train(
    model: nn.Module, beside: Beside, *, steps: int = STEPS, more: nn.Module | None = None
) -> list[float]:
    """Trains, and does something beside in each step; one takes a second of the fake clock."""
    trained = [*model.parameters(), *(more.parameters() if more is not None else ())]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    losses = []
    for step in range(steps):
        inputs = torch.randn(4, 8)
        loss = model(inputs).square().mean()
        further = beside(step, model, inputs)
        if isinstance(further, torch.Tensor):
            loss = loss + further
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        CLOCK.advance(1_000_000_000)
    return losses


def looks_at(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    model(inputs + 1)


class Slow(nn.Linear):
    """Takes three quarters of a second of the fake clock."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        CLOCK.advance(750_000_000)
        return super().forward(inputs)


def test_a_call_whose_result_nothing_is_learned_from_is_told(recorder: Recorder) -> None:
    start(recorder)
    train(Model(Slow(8, 8)), looks_at)
    found = told(recorder)
    assert found is not None
    [one] = found
    assert one["class"] == "Model"
    assert one["looks"] >= 4
    assert one["share"] == pytest.approx(0.5, abs=0.1)
    assert one["seconds"] == pytest.approx(0.75 * STEPS, rel=0.1)
    file, line, _ = json.loads(recorder.read().texts[one["site"]][1])
    assert file.endswith("test_unused_forwards.py")
    assert line == inspect.getsourcelines(looks_at)[1] + 1


class SlowLoss(nn.MSELoss):
    """Takes longer than the model that it judges, and has something to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, given: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        CLOCK.advance(2_000_000_000)
        return super().forward(given, target) * self.scale


@pytest.mark.parametrize("is_learned_from", [True, False])
def test_what_losses_take_is_none_of_forward(recorder: Recorder, is_learned_from: bool) -> None:
    criterion = SlowLoss()

    def judges(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
        model(inputs + 1)
        loss = criterion(model(inputs), inputs)
        return loss if is_learned_from else None

    start(recorder)
    train(Model(Slow(8, 8)), judges, more=criterion)
    found = told(recorder)
    assert found is not None
    # Of three calls in each step one, and the one that a loss is given which is thrown away.
    assert {one["class"] for one in found} == {"Model"}
    shares = [one["share"] for one in found]
    assert shares == pytest.approx([1 / 3] * (1 if is_learned_from else 2), abs=0.1)


def test_training_goes_as_without_us(recorder: Recorder) -> None:
    def run() -> list[float]:
        torch.manual_seed(3)
        return train(Model(*layers()), looks_at)

    plain = run()
    start(recorder)
    assert run() == plain


class Balanced(nn.Module):
    """Keeps a loss of its own, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)
        self.balance = torch.zeros(())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inner = self.first(inputs)
        self.balance = inner.square().mean()
        result: torch.Tensor = self.last(inner.tanh())
        return result


class Boxed(nn.Sequential):
    """Gives something that nobody knows what is in."""

    def forward(self, inputs: torch.Tensor) -> Any:
        return SimpleNamespace(result=super().forward(inputs))


def without_gradients(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    with torch.no_grad():
        model(inputs + 1)


def adds_to_the_loss(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
    return model(inputs + 1).sum() * 0.1


def checkpoints(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
    inputs = inputs.clone().requires_grad_()
    return checkpoint(model, inputs, use_reentrant=step % 2 == 0).sum() * 0.1


def asks_for_gradients(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
    """A gradient penalty."""
    inputs = inputs.clone().requires_grad_()
    [found] = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return found.norm() * 0.1


def validates(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    """As many do, with gradients: not in each step."""
    if step % 20 == 19:
        for _ in range(5):
            model(inputs + 1)


NEEDED = {
    "without gradients": without_gradients,
    "a further loss": adds_to_the_loss,
    "checkpointed": checkpoints,
    "autograd.grad": asks_for_gradients,
    "validation": validates,
    "nothing": lambda step, model, inputs: None,
}


@pytest.mark.parametrize("beside", NEEDED.values(), ids=NEEDED)
def test_what_is_needed_or_keeps_no_graph_is_not_told(recorder: Recorder, beside: Beside) -> None:
    start(recorder)
    train(Model(*layers()), beside)
    assert not told(recorder)


def test_a_loss_that_a_module_keeps_is_learned_from(recorder: Recorder) -> None:
    kept = Balanced()

    def balances(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
        kept(inputs)
        return kept.balance

    start(recorder)
    train(Model(*layers()), balances, more=kept)
    assert not told(recorder)


def test_of_what_nobody_can_look_into_nothing_is_said(recorder: Recorder) -> None:
    boxed = Boxed(*layers())

    def opened(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
        return boxed(inputs).result.sum() * 0.1

    start(recorder)
    train(Model(*layers()), opened, more=boxed)
    assert not told(recorder)


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.by


def test_what_later_steps_go_back_through_is_not_told(recorder: Recorder) -> None:
    """As where a state is handed on from step to step."""
    other, state = Shift(), [torch.zeros(4, 8)]

    def hands_on(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
        before = state[0]
        state[0] = other(inputs)
        return before.sum() * 0.1

    start(recorder)
    train(Model(*layers()), hands_on, more=other)
    assert not told(recorder)


def test_results_of_a_model_that_is_not_trained_are_needed(recorder: Recorder) -> None:
    """A teacher's, a target network's: they are computed for the sake of what they give."""
    target = Other(*layers())
    start(recorder)
    train(Model(*layers()), lambda step, model, inputs: target(inputs).detach().sum())
    assert not told(recorder)


def test_what_is_learned_from_later_on_is_taken_back(recorder: Recorder) -> None:
    other = Other(*layers())

    def later(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
        result = other(inputs)
        return result.sum() * 0.1 if step >= STEPS else None

    start(recorder)
    train(Model(*layers()), later, steps=5 * STEPS, more=other)
    assert told(recorder) == []


def judged_by(judge: nn.Module, step: int, maker: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    made = maker(inputs + 1).detach()
    return judge(made).sum() * 0.1


def test_what_another_model_learns_from_is_needed_though_detached(recorder: Recorder) -> None:
    """As a judge does of what a maker gives it."""
    judge = Other(*layers())
    start(recorder)
    train(Model(*layers()), partial(judged_by, judge), more=judge)
    assert not told(recorder)


def test_the_target_of_a_loss_is_needed(recorder: Recorder) -> None:
    other, criterion = Other(*layers()), nn.MSELoss()

    def follows(step: int, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        target = model(inputs + 1).detach()
        loss: torch.Tensor = criterion(input=other(inputs), target=target)
        return loss

    start(recorder)
    train(Model(*layers()), follows, more=other)
    assert not told(recorder)


@pytest.mark.parametrize("is_learned_from", [True, False])
def test_the_target_of_a_function_for_a_loss_is_needed_where_that_is(
    recorder: Recorder, is_learned_from: bool
) -> None:
    other = Other(*layers())

    def follows(step: int, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor | None:
        target = model(inputs + 1).detach()
        loss = nn.functional.mse_loss(other(inputs), target=target)
        return loss if is_learned_from else None

    start(recorder)
    train(Model(*layers()), follows, more=other)
    assert bool(told(recorder)) is not is_learned_from


def bootstraps(step: int, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """As a critic does: its target is made of what it says of the next state."""
    target = 0.5 + 0.9 * model(inputs + 1).detach()
    return (model(inputs * 2) - target).square().mean()


def keeps_nothing(step: int, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """What it wants to know of the batch the first call told."""
    advantage = 0.5 - model(inputs).detach()
    return (advantage * model(inputs)).mean()


def looks_by_another(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
    BESIDE(inputs + 1)


BESIDE = Model(*layers())


@pytest.mark.parametrize(
    ("beside", "may_be"), [(bootstraps, True), (keeps_nothing, False), (looks_by_another, False)]
)
def test_what_may_be_a_target_is_told_apart(
    recorder: Recorder, beside: Beside, may_be: bool
) -> None:
    start(recorder)
    train(Model(*layers()), beside, more=BESIDE)
    found = told(recorder)
    assert found is not None
    [one] = found
    assert one["may_be_target"] is may_be
    code = inspect.getsourcelines(beside)
    _, line, _ = json.loads(recorder.read().texts[one["site"]][1])
    assert "detach" in code[0][line - code[1]] or beside is looks_by_another


def test_one_call_of_a_line_that_is_learned_from_speaks_for_all(recorder: Recorder) -> None:
    """Pseudo labels from one view, and a loss of the other, by one line."""

    def views(step: int, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        weak, strong = [model(view) for view in (inputs + 1, inputs + 2)]
        return (strong - weak.detach()).square().mean()

    start(recorder)
    train(Model(*layers()), views)
    assert not told(recorder)


class Front(nn.Module):
    """Several modules in a function that is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        inner = self.first(inputs).tanh()
        result: torch.Tensor = self.second(inner).tanh()
        return result

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(checkpoint(self.features, inputs, use_reentrant=False))
        return result


def test_what_is_computed_again_in_backward_is_not_told(recorder: Recorder) -> None:
    start(recorder)
    train(Model(Front()), lambda step, model, inputs: None)
    assert not told(recorder)


def test_of_a_long_list_no_more_than_some_is_looked_at(recorder: Recorder) -> None:
    class Long(list[float]):
        def __iter__(self) -> Any:
            raise AssertionError("the script's code is run")

        def __len__(self) -> int:
            raise AssertionError("the script's code is run")

    class Takes(nn.Linear):
        def forward(self, inputs: Any) -> torch.Tensor:
            return super().forward(torch.ones(4, self.in_features))

    other = Takes(8, 8)
    start(recorder)
    train(
        Model(*layers()),
        lambda step, model, inputs: (model(inputs), other(Long([0.0] * 5000)).sum())[1],
        more=other,
    )
    assert told(recorder)


class Counts(nn.Module):
    """A metric."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.argmax(1)


@pytest.mark.parametrize("after", [Counts(), Other(*layers())], ids=["a metric", "a model"])
def test_what_goes_into_a_call_that_nothing_is_learned_from_is_told(
    recorder: Recorder, after: nn.Module
) -> None:
    def looks_on(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
        after(model(inputs + 1))

    start(recorder)
    train(Model(*layers()), looks_on, more=after)
    found = told(recorder)
    assert found is not None
    assert {one["class"] for one in found} >= {"Model"}


def test_storages_live_no_longer_for_it(recorder: Recorder) -> None:
    """What was given is known by its place, which is free to be taken again."""
    alive: list[bool] = []
    reference = torch.multiprocessing.reductions.StorageWeakRef

    def makes(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
        weak = reference(model(inputs).untyped_storage())
        alive.append(not weak.expired())

    start(recorder)
    train(Model(*layers()), makes)
    assert not any(alive)


def test_what_prepares_its_input_may_be_of_the_same_class(recorder: Recorder) -> None:
    changes = Model(nn.Tanh())

    def looks(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
        model(changes(inputs + 1))

    start(recorder)
    train(Model(*layers()), looks)
    found = told(recorder)
    assert found is not None
    assert [one["class"] for one in found] == ["Model"]


def test_each_line_is_told_apart_and_of_dicts_and_tuples_as_well(recorder: Recorder) -> None:
    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Other(*layers())

        def forward(self, inputs: torch.Tensor) -> dict[str, Any]:
            return {"hidden": (inputs, None), "logits": [self.inner(inputs)], "name": "x"}

    output = Output()

    def both(step: int, model: nn.Module, inputs: torch.Tensor) -> Any:
        output(inputs)
        return output(inputs)["logits"][0].sum() * 0.1

    start(recorder)
    train(Model(*layers()), both, more=output)
    found = told(recorder)
    assert found is not None
    [one] = found
    _, line, _ = json.loads(recorder.read().texts[one["site"]][1])
    assert line == inspect.getsourcelines(both)[1] + 1


def test_no_graph_lives_longer_for_it(recorder: Recorder) -> None:
    made: list[weakref.ref[Any]] = []

    def makes(step: int, model: nn.Module, inputs: torch.Tensor) -> None:
        result = model(inputs)
        made.append(weakref.ref(result))

    start(recorder)
    train(Model(*layers()), makes)
    assert all(one() is None for one in made)


def test_models_that_are_not_trained_beside_one_that_is_are_not_watched_for_ever(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    probe = start(recorder)
    tell = recorder.session.tell_modules
    monkeypatch.setattr(
        recorder.session,
        "tell_modules",
        lambda watch, is_on: (asked.append(is_on), tell(watch, is_on)),
    )
    train(Model(*layers()), looks_at, steps=400)
    assert told(recorder)
    assert 3 <= sum(asked) <= 12  # windows, more and more rarely
    assert not probe._is_on


def test_looks_that_take_too_long_are_put_off(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused_forwards, "_COST_SHARE", 0.0)
    probe = start(recorder)
    probe._spent_ns = 1
    train(Model(*layers()), looks_at)
    assert told(recorder) is None


def test_a_fault_of_ours_ends_the_watching(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of a module would pay for it for the rest of the run."""

    def fails(*_: object) -> None:
        raise ValueError("ours")

    probe = start(recorder)
    monkeypatch.setattr(probe, "_look", fails)
    asked: list[bool] = []
    tell = recorder.session.tell_modules
    monkeypatch.setattr(
        recorder.session,
        "tell_modules",
        lambda watch, is_on: (asked.append(is_on), tell(watch, is_on)),
    )
    train(Model(*layers()), looks_at)
    assert len(recorder.read().notes(Topic.PROBE_FAILED)) == 1
    assert asked[-1] is False
    assert recorder.session.backward_watches == ()
