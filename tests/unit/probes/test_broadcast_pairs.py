"""Which lines are told to compare vectors by one large tensor, and which are not."""

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
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.record.schema import Topic

LONG, CODES = 16, 64
# Steps are far apart, so that looks cost little; all that is timed takes equally long.
CLOCK = FakeClock()


def clock() -> int:
    CLOCK.advance(1_000)
    return CLOCK()


def start(recorder: Recorder) -> None:
    probes = ForwardProbe(), ConstantsProbe(), OptimizerProbe(), CompilationProbe()
    recorder.start(*probes, now=clock)


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(constants, "_has_compiled", lambda: False)


# What is given first is learnt from.
Compares = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]
Loss = Callable[[torch.Tensor], torch.Tensor]


class Codebook(nn.Module):
    def __init__(self, compares: Compares, long: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, long))
        self.compares = compares

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self.compares(x, self.codes)


def mean_square(near: torch.Tensor) -> torch.Tensor:
    return near.square().mean()


def train(
    compares: Compares, *, batch: int = 128, long: int = LONG, loss_of: Loss = mean_square
) -> list[float]:
    torch.manual_seed(3)
    model = Codebook(compares, long)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(40):
        given = model(torch.randn(batch, long))
        loss = loss_of(given[0] if isinstance(given, tuple) else given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        CLOCK.advance(10_000_000_000)
    return losses


def told(recorder: Recorder, compares: Compares, **how: Any) -> dict[int, dict[str, Any]]:
    """Returns what is told of the lines of a function, by their number in it."""
    start(recorder)
    train(compares, **how)
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if "broadcast_pairs" in x]
    lines = notes[-1]["broadcast_pairs"]["lines"] if notes else []
    found = {}
    for one in lines:
        file, line, _ = json.loads(recording.texts[one["site"]][1])
        assert file == __file__
        found[line - compares.__code__.co_firstlineno] = one
    return found


def squared_differences(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return ((x.unsqueeze(1) - codes) ** 2).sum(-1)


def in_several_lines(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    many, few = len(x), len(codes)
    x = x.unsqueeze(1).expand(many, few, -1)
    apart = x - codes.unsqueeze(0).expand(many, few, -1)
    return torch.pow(apart, 2).mean(2)


def multiplied_by_itself(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = codes[None] - x[:, None]
    return torch.sqrt(torch.sum(apart * apart, dim=[-1]) + 1e-3)


def by_norm(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return torch.norm(x[:, None] - codes[None], dim=-1)


def by_linalg(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x[:, None] - codes[None], dim=2)


def by_torchs_distance(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return functional.pairwise_distance(x[:, None], codes[None])


def by_its_shape(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = x[:, None] - codes[None]
    assert apart.size(-1) == x.shape[-1]
    return apart.pow(2).sum(apart.dim() - 1) if len(apart) else x


def products(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(1) * codes).sum(dim=-1)


def of_heads(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    x, codes = x.view(len(x), 2, -1).transpose(0, 1), codes.view(len(codes), 2, -1).transpose(0, 1)
    return (x[:, :, None] * codes[:, None]).sum(-1)


def cosines(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return functional.cosine_similarity(x[:, None], codes[None], dim=-1)


FOUND: dict[Compares, tuple[int, str]] = {
    squared_differences: (1, "distance"),
    in_several_lines: (3, "distance"),
    multiplied_by_itself: (1, "distance"),
    by_norm: (1, "distance"),
    by_linalg: (1, "distance"),
    by_torchs_distance: (1, "distance"),
    by_its_shape: (1, "distance"),
    products: (1, "product"),
    of_heads: (2, "product"),
    cosines: (1, "cosine"),
}


@pytest.mark.parametrize("compares", FOUND, ids=lambda one: one.__name__)
def test_all_pairs_in_one_tensor_are_told_by_the_line(
    recorder: Recorder, compares: Compares
) -> None:
    line, what = FOUND[compares]
    found = told(recorder, compares)
    assert found.keys() == {line}
    one = found[line]
    assert one["what"] == what
    assert {one["first"], one["second"]} == {128, CODES}
    assert one["long"] == (LONG // 2 if compares is of_heads else LONG)
    assert one["numbers"] == 128 * CODES * LONG  # of all heads
    # At least a node for each function; cosines are several of autograd's.
    assert one["times"] >= (4 if what == "cosine" else 1)
    assert 0 < one["share"] <= 1


@pytest.mark.parametrize("compares", FOUND, ids=lambda one: one.__name__)
def test_training_goes_as_without_us(recorder: Recorder, compares: Compares) -> None:
    plain = train(compares)
    start(recorder)
    assert train(compares) == plain


def by_cdist(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return torch.cdist(x, codes)


def by_matrix_product(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return functional.normalize(x, dim=1) @ functional.normalize(codes, dim=1).T


def scaled(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """One of both is as large as what comes of it."""
    return (x.unsqueeze(1).repeat(1, CODES, 1) * codes).sum(-1)


def of_pairs_that_belong_together(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x * codes.repeat(2, 1)).sum(-1)


def added(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """As for additive attention: no product gives that."""
    return torch.tanh(x[:, None] + codes[None]).sum(-1)


def weighed(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x[:, None] - codes[None]).abs().sum(-1)


def to_other_powers(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return ((x[:, None] - codes[None]) ** 4).sum(-1)


def summed_over_the_others(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return ((x[:, None] - codes[None]) ** 2).sum(1)


def kept_whole(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return x[:, None] * codes[None]


def by_another_norm(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return torch.norm(x[:, None] - codes[None], p=1, dim=-1)


def weighed_in_place(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = x[:, None] - codes[None]
    apart *= x[:, :1, None]
    return (apart**2).sum(-1)


def of_unlike_layouts(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Sparse and nested tensors, and those that are kept conjugated or quantized."""
    sparse = (x.detach() > 0).float().to_sparse()
    nested = torch.nested.nested_tensor([codes.detach(), codes.detach()[:8]])
    turned = torch.complex(x, x).conj()
    few = torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8)
    total = (sparse * sparse).to_dense().sum() + sum(one.sum() for one in (nested * 2).unbind())
    return x @ codes.T + (turned * turned).sum().real + few.dequantize().sum() * 0 + total * 0


def used_with_weights(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """As graph networks and Stein's method do: the differences are summed up once more."""
    apart = x[:, None] - codes[None]
    squared = apart.pow(2).sum(-1, keepdim=True)
    return (apart * torch.exp(-squared / LONG)).mean(1)


def used_with_others(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = x[:, None] - codes[None]
    squared = apart.pow(2).sum(-1, keepdim=True)
    return torch.cat([apart, squared], -1).tanh().sum(-1)


def used_by_a_layer_too(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    both = x[:, None] * codes[None]
    return both.sum(-1) + functional.linear(both, codes[:4]).relu().sum(-1)


def used_as_a_view(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = x[:, None] - codes[None]
    return apart.norm(dim=-1) + apart[..., 0]


def used_by_name(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = x[:, None] - codes[None]
    return apart.norm(dim=-1) + torch.abs(input=apart).amax(-1)


def squares_used_too(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    squares = (x[:, None] - codes[None]) ** 2
    return squares.sum(-1) + squares.amax(-1)


def summed_twice(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = x[:, None] - codes[None]
    return apart.norm(dim=-1) + torch.exp(-(apart**2).sum(-1))


def used_by_a_mapped_function(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = x[:, None] - codes[None]
    return apart.norm(dim=-1) + torch.vmap(torch.abs)(apart).amax(-1)


def given_out(x: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    apart = x[:, None] - codes[None]
    return apart.norm(dim=-1), apart


def by_torchs_distance_of_another_norm(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return functional.pairwise_distance(x[:, None], codes[None], p=1)


def by_torchs_distance_of_a_third(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return torch.pairwise_distance(x[:, None], codes[None], 3.0)


def of_whole_numbers(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    apart = (x * 4).long()[:, None] - (codes * 4).long()
    return apart.pow(2).sum(-1) * codes[:, 0]


def of_short_numbers(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x.bfloat16()[:, None] - codes.bfloat16()).pow(2).sum(-1)


def of_unlike_numbers(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x.double()[:, None] * codes).sum(-1)


def summed_in_others(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x[:, None] * codes).sum(-1, dtype=torch.float64)


def under_autocast(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x[:, None] * codes).sum(-1)


def summed_under_autocast(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    both = x[:, None] * codes
    with torch.autocast("cpu", torch.bfloat16):
        return both.sum(-1)


def spread_for_nothing(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Along what is new, neither has numbers of its own."""
    x = x.view(-1, 16, LONG).expand(64, -1, -1, -1)
    return (x * codes[0].expand_as(x)).sum(-1)


NOT_FOUND = (
    weighed_in_place,
    of_unlike_layouts,
    by_cdist,
    by_matrix_product,
    scaled,
    of_pairs_that_belong_together,
    added,
    weighed,
    to_other_powers,
    summed_over_the_others,
    kept_whole,
    by_another_norm,
    used_with_weights,
    used_with_others,
    used_by_a_layer_too,
    used_as_a_view,
    used_by_name,
    squares_used_too,
    summed_twice,
    used_by_a_mapped_function,
    given_out,
    by_torchs_distance_of_another_norm,
    by_torchs_distance_of_a_third,
    of_whole_numbers,
    of_short_numbers,
    of_unlike_numbers,
    summed_in_others,
    under_autocast,
    summed_under_autocast,
    spread_for_nothing,
)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.parametrize("compares", NOT_FOUND, ids=lambda one: one.__name__)
def test_what_no_matrix_product_gives_is_not_told(recorder: Recorder, compares: Compares) -> None:
    assert told(recorder, compares) == {}


@pytest.mark.parametrize("how", [{"long": 3}, {"batch": 7}, {"batch": 16, "long": 8}])
def test_what_is_small_is_not_told(recorder: Recorder, how: dict[str, int]) -> None:
    assert told(recorder, squared_differences, **how) == {}


def few(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x.view(-1, 16, 1, LONG) - codes[:25]).pow(2).sum(-1)


def one_more(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x.view(-1, 16, 1, LONG) - codes[:26]).pow(2).sum(-1)


def products_of_few(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x.view(-1, 16, 1, LONG) * codes[:25]).sum(-1)


@pytest.mark.parametrize(("compares", "is_told"), [(few, 0), (one_more, 1), (products_of_few, 1)])
def test_of_few_vectors_a_side_cdist_computes_no_product(
    recorder: Recorder, compares: Compares, is_told: int
) -> None:
    found = told(recorder, compares, batch=512)
    assert len(found) == is_told
    for one in found.values():
        assert (one["first"], one["second"]) == (512, one["numbers"] // 512 // LONG)


def test_what_another_module_takes_too_is_not_told(recorder: Recorder) -> None:
    """Such as one for a loss."""
    aside = []

    def by_norm(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        aside[:] = [x[:, None] - codes[None]]
        return aside[0].norm(dim=-1)

    def loss_of(near: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = nn.Softplus()(aside[0]).mean() + near.mean()
        return loss

    assert told(recorder, by_norm, loss_of=loss_of) == {}


@pytest.mark.parametrize("takes", ["by_name", "in_order"])
def test_backward_of_what_came_before_is_not_counted(recorder: Recorder, takes: str) -> None:
    def compares(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            codes = codes.tanh()
        if takes == "by_name":
            apart = torch.sub(x[:, None], other=codes[None])
        else:
            apart = torch.sub(x[:, None], codes[None])
        return apart.pow(2).sum(-1)

    [one] = told(recorder, compares).values()
    # As many nodes as functions, each as long.
    assert one["times"] == 1
