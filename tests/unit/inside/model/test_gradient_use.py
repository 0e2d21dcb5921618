"""Which gradients are noted that no optimizer has, or that are thrown away, and which are not."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.nn.functional import mse_loss

from trainprof.inside.catalogue import default_probes
from trainprof.inside.model.gradient_use import GradientUseProbe
from trainprof.inside.model.parameters import reads_gradients
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.schema import Topic

STEPS = 40
CLOCK = FakeClock()
KEYS = ("unused_gradients", "discarded_gradients")


class Timed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CLOCK.advance(1_000_000)
        out: torch.Tensor = super().forward(x)
        if out.requires_grad:
            out.register_hook(lambda _: CLOCK.advance(1_000_000))
        return out


class Maker(Timed):
    pass


class Judge(Timed):
    pass


class Probed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = network(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def network(width: int = 16) -> Maker:
    return Maker(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8))


def judge() -> Judge:
    return Judge(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)


def given() -> torch.Tensor:
    return torch.randn(4, 8)


@pytest.fixture(autouse=True)
def is_reading(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the script reads gradients: some below do, and they are all in one file."""
    is_read = [False]
    place = "trainprof.inside.model.gradient_use.reads_gradients"
    monkeypatch.setattr(place, lambda _: is_read[0])
    return is_read


def start(recorder: Recorder) -> None:
    probes = (GradientUseProbe(), ForwardProbe(), BackwardProbe(), OptimizerProbe())
    recorder.start(*probes, now=CLOCK)


def noted(recorder: Recorder) -> list[Any]:
    """Returns what is noted last of both by the script's end, without damage to the probes."""
    recorder.session.on_end()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = recording.notes(Topic.ENVIRONMENT)
    return [([None] + [x[key] for x in notes if key in x])[-1] for key in KEYS]


def line_of(recorder: Recorder, site: int) -> str:
    file, line, _ = json.loads(recorder.read().texts[site][1])
    assert file.endswith("test_gradient_use.py")
    return inspect.getsource(inspect.getmodule(line_of)).splitlines()[line - 1]  # type: ignore[arg-type]


def train(loss_of: Callable[[torch.Tensor], torch.Tensor], *trained: nn.Module) -> list[float]:
    optimizer, losses = sgd(*trained), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(given())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def distil(teacher: Callable[[torch.Tensor], torch.Tensor], student: nn.Module) -> list[float]:
    return train(lambda x: mse_loss(student(x), teacher(x)), student)


def adversaries(
    its_maker: nn.Module, its_judge: nn.Module, *, is_apart: bool = False, every: int = 1
) -> list[float]:
    of_maker, of_judge = sgd(its_maker), sgd(its_judge)
    own, losses = list(its_maker.parameters()) if is_apart else None, []
    for step in range(STEPS):
        made = its_maker(given())
        of_judge.zero_grad()
        loss = its_judge(made.detach() if is_apart else made).square().mean()
        loss.backward(retain_graph=True)  # of the judge
        of_judge.step()
        if step % every == every - 1:
            of_maker.zero_grad()
            other = (1 - its_judge(made)).square().mean()
            other.backward(inputs=own)  # of the maker
            of_maker.step()
            losses.append(other.item())
    return losses


@pytest.mark.parametrize(("is_whole", "least"), [(True, 0.2), (False, 0.5)])
def test_gradients_that_no_optimizer_has(recorder: Recorder, is_whole: bool, least: float) -> None:
    start(recorder)
    if is_whole:
        distil(network(32), network())
    else:
        model = Probed()
        train(lambda x: model(x).square().mean(), model.head)
    unused, discarded = noted(recorder)
    assert discarded is None
    assert least < unused["unused_share"] < 1
    assert (unused["mixed_share"], unused["from_start"]) == (0, True)
    assert unused["model"] == ("Maker" if is_whole else "Probed")
    assert ("teacher(x)" if is_whole else "model(x)") in line_of(recorder, unused["model_site"])


def test_a_model_that_gradients_go_through_is_beside_what_is_used(recorder: Recorder) -> None:
    start(recorder)
    critic, student = judge(), network()
    train(lambda x: critic(student(x)).mean(), student)
    unused, _ = noted(recorder)
    assert unused["unused_share"] == 0
    assert 0.2 < unused["mixed_share"] < 0.8


@pytest.mark.parametrize("every", [1, 3])
def test_gradients_that_are_thrown_away(recorder: Recorder, every: int) -> None:
    start(recorder)
    adversaries(network(), judge(), every=every)
    unused, discarded = noted(recorder)
    assert unused is None
    of_judge, of_maker = sorted(discarded, key=lambda record: -record["unused_share"])
    assert "# of the judge" in line_of(recorder, of_judge["site"])
    assert "# of the maker" in line_of(recorder, of_maker["site"])
    assert [record["model"] for record in (of_judge, of_maker)] == ["Maker", "Judge"]
    assert 0.05 < of_judge["unused_share"] < 0.9
    assert (of_judge["mixed_share"], of_maker["unused_share"]) == (0, 0)
    assert 0.05 < of_maker["mixed_share"] < 0.9


def test_an_actor_that_learns_from_critics(recorder: Recorder) -> None:
    """As soft actor-critic does: one optimizer has both critics."""
    start(recorder)
    actor, critics = network(), [judge(), judge()]
    of_actor, of_critics = sgd(actor), sgd(*critics)
    for _ in range(STEPS):
        x = given()
        loss = sum(mse_loss(critic(x), torch.zeros(4, 1)) for critic in critics)
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        acted = actor(x)
        of_actor.zero_grad()
        (-torch.min(*(critic(acted) for critic in critics)).mean()).backward()
        of_actor.step()
    _, [discarded] = noted(recorder)
    assert "torch.min(" in line_of(recorder, discarded["site"])
    assert (discarded["model"], discarded["unused_share"]) == ("Judge", 0)


def one_backward_for_two(every: int, adds_up: bool = False) -> None:
    """One of them steps once in `every` passes, with the last gradients or all, added up."""
    its_maker, its_judge = network(), judge()
    of_maker, of_judge = sgd(its_maker), sgd(its_judge)
    for step in range(2 * STEPS):
        its_judge(its_maker(given())).mean().backward()
        of_judge.step()
        of_judge.zero_grad()
        steps = step % every == every - 1
        if steps:
            of_maker.step()
        if steps or not adds_up:
            of_maker.zero_grad()


def without_gradients() -> None:
    teacher = network()
    distil(torch.no_grad()(lambda x: teacher(x)), network())


def plainly() -> None:
    model = network()
    train(lambda x: model(x).square().mean(), model)


def of_one_optimizer() -> None:
    """A first pass at other weights, as sharpness-aware minimization makes it."""
    model = network()
    optimizer = sgd(model)
    shared = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(given()).mean().backward()
        optimizer.zero_grad()
        model(given()).mean().backward()
        shared.step()
        optimizer.step()
        optimizer.zero_grad()


def updated_by_hand() -> None:
    """An old script's way, of which no version of a parameter tells."""
    other, student = network(), network()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        for parameter in other.parameters():
            if parameter.grad is not None:
                parameter.data -= 0.01 * parameter.grad
                parameter.grad = None
        return mse_loss(student(x), other(x))

    train(loss_of, student)


def asked_for() -> None:
    image, model = torch.zeros(8, requires_grad=True), network()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        [slope] = torch.autograd.grad(model(image).sum(), image, create_graph=True)
        return model(x).mean() + slope.square().sum() + (image * x).sum()

    train(loss_of, model)


def in_backward() -> None:
    model = judge()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        model(given()).mean().backward()


@pytest.mark.parametrize(
    "training",
    [
        *(plainly, without_gradients, of_one_optimizer, updated_by_hand, asked_for),
        in_backward,
        lambda: adversaries(network(), judge(), is_apart=True),
        lambda: distil(network().requires_grad_(False), network()),
        *(partial(one_backward_for_two, every) for every in (1, 4, 1_000)),
        partial(one_backward_for_two, 5, adds_up=True),
    ],
)
def test_nothing_is_noted_of(recorder: Recorder, training: Callable[[], object]) -> None:
    start(recorder)
    training()
    assert noted(recorder) == [None, None]


def test_gradients_that_the_script_reads(recorder: Recorder, is_reading: list[bool]) -> None:
    is_reading[0] = True
    start(recorder)
    adversaries(network(), judge())
    distil(network(32), network())
    assert noted(recorder) == [None, None]


def test_the_same_losses_and_nothing_is_kept(same_with_us: Callable[..., Any]) -> None:
    teacher, student = network(), network()

    def trained() -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        return adversaries(network(), judge()), distil(teacher, network())

    same_with_us(trained, *default_probes())
    for parameter, other in zip(teacher.parameters(), student.parameters(), strict=True):
        torch.utils.swap_tensors(parameter, other)  # of what nobody refers to


READING = (
    *("fisher += p.grad.detach() ** 2", "norms = [p.grad.norm() for p in ps]"),
    *("if p.grad == 0:", "g = getattr(p, 'grad')"),
)
NOT_READING = (
    *("p.grad = None", "p.grad.zero_()", "p.grad.detach_()", "if p.grad is not None:"),
    *("with torch.no_grad():", "p.requires_grad_(False)", "g, = torch.autograd.grad(y, x)"),
    *("f = torch.func.grad(g)", "optimizer.zero_grad()  # and p.grad.norm()"),
)


@pytest.mark.parametrize("line", [None, *READING, *NOT_READING])
def test_lines_that_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str | None) -> None:
    path = tmp_path / "script.py"
    if line is not None:  # else the file is gone
        path.write_text(f"import torch\n{line}\n")
    monkeypatch.setitem(sys.modules, "script", SimpleNamespace(__file__=str(path)))
    assert reads_gradients(lambda file: file == str(path)) is (line not in NOT_READING)
    assert not reads_gradients(lambda file: False)
