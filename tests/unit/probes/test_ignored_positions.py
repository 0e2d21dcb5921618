"""Which losses are told to ignore targets for which logits are made, and which are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.nn import functional

from trainprof.probes import constants
from trainprof.probes.compilation import CompilationProbe
from trainprof.probes.constants import ConstantsProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.ignored_positions import IgnoredPositions
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.record.schema import Topic

ROWS, LENGTH, WIDTH, WORDS = 8, 16, 12, 50
POSITIONS = ROWS * LENGTH
# Steps are far apart, so that looks cost little; all that is timed takes equally long.
CLOCK = FakeClock()


def clock() -> int:
    CLOCK.advance(1_000)
    return CLOCK()


def probes() -> tuple[Any, ...]:
    return ForwardProbe(), ConstantsProbe(), OptimizerProbe(), CompilationProbe()


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(constants, "_has_compiled", lambda: False)


Ends = Callable[[nn.Linear, torch.Tensor, torch.Tensor], torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Words(nn.Module):
    def __init__(self, ends: Ends) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.ends = ends

    def forward(self, seen: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.ends(self.head, self.inner(seen).tanh(), targets)


def targets_of(ignored: int, ignore_index: int = -100) -> torch.Tensor:
    targets = torch.randint(WORDS, (POSITIONS,))
    targets[torch.randperm(POSITIONS)[:ignored]] = ignore_index
    return targets.view(ROWS, LENGTH)


def train(
    ends: Ends, loss: Loss | None = None, *, ignored: int = 96, ignore_index: int = -100
) -> list[float]:
    torch.manual_seed(3)
    model = Words(ends)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        targets = targets_of(ignored, ignore_index)
        given = model(torch.randn(ROWS, LENGTH, WIDTH), targets)
        found = given if loss is None else loss(given, targets)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(found.item())
        CLOCK.advance(10_000_000_000)
    return losses


def told(recorder: Recorder, ends: Ends, loss: Loss | None = None, **how: Any) -> dict[str, Any]:
    """Returns what is told of the losses, by the name of the function that they are in."""
    recorder.start(*probes(), now=clock)
    train(ends, loss, **how)
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "ignored_positions" in x]
    lines = notes[-1]["ignored_positions"]["lines"] if notes else []
    found = {}
    for one in lines:
        file, _, function = json.loads(recording.texts[one["site"]][1])
        assert file == __file__
        found[function] = one
    return found


def all_logits(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return head(hidden)  # type: ignore[no-any-return]


def in_rows(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head(hidden).view(-1, WORDS), targets.view(-1))


def words_second(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head(hidden).transpose(1, 2), targets)


def next_word(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = head(hidden)[:, :-1].reshape(-1, WORDS)
    return functional.cross_entropy(logits, targets[:, 1:].reshape(-1), label_smoothing=0.1)


def tied(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = 30 * torch.tanh(hidden @ head.weight.T / 30)
    return functional.nll_loss(logits.log_softmax(-1).flatten(0, 1), targets.flatten())


def outside(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


CRITERION = nn.CrossEntropyLoss()


def by_a_module(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return CRITERION(logits.flatten(0, 1), targets.flatten())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("ends", "loss"),
    [
        (in_rows, None),
        (words_second, None),
        (next_word, None),
        (tied, None),
        (all_logits, outside),
        (all_logits, by_a_module),
    ],
)
def test_what_a_loss_ignores_is_told_by_its_line(
    recorder: Recorder, ends: Ends, loss: Loss | None
) -> None:
    [(function, one)] = told(recorder, ends, loss).items()
    assert function == (loss or ends).__name__
    positions = POSITIONS - (ROWS if ends is next_word else 0)
    assert (one["positions"], one["classes"]) == (positions, WORDS)
    assert one["ignored"] == pytest.approx(0.75, abs=0.03)
    # By a clock by which all takes equally long: the loss, its nodes, the product's two ways.
    assert 0 < one["times"] < 10


def test_another_index_is_ignored_where_the_loss_says_so(recorder: Recorder) -> None:
    def padded(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1), ignore_index=0)

    [one] = told(recorder, all_logits, padded, ignored=64, ignore_index=0).values()
    # Some others are 0 by chance.
    assert one["ignored"] == pytest.approx(0.5 + 0.5 / WORDS, abs=0.02)


def chosen(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    known = targets != -100
    return functional.cross_entropy(head(hidden[known]), targets[known])


def chosen_behind(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    known = targets != -100
    return functional.cross_entropy(head(hidden)[known], targets[known])


def mean_of_row(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head(hidden).mean(1).repeat(LENGTH, 1), targets.flatten())


def each_by_itself(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = head(hidden).flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten(), reduction="none").mean()


def convolved(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = functional.conv1d(hidden.transpose(1, 2), head.weight[:, :, None])
    return functional.cross_entropy(logits, targets)


@pytest.mark.parametrize("ends", [chosen, chosen_behind, mean_of_row, each_by_itself, convolved])
def test_what_ignores_nothing_or_meets_others_is_not_told(recorder: Recorder, ends: Ends) -> None:
    assert told(recorder, ends) == {}


def both_of_them(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    others = torch.where(targets == -100, 3, -100)
    return outside(logits, targets) + 0.1 * outside_too(logits, others)


def outside_too(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.transpose(1, 2), targets)


def mixed_up(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    others = targets.roll(1, 0)
    return outside(logits, targets) + outside(logits, others)


def distilled(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    teacher = torch.zeros_like(logits).log_softmax(-1)
    towards = functional.kl_div(
        logits.log_softmax(-1), teacher, reduction="batchmean", log_target=True
    )
    return outside(logits, targets) + towards


def kept_small(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outside(logits, targets) + 1e-4 * logits.logsumexp(-1).square().mean()


def gone_back_twice(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = outside(logits, targets)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    return loss


def never_gone_back(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    outside(logits, targets)
    return logits.square().mean()


@pytest.mark.parametrize(
    "loss", [both_of_them, mixed_up, distilled, kept_small, gone_back_twice, never_gone_back]
)
def test_logits_that_serve_something_else_are_not_told(recorder: Recorder, loss: Loss) -> None:
    assert told(recorder, all_logits, loss) == {}


def inside_and_mixed_up(
    head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    logits = head(hidden)
    return mixed_up(logits, targets)


OVER_POSITIONS = nn.Linear(LENGTH, LENGTH, bias=False)
ADJACENCY = torch.full((POSITIONS, POSITIONS), 1 / POSITIONS)


def along_positions(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = OVER_POSITIONS(head(hidden).transpose(1, 2))
    return functional.cross_entropy(logits, targets)


def of_a_graph(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = ADJACENCY @ head(hidden).flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten())


def of_a_first_layer(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = ADJACENCY @ (torch.ones(POSITIONS, WIDTH) @ head.weight.T)
    return functional.cross_entropy(logits, targets.flatten())


@pytest.mark.parametrize(
    "ends", [inside_and_mixed_up, along_positions, of_a_graph, of_a_first_layer]
)
def test_products_of_which_no_row_is_one_position_are_not_told(
    recorder: Recorder, ends: Ends
) -> None:
    assert told(recorder, ends) == {}


def test_one_step_that_needs_the_others_is_enough(recorder: Recorder) -> None:
    steps = iter(range(40))  # the first look is at the 13th

    def at_first(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = outside(logits, targets)
        return loss + logits.square().mean() if next(steps) < 14 else loss

    assert told(recorder, all_logits, at_first) == {}


def test_what_is_noted_of_it_besides_needs_nothing(recorder: Recorder) -> None:
    def with_accuracy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    assert [*told(recorder, all_logits, with_accuracy)] == ["with_accuracy"]


def test_a_gradient_that_cannot_be_looked_at_is_not_told(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> bool:
        raise RuntimeError("ours")

    monkeypatch.setattr(IgnoredPositions, "_has_more_rows", fails)
    assert told(recorder, all_logits, outside) == {}


def test_a_loss_that_looks_at_all_is_not_told(recorder: Recorder) -> None:
    assert told(recorder, in_rows, ignored=0) == {}


def test_forwards_without_gradients_are_part_of_what_forwards_take(recorder: Recorder) -> None:
    """A teacher's, say: what is told is a share of all of them."""

    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            CLOCK.advance(10_000_000)
            return super().forward(x)

    teacher = Slow(WIDTH, WIDTH)

    def beside_a_teacher(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher(torch.randn(1, WIDTH))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    [one] = told(recorder, all_logits, beside_a_teacher).values()
    assert one["times"] < 0.01


def test_losses_of_single_samples_under_vmap_are_left_alone(recorder: Recorder) -> None:
    def each(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, targets)

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.vmap(each)(logits, targets).mean()

    assert told(recorder, all_logits, loss) == {}


def test_losses_stay_the_same_to_the_bit(same_with_us: Callable[..., Any]) -> None:
    every = (in_rows, None), (all_logits, outside), (next_word, None), (all_logits, distilled)
    for ends, loss in every:

        def losses(ends: Ends = ends, loss: Loss | None = loss) -> Any:
            return train(ends, loss), torch.rand(1).item()

        assert same_with_us(losses, *probes())[0] == "returned"
