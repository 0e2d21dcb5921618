"""Which gradients are told of that are set back before their optimizer steps, and which are not."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainprof.probes import graph_look
from trainprof.probes.backward import BackwardProbe
from trainprof.probes.catalogue import default_probes
from trainprof.probes.discarded_gradients import DiscardedGradientsProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.record.schema import Topic

STEPS = 60
CLOCK = FakeClock()
DISCARDED = "discarded_gradients"


@pytest.fixture(autouse=True)
def nothing_reads_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some scripts below do, and they all stand in one file."""
    set_reading(monkeypatch, is_read=False)


def set_reading(monkeypatch: pytest.MonkeyPatch, *, is_read: bool) -> None:
    place = "trainprof.probes.discarded_gradients.reads_gradients"
    monkeypatch.setattr(place, lambda is_user_file: is_read)


class Maker(nn.Sequential):
    pass


class Judge(nn.Sequential):
    pass


def maker(width: int = 16) -> Maker:
    return Maker(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8))


def judge() -> Judge:
    return Judge(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)


def start(recorder: Recorder, now: Callable[[], int] = CLOCK) -> DiscardedGradientsProbe:
    probe = DiscardedGradientsProbe()
    recorder.start(probe, ForwardProbe(), BackwardProbe(), OptimizerProbe(), now=now)
    return probe


def notes(recorder: Recorder) -> list[dict[str, Any]]:
    """Returns what has been told by the script's end, without damage to the probes."""
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    return [x for x in recording.notes(Topic.ENVIRONMENT) if DISCARDED in x]


def told(recorder: Recorder) -> list[dict[str, Any]] | None:
    last = notes(recorder)
    found: list[dict[str, Any]] | None = last[-1][DISCARDED] if last else None
    return found


def line_of(recorder: Recorder, site: int) -> int:
    return int(json.loads(recorder.read().texts[site][1])[1])


def adversaries(
    its_maker: nn.Module,
    its_judge: nn.Module,
    *,
    steps: int = STEPS,
    is_detached: bool = False,
    is_apart: bool = False,
    every: int = 1,
    set_to_none: bool = True,
) -> list[float]:
    """Trains both; a step takes a second of the fake clock."""
    of_maker, of_judge = sgd(its_maker), sgd(its_judge)
    own = list(its_maker.parameters()) if is_apart else None
    losses = []
    for step in range(steps):
        made = its_maker(torch.randn(4, 8))
        of_judge.zero_grad(set_to_none)
        loss = its_judge(made.detach() if is_detached else made).square().mean()
        loss.backward(retain_graph=True)  # of the judge
        of_judge.step()
        if step % every == every - 1:
            of_maker.zero_grad(set_to_none)
            other = (1 - its_judge(made)).square().mean()
            other.backward(inputs=own)  # of the maker
            of_maker.step()
            losses.append(other.item())
        CLOCK.advance(1_000_000_000)
    return losses


@pytest.mark.parametrize("is_detached", [False, True])
def test_fused_updates_of_what_lies_on_a_device(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_detached: bool
) -> None:
    """torch does not count what they write, and nobody may wait for the numbers."""
    monkeypatch.setattr(graph_look.Autograd, "_sum_of", lambda self, parameter: None)
    start(recorder)
    its_maker, its_judge = maker(), judge()
    of_maker, of_judge = (
        torch.optim.Adam(one.parameters(), lr=0.01, fused=True) for one in (its_maker, its_judge)
    )
    for _ in range(STEPS):
        of_judge.zero_grad()
        made = its_maker(torch.randn(4, 8))
        its_judge(made.detach() if is_detached else made).mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        its_judge.requires_grad_(False)
        its_judge(its_maker(torch.randn(4, 8))).mean().backward()
        of_maker.step()
        its_judge.requires_grad_(True)
        CLOCK.advance(1_000_000_000)
    found = told(recorder)
    if is_detached:
        assert not found
        return
    assert found is not None
    [one] = found
    assert [model["class"] for model in one["models"]] == ["Maker"]


def lines(ending: str) -> int:
    text, first = inspect.getsourcelines(adversaries)
    return first + next(n for n, line in enumerate(text) if line.rstrip().endswith(ending))


@pytest.mark.parametrize(
    "options", [{}, {"every": 5, "steps": 150}, {"set_to_none": False}, {"steps": 40}]
)
def test_what_is_not_detached(recorder: Recorder, options: dict[str, Any]) -> None:
    start(recorder)
    adversaries(maker(), judge(), **options)
    found = told(recorder)
    assert found is not None
    by_line = {line_of(recorder, one["site"]): one for one in found}
    assert set(by_line) == {lines("# of the judge"), lines("# of the maker")}
    assert all(one["caller"] == 0 for one in found)
    of_judge, of_maker = by_line[lines("# of the judge")], by_line[lines("# of the maker")]
    for one, lost, kept, numbers in (
        (of_judge, "Maker", "Judge", 8 * 16 * 2 + 16 + 8),
        (of_maker, "Judge", "Maker", 8 * 8 + 8 + 8 + 1),
    ):
        assert (one["tensors"], one["kept_tensors"], one["numbers"]) == (4, 4, numbers)
        assert [model["class"] for model in one["models"]] == [lost]
        assert [model["class"] for model in one["kept"]] == [kept]


def test_torchs_profiler_shows_the_scripts_own_operators(
    same_with_us: Callable[..., Any],
) -> None:
    def operators() -> dict[str, int]:
        its_maker, its_judge = maker(), judge()
        adversaries(its_maker, its_judge, set_to_none=False, steps=10)
        with torch.profiler.profile() as profiler:
            adversaries(its_maker, its_judge, set_to_none=False, steps=20)
        names = Counter(event.name for event in profiler.events())
        return {name: count for name, count in names.items() if name.startswith("aten::")}

    assert same_with_us(operators)[1]["aten::mean"] == 40


def test_the_pass_that_goes_through_another_model(recorder: Recorder) -> None:
    start(recorder)
    adversaries(maker(), judge(), is_detached=True)
    found = told(recorder)
    assert found is not None
    [one] = found
    assert line_of(recorder, one["site"]) == lines("# of the maker")
    assert [model["class"] for model in one["models"]] == ["Judge"]


class Costly(torch.autograd.Function):
    """What it has of nodes takes time of the fake clock on its way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, ms: int) -> torch.Tensor:
        ctx.ms = ms
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        CLOCK.advance(ctx.ms * 1_000_000)
        return grad, grad.sum(), None


class Scale(nn.Module):
    def __init__(self, node: Any, ms: int) -> None:
        super().__init__()
        self.weight, self.node, self.ms = nn.Parameter(torch.ones(())), node, ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.node.apply(x, self.weight, self.ms)  # type: ignore[no-any-return]


@pytest.mark.parametrize("every", [1, 3])
def test_what_it_takes_of_all_passes(recorder: Recorder, every: int) -> None:
    start(recorder)
    # As torch.compile names its nodes: their Python code has no effects of its own.
    named = type("CompiledFunction", (Costly,), {})
    adversaries(Scale(named, 70), Scale(named, 30), every=every, steps=90 * every)
    found = told(recorder)
    assert found is not None
    [one] = [one for one in found if one["unused_share"] > 0]
    # Each pass goes through both; the judge's is as many times as frequent as `every` says.
    assert one["unused_share"] == pytest.approx(0.7 * every / (every + 1), rel=0.02)
    # A compiled node computes all it has, as soon as some of that is used.
    assert sum(one["mixed_share"] for one in found) == 0


def test_python_code_in_backward_may_have_effects(recorder: Recorder) -> None:
    start(recorder)
    adversaries(Scale(Costly, 70), Scale(Costly, 30))
    assert sum(one["unused_share"] for one in told(recorder) or []) < 0.01


def test_a_critic_that_the_actor_learns_from(recorder: Recorder) -> None:
    start(recorder)
    actor, critic = maker(), judge()
    of_actor, of_critic = sgd(actor), sgd(critic)
    for _ in range(STEPS):
        of_critic.zero_grad()
        critic(torch.randn(4, 8)).square().mean().backward()
        of_critic.step()
        of_actor.zero_grad()
        (-critic(actor(torch.randn(4, 8))).mean()).backward()
        of_actor.step()
        CLOCK.advance(1_000_000_000)
    found = told(recorder)
    assert found is not None
    [one] = found
    assert [model["class"] for model in one["models"]] == ["Judge"]


def test_one_function_that_begins_all_passes(recorder: Recorder) -> None:
    def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    start(recorder)
    of_maker, of_judge = sgd(its_maker := maker()), sgd(its_judge := judge())
    for _ in range(STEPS):
        update(of_judge, its_judge(its_maker(torch.randn(4, 8))).square().mean())
        update(of_maker, (1 - its_judge(its_maker(torch.randn(4, 8)))).square().mean())
        CLOCK.advance(1_000_000_000)
    found = told(recorder)
    assert found is not None
    assert len({one["site"] for one in found}) == 1
    callers = sorted(line_of(recorder, one["caller"]) for one in found)
    assert callers[1] == callers[0] + 1


def healthy() -> dict[str, Callable[[], None]]:
    def apart() -> None:
        adversaries(maker(), judge(), is_detached=True, is_apart=True)

    def set_back_at_the_top() -> None:
        """What the judge's pass gave to the maker is in the maker's step, right or wrong."""
        its_maker, its_judge = maker(), judge()
        optimizers = sgd(its_maker), sgd(its_judge)
        for _ in range(STEPS):
            for one in optimizers:
                one.zero_grad()
            its_judge(its_maker(torch.randn(4, 8))).mean().backward()
            for one in optimizers:
                one.step()
            CLOCK.advance(1_000_000_000)

    def accumulated() -> None:
        """One of them steps once in ten passes, with all that was added up."""
        its_maker, its_judge = maker(), judge()
        of_maker, of_judge = sgd(its_maker), sgd(its_judge)
        for step in range(2 * STEPS):
            its_judge(its_maker(torch.randn(4, 8))).mean().backward()
            of_judge.step()
            of_judge.zero_grad()
            if step % 10 == 9:
                of_maker.step()
                of_maker.zero_grad()
            CLOCK.advance(1_000_000_000)

    def of_one_optimizer() -> None:
        """Two passes of one optimizer; the first is for something that a library does with it."""
        model, unrelated = maker(), judge()
        optimizer, other = sgd(model), sgd(unrelated)
        for _ in range(STEPS):
            model(torch.randn(4, 8)).mean().backward()
            optimizer.zero_grad()
            model(torch.randn(4, 8)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            unrelated(torch.randn(4, 8)).mean().backward()
            other.step()
            CLOCK.advance(1_000_000_000)

    def used_now_and_then() -> None:
        """As where a scaler leaves out steps."""
        its_maker, its_judge = maker(), judge()
        of_maker, of_judge = sgd(its_maker), sgd(its_judge)
        for step in range(STEPS):
            its_judge(its_maker(torch.randn(4, 8))).mean().backward()
            of_judge.step()
            if step % 4 == 3:
                of_maker.step()
            of_judge.zero_grad()
            of_maker.zero_grad()
            CLOCK.advance(1_000_000_000)

    def updated_by_hand() -> None:
        """Where an old script writes to .data, no version of a parameter tells of it."""
        its_maker, its_judge = maker(), judge()
        of_maker, of_judge = sgd(its_maker), sgd(its_judge)
        for step in range(STEPS):
            its_judge(its_maker(torch.randn(4, 8))).mean().backward()
            of_judge.step()
            if step == 0:
                of_maker.step()
            for parameter in its_maker.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.01 * parameter.grad
            of_judge.zero_grad()
            of_maker.zero_grad()
            CLOCK.advance(1_000_000_000)

    def one_after_another() -> None:
        first, second = maker(), judge()
        for model in (first, second):
            optimizer = sgd(model)
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).mean().backward()
                optimizer.step()
                CLOCK.advance(1_000_000_000)

    def in_backward() -> None:
        """Each parameter's optimizer steps as soon as its gradient is there."""
        model = judge()
        optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

        def step(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(STEPS):
            model(torch.randn(4, 8)).mean().backward()
            CLOCK.advance(1_000_000_000)

    cases = (apart, set_back_at_the_top, accumulated, of_one_optimizer, used_now_and_then)
    more = (updated_by_hand, one_after_another, in_backward)
    return {case.__name__: case for case in (*cases, *more)}


@pytest.mark.parametrize("case", healthy())
def test_nothing_is_told_of(recorder: Recorder, case: str) -> None:
    start(recorder)
    healthy()[case]()
    assert not told(recorder)


def test_gradients_that_the_script_reads(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may log them, or keep some."""
    set_reading(monkeypatch, is_read=True)
    start(recorder)
    adversaries(maker(), judge())
    assert told(recorder) is None


def test_models_that_end_with_their_function_stay_named(recorder: Recorder) -> None:
    start(recorder)
    adversaries(maker(), judge(), steps=30)
    *_, last = notes(recorder)
    assert last["from_start"] is True
    assert {one["models"][0]["class"] for one in last[DISCARDED]} == {"Maker", "Judge"}


def test_whether_what_is_kept_goes_through_the_models_of_what_is_lost(recorder: Recorder) -> None:
    """Their output may be detached only where it does not."""
    start(recorder)
    adversaries(maker(), judge(), steps=30)
    *_, last = notes(recorder)
    through = {one["models"][0]["class"]: one["goes_through"] for one in last[DISCARDED]}
    assert through == {"Maker": False, "Judge": True}


class Critic(nn.Module):
    """Looks at more than what it is given by the actor, with most of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
        self.head = nn.Linear(16, 1, bias=False)

    def forward(self, action: torch.Tensor) -> torch.Tensor:
        seen = self.beside(torch.ones(4, 8))
        result: torch.Tensor = self.head(torch.cat([seen, action], 1))
        return result


def test_an_actor_learns_through_a_critic_of_which_most_lies_beside(recorder: Recorder) -> None:
    start(recorder)
    actor, critic = maker(), Critic()
    of_actor, of_critic = sgd(actor), sgd(critic)
    for _ in range(STEPS):
        of_critic.zero_grad()
        critic(actor(torch.randn(4, 8)).detach()).square().mean().backward()
        of_critic.step()
        of_actor.zero_grad()
        (-critic(actor(torch.randn(4, 8))).mean()).backward()
        of_actor.step()
        CLOCK.advance(1_000_000_000)
    *_, last = notes(recorder)
    [one] = last[DISCARDED]
    assert one["models"][0]["class"] == "Critic"
    assert one["goes_through"] is True


def test_it_is_taken_back_where_something_comes_of_them_later(recorder: Recorder) -> None:
    start(recorder)
    its_maker, its_judge = maker(), judge()
    of_maker, of_judge = sgd(its_maker), sgd(its_judge)
    of_maker.step()
    for step in range(STEPS):
        its_judge(its_maker(torch.randn(4, 8))).mean().backward()
        of_judge.step()
        if step > 25:
            of_maker.step()
        of_judge.zero_grad()
        of_maker.zero_grad()
        CLOCK.advance(1_000_000_000)
    found = [one[DISCARDED] for one in notes(recorder)]
    assert found[0] is not None
    assert found[-1] is None


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpointed_activations(recorder: Recorder, is_reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = maker()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = checkpoint(self.inner, x.requires_grad_(), use_reentrant=is_reentrant)
            assert isinstance(kept, torch.Tensor)
            return kept

    start(recorder)
    of_maker, of_judge = sgd(made := Checkpointed()), sgd(its_judge := judge())
    for _ in range(STEPS):
        of_judge.zero_grad()
        its_judge(made(torch.randn(4, 8))).mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        (1 - its_judge(made(torch.randn(4, 8)))).mean().backward()
        of_maker.step()
        CLOCK.advance(1_000_000_000)
    found = told(recorder) or []
    assert all(0 <= one["unused_share"] + one["mixed_share"] <= 1 for one in found)
    # What is inside a reentrant one is not seen from outside.
    assert is_reentrant or len(found) == 2


def test_a_forked_child_tells_of_what_it_trains_itself(recorder: Recorder) -> None:
    probe = start(recorder)
    adversaries(maker(), judge())
    before = len(notes(recorder))
    probe._begin_anew()
    assert recorder.session.backward_watches == ()
    adversaries(maker(), judge())
    assert notes(recorder)[before]["discarded_gradients"]


def test_looks_are_few_where_passes_are_short(recorder: Recorder) -> None:
    class Ticking(FakeClock):
        def __call__(self) -> int:
            self.now_ns += 1_000
            return self.now_ns

    start(recorder, Ticking())
    adversaries(maker(), judge(), steps=10 * STEPS)
    found = told(recorder)
    assert found is None or sum(one["looks"] for one in found) < 16


def test_nothing_goes_on_where_one_optimizer_has_it_all(recorder: Recorder) -> None:
    start(recorder)
    optimizer = sgd(model := maker())
    for _ in range(STEPS):
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
        assert recorder.session.backward_watches == ()


def test_a_graph_that_is_too_large_ends_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainprof.probes.discarded_gradients._MOST_NODES", 5)
    start(recorder)
    adversaries(maker(), judge())
    assert told(recorder) is None
    assert recorder.session.backward_watches == ()


def test_the_same_losses_and_nothing_left_on_the_graph(recorder: Recorder) -> None:
    def losses() -> list[float]:
        torch.manual_seed(3)
        return adversaries(maker(), judge())

    plain = losses()
    recorder.start(*default_probes(), now=CLOCK)
    assert losses() == plain


def test_torch_may_swap_what_was_looked_at(recorder: Recorder) -> None:
    """It swaps no tensor that somebody refers to, even weakly."""
    start(recorder)
    models = maker(), judge()
    adversaries(*models)
    for model in models:
        for parameter in model.parameters():
            parameter.grad = None
            torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().half()))
    assert told(recorder) is not None
