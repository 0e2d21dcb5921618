"""Which gradients are told of that no optimizer uses, and which are not."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder, read_recordings, run_hooked
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.catalogue import default_probes
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.unused_gradients import UnusedGradientsProbe
from trainprof.record.schema import Topic

STEPS = 60
Loss = Callable[[torch.Tensor], torch.Tensor]
CLOCK = FakeClock()


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


@pytest.fixture(autouse=True)
def by_hand_is_told_by_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of these tests are the user's here."""
    monkeypatch.setattr(
        "trainprof.probes.unused_gradients.accumulates_by_hand", lambda is_user_file: False
    )


def network(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8))


def start(recorder: Recorder, now: Callable[[], int] | None = None) -> None:
    probes = [UnusedGradientsProbe(), ForwardProbe(), BackwardProbe(), OptimizerProbe()]
    recorder.start(*probes, now=now)


def told(recorder: Recorder) -> dict[str, Any] | None:
    """Returns what is told at the script's end, without damage to the probes."""
    for finish in recorder.session.at_end:
        finish()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "unused_gradients" in x]
    last: dict[str, Any] | None = notes[-1]["unused_gradients"] if notes else None
    return last


def train(
    loss_of: Loss,
    *trained: torch.Tensor,
    steps: int = STEPS,
    after: Callable[[], None] = lambda: None,
    passes: int = 1,
) -> list[float]:
    """Trains some tensors, and returns the losses; a step takes a second of the fake clock."""
    optimizer, losses = torch.optim.SGD(trained, lr=0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            loss = loss_of(torch.randn(4, 8))
            loss.backward()
        optimizer.step()
        after()
        CLOCK.advance(1_000_000_000)
        losses.append(loss.item())
    return losses


def distil(teacher: nn.Module, student: nn.Module) -> Loss:
    return lambda x: mse_loss(student(x), teacher(x))


def test_what_looks_take_is_told_in_all(recorder: Recorder) -> None:
    ticks = itertools.count(step=1_000)
    start(recorder, lambda: next(ticks) + CLOCK())
    model = network()
    train(lambda x: model(x).mean(), *model.parameters())
    told(recorder)
    notes = recorder.read().notes(Topic.ENVIRONMENT)
    [looked_ns] = [note["looked_ns"] for note in notes if "looked_ns" in note]
    # Twelve looks read the clock a few times each, ahead of a pass and behind it.
    assert 12 * 2 * 1_000 <= looked_ns <= 12 * 20 * 1_000


def test_a_teacher_that_is_not_frozen(recorder: Recorder) -> None:
    start(recorder, CLOCK)
    teacher, student = network(32), network()
    train(distil(teacher, student), *student.parameters())
    found = told(recorder)
    assert found is not None
    assert (found["looks"], found["tensors"], found["numbers"]) == (12, 4, 32 * 8 * 2 + 32 + 8)
    [model] = found["models"]
    assert (model["class"], model["of"], model["tensors"], model["parts"]) == (
        "Sequential",
        *(4, 4, [""]),
    )
    file, line, _ = recorder.read().texts[model["site"]][1].strip("[]").split(", ", 2)
    assert file.endswith('test_unused_gradients.py"')
    assert int(line) == inspect.getsourcelines(distil)[1] + 1


def test_a_backbone_of_which_the_head_is_trained(recorder: Recorder) -> None:
    start(recorder, CLOCK)
    model = nn.ModuleDict({"body": network(), "head": nn.Linear(8, 8)})

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = model["body"], model["head"]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))  # type: ignore[no-any-return]

    net = Net()
    train(lambda x: net(x).square().mean(), *net.head.parameters())
    found = told(recorder)
    assert found is not None
    [told_of] = found["models"]
    assert (told_of["of"], told_of["tensors"], told_of["parts"]) == (6, 4, ["body"])


@pytest.mark.parametrize(
    ("costs_ms", "shares"),
    [
        # Its own, the teacher's, and that of a layer between what is trained and the loss.
        ((30, 70, 0), (0.7, 0.0)),
        ((20, 0, 80), (0.0, 0.8)),
        ((10, 30, 60), (0.3, 0.6)),
    ],
)
def test_what_it_takes_of_a_pass(
    recorder: Recorder, costs_ms: tuple[int, int, int], shares: tuple[float, float]
) -> None:
    own, teacher, between = (nn.Parameter(torch.ones(())) for _ in range(3))
    own_ms, teacher_ms, between_ms = costs_ms

    start(recorder, CLOCK)
    # As torch.compile names its nodes: their Python code has no effects of its own.
    named = type("CompiledFunction", (Costly,), {})

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        student = named.apply(named.apply(x, own, own_ms), between, between_ms)
        return mse_loss(student, named.apply(x, teacher, teacher_ms))

    train(loss_of, own)
    found = told(recorder)
    assert found is not None
    assert (found["unused_share"], found["mixed_share"]) == pytest.approx(shares)
    assert found["models"] == []


def test_python_code_in_backward_may_have_effects(recorder: Recorder) -> None:
    start(recorder, CLOCK)
    own, other = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
    train(lambda x: mse_loss(x * own, Costly.apply(x, other, 50)), own)
    found = told(recorder)
    assert found is not None
    assert found["unused_share"] < 0.01


def averaged(teacher: nn.Module, student: nn.Module) -> Callable[[], None]:
    @torch.no_grad()
    def update() -> None:
        for ours, its in zip(teacher.parameters(), student.parameters(), strict=True):
            ours.lerp_(its, 0.1)

    return update


def by_hand(model: nn.Module, *, is_old: bool) -> Callable[[], None]:
    def update() -> None:
        for parameter in model.parameters():
            if parameter.grad is None:
                continue
            if is_old:
                parameter.data -= 0.01 * parameter.grad
            else:
                with torch.no_grad():
                    parameter -= 0.01 * parameter.grad
            parameter.grad = None

    return update


class Sharded(torch.Tensor):
    """As a library's that keeps parameters in its own way."""


def healthy() -> dict[str, Callable[[], None]]:
    def plain() -> None:
        model = network()
        train(lambda x: model(x).square().mean(), *model.parameters())

    def without_gradients() -> None:
        teacher, student = network(), network()

        def loss_of(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = teacher(x)
            return mse_loss(student(x), target)

        train(loss_of, *student.parameters())

    def frozen() -> None:
        teacher, student = network().requires_grad_(False), network()
        train(distil(teacher, student), *student.parameters())

    def moving_average_that_is_cleared() -> None:
        """Whoever sets gradients back may use them."""
        teacher, student = network(), network()
        average = averaged(teacher, student)

        def after() -> None:
            average()
            teacher.zero_grad(set_to_none=False)

        train(distil(teacher, student), *student.parameters(), after=after)

    def updated_by_hand() -> None:
        for is_old in (False, True):
            other, model = network(), network()
            after = by_hand(other, is_old=is_old)
            train(distil(other, model), *model.parameters(), after=after)

    def two_optimizers() -> None:
        maker, judge = network(), network()
        optimizers = [torch.optim.Adam(one.parameters(), lr=0.01) for one in (maker, judge)]
        for step in range(STEPS):
            judge(maker(torch.randn(4, 8))).mean().backward()
            optimizers[0].step()
            if step % 20 == 19:
                optimizers[1].step()
            CLOCK.advance(1_000_000_000)

    def joined_later() -> None:
        body, head = network(), nn.Linear(8, 8)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
        for step in range(STEPS):
            head(body(torch.randn(4, 8))).mean().backward()
            optimizer.step()
            if step == STEPS // 2:
                optimizer.add_param_group({"params": list(body.parameters())})
            CLOCK.advance(1_000_000_000)

    def asked_for() -> None:
        image, model = torch.zeros(8, requires_grad=True), network()

        def loss_of(x: torch.Tensor) -> torch.Tensor:
            [slope] = torch.autograd.grad(model(image).sum(), image, create_graph=True)
            return model(x).mean() + slope.square().sum() + (image * x).sum()

        train(loss_of, *model.parameters())

    def of_a_library() -> None:
        model, other = network(), network()
        kept = [nn.Parameter(torch.ones(2).as_subclass(Sharded)) for _ in range(2)]
        train(distil(other, model), *model.parameters(), *kept)

    def of_copies() -> None:
        for _ in range(STEPS):
            copied, model = copy.deepcopy(network()), network()
            train(distil(copied, model), *model.parameters(), steps=1)

    cases = (plain, without_gradients, frozen, updated_by_hand, two_optimizers)
    more = (moving_average_that_is_cleared, joined_later, asked_for, of_a_library, of_copies)
    return {case.__name__: case for case in (*cases, *more)}


@pytest.mark.parametrize("case", healthy())
def test_nothing_is_told_of(recorder: Recorder, case: str) -> None:
    start(recorder, CLOCK)
    healthy()[case]()
    assert told(recorder) is None


def test_a_moving_average_of_others_that_is_not_frozen(recorder: Recorder) -> None:
    start(recorder, CLOCK)
    teacher, student = network(32), network(32)
    after = averaged(teacher, student)
    train(distil(teacher, student), *student.parameters(), after=after, passes=2, steps=100)
    found = told(recorder)
    assert found is not None
    assert (found["tensors"], found["from_start"]) == (4, True)


@pytest.mark.parametrize("is_read", [True, False])
def test_gradients_that_are_set_back(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """Something reads them before, as Fisher information does, or `model.zero_grad()` means all."""
    monkeypatch.setattr(
        "trainprof.probes.unused_gradients.reads_gradients", lambda is_user_file: is_read
    )
    start(recorder, CLOCK)
    trunk, head = network(32), nn.Linear(8, 1)
    train(lambda x: head(trunk(x)).mean(), *head.parameters(), after=trunk.zero_grad)
    found = told(recorder)
    assert (found is None) is is_read


def test_gradients_that_add_up_until_the_script_reads_them(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pruning does, by how important a parameter was since the last time."""
    monkeypatch.setattr(
        "trainprof.probes.unused_gradients.accumulates_by_hand", lambda is_user_file: True
    )
    start(recorder, CLOCK)
    trunk, head = network(32), nn.Linear(8, 1)
    train(lambda x: head(trunk(x)).mean(), *head.parameters())
    assert told(recorder) is None


def test_beside_what_is_updated_by_hand_the_rest_is_told(recorder: Recorder) -> None:
    start(recorder, CLOCK)
    other, judge, student = network(), network(16), network()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return mse_loss(student(x), other(x)) + judge(student(x)).mean()

    after = by_hand(other, is_old=False)
    train(loss_of, *student.parameters(), steps=150, after=after)
    found = told(recorder)
    assert found is not None
    assert found["numbers"] == sum(parameter.numel() for parameter in judge.parameters())
    assert not found["from_start"]


def test_a_model_that_ends_with_its_function_stays_told(recorder: Recorder) -> None:
    start(recorder, CLOCK)

    def main() -> None:
        teacher, student = network(), network()
        train(distil(teacher, student), *student.parameters(), steps=16)

    main()
    found = told(recorder)
    assert found is not None
    assert found["tensors"] == 4


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpointed_activations(recorder: Recorder, is_reentrant: bool) -> None:
    start(recorder, CLOCK)
    teacher, student = network(), network()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        kept = checkpoint(student, x, use_reentrant=is_reentrant)
        return mse_loss(kept, checkpoint(teacher, x, use_reentrant=is_reentrant))

    train(loss_of, *student.parameters())
    found = told(recorder)
    assert found is not None
    assert found["tensors"] == 4
    assert 0 <= found["unused_share"] + found["mixed_share"] <= 1


FORKS = """
import os, torch
from torch import nn

teacher, student = nn.Linear(8, 8), nn.Linear(8, 8)
optimizer = torch.optim.SGD(student.parameters(), lr=0.01)

def train(steps):
    for _ in range(steps):
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        (student(x) - teacher(x)).square().mean().backward()
        optimizer.step()

train(2)
child = os.fork()
if child == 0:
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    train(3_000)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_tells_of_what_it_trains_itself(tmp_path: Path) -> None:
    """In a process of its own: autograd's threads, where there are any, do not survive a fork."""
    script = tmp_path / "script.py"
    script.write_text(FORKS)
    done = run_hooked([script], tmp_path, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    own, forked = read_recordings(tmp_path / "run" / "events")
    assert own.header["pid"] != forked.header["pid"]
    told = [
        [note for note in log.notes(Topic.ENVIRONMENT) if note.get("unused_gradients")]
        for log in (own, forked)
    ]
    assert told[0] == []
    assert told[1][-1]["unused_gradients"]["tensors"] == 2


def test_looks_are_few_where_passes_are_short(recorder: Recorder) -> None:
    class Ticking(FakeClock):
        def __call__(self) -> int:
            self.now_ns += 1_000
            return self.now_ns

    start(recorder, Ticking())
    teacher, student = network(), network()
    train(distil(teacher, student), *student.parameters(), steps=STEPS)
    found = told(recorder)
    assert found is None or found["looks"] < 12


def test_a_graph_that_is_too_large_ends_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainprof.probes.unused_gradients._MOST_NODES", 5)
    start(recorder, CLOCK)
    teacher, student = network(), network()
    train(distil(teacher, student), *student.parameters())
    assert told(recorder) is None
    assert recorder.session.backward_watches == ()


def test_the_same_losses_and_nothing_left_on_the_graph(recorder: Recorder) -> None:
    def losses() -> list[float]:
        torch.manual_seed(3)
        teacher, student = network(), network()
        return train(distil(teacher, student), *student.parameters(), passes=2)

    plain = losses()
    recorder.start(*default_probes(), now=CLOCK)
    assert losses() == plain
    model = network()
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    optimizer.step()
    for _ in range(8):
        loss = model(torch.randn(4, 8)).mean()
        loss.backward(retain_graph=True)
        before = loss.item()
        CLOCK.advance(1_000_000_000)
        loss.backward()
        assert loss.item() == before


def test_how_many_operators_a_backward_has_is_told_once(recorder: Recorder) -> None:
    start(recorder)
    model = network()
    train(lambda x: mse_loss(model(x), x), *model.parameters())
    nodes = [
        x["backward_nodes"]
        for x in recorder.read().notes(Topic.ENVIRONMENT)
        if "backward_nodes" in x
    ]
    assert nodes == [6]  # two layers, their weights turned round, what lies between, and the loss


def test_torch_may_swap_what_was_looked_at(recorder: Recorder) -> None:
    """It swaps no tensor that somebody refers to, even weakly."""
    start(recorder, CLOCK)
    teacher, student = network(), network()
    train(distil(teacher, student), *student.parameters())
    for parameter in (*teacher.parameters(), *student.parameters()):
        parameter.grad = None
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().half()))
    found = told(recorder)
    assert found is not None
    assert found["tensors"] == len(list(teacher.parameters()))


def test_what_is_in_no_module_is_told_by_the_passes_that_reach_it(recorder: Recorder) -> None:
    start(recorder, CLOCK)
    student, scale = network(), nn.Parameter(torch.ones(8))
    train(lambda x: (student(x) * scale).square().mean(), *student.parameters())
    found = told(recorder)
    assert found is not None
    assert (found["tensors"], found["models"]) == (1, [])
