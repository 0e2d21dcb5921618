"""Which passes of backward are told to go through a graph again, and which are not."""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.repeated_backward import RepeatedBackwardProbe
from trainprof.record.schema import Topic

STEPS = 100
CLOCK = FakeClock()


@pytest.fixture(autouse=True)
def nothing_uses_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some passes below do by hand, and they all stand in one file."""
    set_use(monkeypatch, lambda: False)


def set_use(monkeypatch: pytest.MonkeyPatch, is_used: Callable[[], bool]) -> None:
    place = "trainprof.probes.repeated_backward.uses_gradients"
    monkeypatch.setattr(place, lambda is_user_file: is_used())


def start(recorder: Recorder) -> None:
    recorder.start(RepeatedBackwardProbe(), BackwardProbe(), OptimizerProbe(), now=CLOCK)


def told(recorder: Recorder) -> list[dict[str, Any]]:
    """Returns what has been told by the script's end, without damage to the probes."""
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "repeated_backward" in x]
    found: list[dict[str, Any]] = notes[-1]["repeated_backward"] if notes else []
    return found


def slow(tensor: torch.Tensor) -> torch.Tensor:
    """Has going back through the operator that gave it take a second of the fake clock."""
    assert tensor.grad_fn is not None
    tensor.grad_fn.register_hook(lambda *_: CLOCK.advance(1_000_000_000))
    return tensor


class Unit(torch.autograd.Function):
    """What comes back through it has a norm of one."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / grad.norm()


class TwoHeads(nn.Module):
    """A trunk that takes two seconds to go back through, and heads of one second each."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 1) for _ in range(3)])

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        shared = slow(slow(self.trunk(inputs)))
        return [slow(head(shared)).square().mean() for head in self.heads]


Learns = Callable[[TwoHeads, torch.optim.Optimizer, torch.Tensor], None]


def train(learns: Learns, *, steps: int = STEPS) -> list[float]:
    """Trains, with the passes that `learns` makes for each update."""
    torch.manual_seed(3)
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        learns(model, optimizer, torch.randn(4, 8))
        optimizer.step()
        seen.append(sum(one.sum().item() for one in model.parameters()))
        CLOCK.advance(1_000_000_000)
    return seen


def one_by_one(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    first, second, _third = model(inputs)
    first.backward(retain_graph=True)
    second.backward()


def in_a_loop(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    for loss in model(inputs):
        loss.backward(retain_graph=True)


def of_microbatches(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    for part in inputs.chunk(2):
        one_by_one(model, _, part)


def line_of(function: Callable[..., Any], line: int) -> int:
    return inspect.getsourcelines(function)[1] + line


def place(recorder: Recorder, number: int) -> int:
    file, line, _ = json.loads(recorder.read().texts[number][1])
    assert file.endswith("test_repeated_backward.py")
    return int(line)


def test_two_losses_with_a_pass_each_go_twice_through_what_they_share(recorder: Recorder) -> None:
    start(recorder)
    train(one_by_one)
    [one] = told(recorder)
    assert place(recorder, one["site"]) == line_of(one_by_one, 3)
    assert place(recorder, one["first"]) == line_of(one_by_one, 2)
    assert (one["passes"], one["caller"]) == (2, 0)
    assert one["looks"] == 16
    # Of three seconds for each of both passes two are for the trunk.
    assert one["share"] == pytest.approx(2 / 6, abs=0.01)


def test_a_loop_over_losses_is_told_with_how_often_it_goes(recorder: Recorder) -> None:
    start(recorder)
    train(in_a_loop)
    [one] = told(recorder)
    assert one["site"] == one["first"]
    assert one["passes"] == 3
    assert one["share"] == pytest.approx(4 / 9, abs=0.01)


def test_each_of_several_microbatches_has_a_graph_of_its_own(recorder: Recorder) -> None:
    start(recorder)
    train(of_microbatches)
    [one] = told(recorder)
    assert one["passes"] == 2
    assert one["share"] == pytest.approx(2 / 6, abs=0.01)


def test_what_some_updates_do_is_weighed_by_all(recorder: Recorder) -> None:
    times = [0]

    def each_third(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
        times[0] += 1
        if times[0] % 3:
            model(inputs)[0].backward()
        else:
            one_by_one(model, _, inputs)

    start(recorder)
    train(each_third)
    [one] = told(recorder)
    # Of each three updates two take three seconds, and one six, of which two are again.
    assert one["share"] == pytest.approx(2 / 12, abs=0.02)


def of_a_sequence(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """A loss at each of eight times, which goes back to the first."""
    state = inputs
    for _time in range(8):
        state = slow(model.trunk(state))
        state.mean().backward(retain_graph=True)


def test_an_update_is_looked_at_from_its_first_pass_on(recorder: Recorder) -> None:
    """Where the last look was dear, the next one comes due in the middle of an update."""
    start(recorder)
    recorder.session.now = lambda: CLOCK.advance(60_000_000) or CLOCK()
    train(of_a_sequence, steps=200)
    [one] = told(recorder)
    assert one["passes"] == 8
    # Of 1 + 2 + ... + 8 seconds all but 8.
    assert one["share"] == pytest.approx(28 / 36, abs=0.03)


@pytest.mark.parametrize("learns", [one_by_one, in_a_loop, of_microbatches])
def test_training_goes_as_without_us(recorder: Recorder, learns: Learns) -> None:
    plain = train(learns)
    start(recorder)
    assert train(learns) == plain


def of_the_sum(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    sum(model(inputs)).backward(retain_graph=True)  # type: ignore[attr-defined]


def of_forwards_of_their_own(
    model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor
) -> None:
    for number in range(2):
        model(inputs)[number].backward(retain_graph=True)


def set_back(model: TwoHeads, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """The first gradients serve something else."""
    first, second, _third = model(inputs)
    first.backward(retain_graph=True)
    optimizer.zero_grad()
    second.backward()


def zeroed(model: TwoHeads, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    first, second, _third = model(inputs)
    first.backward(retain_graph=True)
    optimizer.zero_grad(set_to_none=False)
    second.backward()


def clipped(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """Each loss's gradients by themselves."""
    first, second, _third = model(inputs)
    first.backward(retain_graph=True)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
    second.backward()


def attacked(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """What the first pass gives for the inputs makes others, for a loss beside the first."""
    inputs.requires_grad_()
    loss = model(inputs)[0]
    loss.backward(retain_graph=True)
    assert inputs.grad is not None
    (loss + model(inputs.detach() + inputs.grad.sign())[0]).backward()


def for_chosen_ones(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    first, second, _third = model(inputs)
    first.backward(retain_graph=True, inputs=list(model.heads[0].parameters()))
    second.backward()


def with_a_penalty(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """Of gradients, which need a graph."""
    first, second, _third = model(inputs)
    weight = model.trunk.weight
    (slope,) = torch.autograd.grad(first, weight, create_graph=True)
    (second + slope.square().sum()).backward()


def for_a_graph(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    model(inputs)[0].backward(create_graph=True)
    for one in model.parameters():
        one.grad = None if one.grad is None else one.grad.detach()


def step_between(model: TwoHeads, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    fixed = slow(inputs * model.heads[2].weight).mean()
    fixed.backward(retain_graph=True)
    optimizer.step()
    fixed.backward()


def clipped_beside_torch(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """Which does not count what is written to `.data`."""
    first, second, _third = model(inputs)
    first.backward(retain_graph=True)
    for one in model.parameters():
        if one.grad is not None:
            one.grad.data.clamp_(-1e-4, 1e-4)
    second.backward()


def zeroed_beside_torch(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    first, second, _third = model(inputs)
    first.backward(retain_graph=True)
    for one in model.trunk.parameters():
        assert one.grad is not None
        one.grad.data.zero_()
    second.backward()


def for_one_model_each(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """As a generator and a discriminator: the other one's parameters are frozen meanwhile."""
    first, second, _third = model(inputs)
    model.heads.requires_grad_(False)
    first.backward(retain_graph=True)
    model.heads.requires_grad_(True)
    model.trunk.requires_grad_(False)
    second.backward()
    model.trunk.requires_grad_(True)


def collected(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """By hooks, which take each gradient away; one of them puts it together in the end."""
    given: list[torch.Tensor] = []

    def collect(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        given.append(leaf.grad)
        leaf.grad = None

    weight = model.trunk.weight
    hook = weight.register_post_accumulate_grad_hook(collect)
    one_by_one(model, _, inputs)
    hook.remove()
    weight.grad = given[0] + given[1].clamp(-1e-4, 1e-4)


def clipped_by_hooks(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    hook = model.trunk.weight.register_hook(lambda grad: grad.clamp(-1e-4, 1e-4))
    one_by_one(model, _, inputs)
    hook.remove()


def of_one_norm(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """By a backward by hand, in what the losses share."""
    shared = Unit.apply(slow(model.trunk(inputs)))
    first, second = (head(shared).square().mean() for head in model.heads[:2])
    first.backward(retain_graph=True)
    second.backward()


def clipped_by_a_module(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    def clip(module: nn.Module, into: Any, out: Any) -> Any:
        return tuple(None if one is None else one.clamp(-1e-4, 1e-4) for one in into)

    shared = slow(model.trunk(inputs))
    between = nn.Tanh()
    between.register_full_backward_hook(clip)
    shared = between(shared)
    first, second = (head(shared).square().mean() for head in model.heads[:2])
    first.backward(retain_graph=True)
    second.backward()


APART = {
    "the sum": of_the_sum,
    "other forwards": of_forwards_of_their_own,
    "set back between": set_back,
    "zeroed between": zeroed,
    "clipped between": clipped,
    "clipped between, in .data": clipped_beside_torch,
    "zeroed between, in .data": zeroed_beside_torch,
    "for one model each": for_one_model_each,
    "taken away by hooks": collected,
    "clipped by hooks": clipped_by_hooks,
    "clipped by a module": clipped_by_a_module,
    "of one norm": of_one_norm,
    "of inputs": attacked,
    "for chosen parameters": for_chosen_ones,
    "a penalty": with_a_penalty,
    "a graph of gradients": for_a_graph,
    "a step between": step_between,
}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("learns", APART.values(), ids=APART)
def test_passes_that_one_cannot_stand_for_are_not_told(recorder: Recorder, learns: Learns) -> None:
    start(recorder)
    train(learns)
    assert told(recorder) == []


def with_a_backward_by_hand(
    model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor
) -> None:
    """Of one loss only, so that it is the same for a sum."""
    shared = slow(model.trunk(inputs))
    first, second = (head(shared).square().mean() for head in model.heads[:2])
    first.backward(retain_graph=True)
    Unit.apply(second).backward()


def with_a_hook_that_is_gone(
    model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor
) -> None:
    model.trunk.weight.register_hook(lambda grad: grad).remove()
    one_by_one(model, _, inputs)


def without_numbers(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """A loss that is lost: NaN, which equals nothing, not even itself."""
    one_by_one(model, _, inputs * float("nan"))


@pytest.mark.parametrize(
    "learns", [with_a_backward_by_hand, with_a_hook_that_is_gone, without_numbers]
)
def test_what_a_sum_has_the_same_done_to_is_told(recorder: Recorder, learns: Learns) -> None:
    start(recorder)
    train(learns)
    assert [one["passes"] for one in told(recorder)] == [2]


def test_anomaly_detection_has_notes_of_its_own_at_nodes(recorder: Recorder) -> None:
    start(recorder)
    with torch.autograd.set_detect_anomaly(True):
        train(one_by_one)
        assert [one["passes"] for one in told(recorder)] == [2]


def test_nothing_is_told_where_the_script_uses_gradients(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked early: at the end its text may no longer be known as a module's."""
    answers = iter([True])
    set_use(monkeypatch, lambda: next(answers, False))
    start(recorder)
    train(one_by_one)
    assert told(recorder) == []


def test_what_has_been_told_is_taken_back_at_once(recorder: Recorder) -> None:
    updates = [0]

    def clipped_late(
        model: TwoHeads, optimizer: torch.optim.Optimizer, inputs: torch.Tensor
    ) -> None:
        updates[0] += 1
        (clipped if updates[0] > STEPS // 2 else one_by_one)(model, optimizer, inputs)

    start(recorder)
    notes = recorder.session.note_state
    seen = []
    recorder.session.note_state = lambda facts: (seen.append(facts), notes(facts))
    train(clipped_late)
    assert [len(one["repeated_backward"]) for one in seen] == [1, 1, 0]


class Part(torch.autograd.Function):
    """Its node has a thing of its own, which dies with it."""

    seen: ClassVar[list[weakref.ref[Any]]] = []

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.thing = type("Thing", (), {})()
        Part.seen.append(weakref.ref(ctx.thing))
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def test_no_graph_lives_longer_than_the_script_keeps_it(recorder: Recorder) -> None:
    alive = []

    def of_kept_microbatches(
        model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor
    ) -> None:
        Part.seen.clear()
        for part in inputs.chunk(4):
            shared = slow(model.trunk(part))
            first, second = (head(shared).mean() for head in model.heads[:2])
            (Part.apply(first) + second).backward(retain_graph=True)
            second.backward(retain_graph=True)
            del shared, first, second
            alive.append(sum(thing() is not None for thing in Part.seen))

    start(recorder)
    train(of_kept_microbatches)
    assert len(told(recorder)) == 1
    assert set(alive) == {0}


def test_where_no_graph_is_kept_nothing_is_watched_for_long(recorder: Recorder) -> None:
    start(recorder)

    def plainly(model: TwoHeads, _: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
        model(inputs)[0].backward()

    train(plainly, steps=40)
    assert recorder.session.backward_watches
    train(plainly, steps=40)
    assert recorder.session.backward_watches == ()


def test_after_enough_looks_nothing_is_watched_any_longer(recorder: Recorder) -> None:
    start(recorder)
    train(one_by_one)
    assert recorder.session.backward_watches == ()
    assert recorder.session.step_watches == ()


def test_what_is_dear_to_look_at_is_looked_at_the_more_rarely(recorder: Recorder) -> None:
    start(recorder)
    recorder.session.now = lambda: CLOCK.advance(1_000_000_000) or CLOCK()
    train(one_by_one)
    assert recorder.session.backward_watches
    assert recorder.session.step_watches
    [one] = told(recorder)
    assert one["looks"] == 4  # these may cost more
