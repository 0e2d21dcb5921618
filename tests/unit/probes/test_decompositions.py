"""What tells that double precision is meant."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.session import Recorder

from trainprof.probes import decompositions
from trainprof.probes.backward import BackwardProbe
from trainprof.probes.decompositions import Decompositions
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.torch_settings import TorchSettingsProbe
from trainprof.record.schema import Topic

Loss = Callable[[torch.Tensor], torch.Tensor]
STEPS = 30


def told(recorder: Recorder) -> list[bool]:
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    name = "decomposes_in_float64"
    return [x[name] for x in recording.notes(Topic.ENVIRONMENT) if name in x]


def start(recorder: Recorder) -> None:
    recorder.start(ForwardProbe(), TorchSettingsProbe(), BackwardProbe(), OptimizerProbe())


def train(
    loss_of: Loss,
    kind: torch.dtype = torch.float64,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
) -> None:
    """Trains a matrix, which `loss_of` is given with its own square added to a diagonal."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 4, dtype=kind) / 4)
    made: Any = optimizer
    stepped = made([weight], lr=1e-3)
    for _ in range(STEPS):
        loss_of(weight @ weight.T + torch.eye(4, dtype=kind)).backward()
        stepped.step()


class ByHand(torch.autograd.Function):
    """The determinant's logarithm; its operators leave no nodes."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor) -> torch.Tensor:
        def factor() -> torch.Tensor:
            return torch.linalg.cholesky(matrix)

        ctx.save_for_backward(factor())
        return factor().diagonal().log().sum() * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (factor,) = ctx.saved_tensors
        return grad * torch.cholesky_inverse(factor)


class Doubled(torch.autograd.Function):
    """Without anything of the kind."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.sum() * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.expand(4, 4) * 2


class Whitening(torch.optim.SGD):
    """Goes by the eigenvectors of what it updates, without gradients."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                torch.linalg.eigh(one.grad @ one.grad.T)
        return super().step(closure)


def plain(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.exp().norm() + torch.linalg.vector_norm(matrix)


DECOMPOSED: dict[str, Loss] = {
    "cholesky": lambda matrix: torch.linalg.cholesky(matrix).sum(),
    "cholesky_solve": lambda matrix: torch.cholesky_solve(matrix, torch.eye(4).double()).sum(),
    "solve": lambda matrix: torch.linalg.solve(matrix, torch.ones(4).double()).sum(),
    "triangular": lambda matrix: torch.linalg.solve_triangular(
        matrix, torch.eye(4).double(), upper=True
    ).sum(),
    "eigh": lambda matrix: torch.linalg.eigvalsh(matrix).sum(),
    "svd": lambda matrix: torch.linalg.svdvals(matrix).sum(),
    "inv": lambda matrix: torch.linalg.inv(matrix).sum(),
    "lstsq": lambda matrix: torch.linalg.lstsq(matrix, torch.eye(4).double()).solution.sum(),
    "qr": lambda matrix: torch.linalg.qr(matrix)[1].sum(),
    "slogdet": lambda matrix: torch.linalg.slogdet(matrix)[1],
    "det": lambda matrix: torch.linalg.det(matrix),
    "lgamma": lambda matrix: (matrix.square() + 1).lgamma().sum(),
    "by hand": lambda matrix: ByHand.apply(matrix),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_a_decomposition_that_gradients_go_through(recorder: Recorder, name: str) -> None:
    start(recorder)
    train(DECOMPOSED[name])
    assert told(recorder) == [True]
    assert recorder.session.backward_watches == ()


def test_one_of_a_distribution_that_torch_has(recorder: Recorder) -> None:
    start(recorder)
    ones = torch.ones(4).double()
    normal = torch.distributions.MultivariateNormal
    train(lambda matrix: -normal(torch.zeros(4).double(), matrix).log_prob(ones))
    assert told(recorder) == [True]


def test_one_that_comes_only_now_and_then(recorder: Recorder) -> None:
    start(recorder)
    passes = itertools.count()

    def rarely(matrix: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(matrix) if next(passes) % 5 == 4 else plain(matrix)

    train(rarely)
    assert told(recorder) == [True]


def test_one_in_an_optimizer_of_the_scripts(recorder: Recorder) -> None:
    start(recorder)
    train(plain, optimizer=Whitening)
    assert told(recorder) == [True]


def test_a_library_whose_functions_ask_for_float64(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gpytorch", SimpleNamespace())  # type: ignore[arg-type]
    start(recorder)
    train(plain)
    assert told(recorder) == [True]


@pytest.mark.parametrize("loss_of", [plain, lambda matrix: Doubled.apply(matrix)])
def test_without_one_nothing_is_told_and_the_looks_end(recorder: Recorder, loss_of: Loss) -> None:
    torch.linalg.cholesky(torch.eye(4).double())  # ahead of training
    start(recorder)
    train(loss_of)
    assert told(recorder) == []
    assert recorder.session.backward_watches == ()


def test_of_a_model_in_single_precision_nothing_is_looked_at(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decompositions, "_begins", lambda *_: pytest.fail("was asked"))
    start(recorder)
    train(DECOMPOSED["cholesky"], torch.float32)
    assert told(recorder) == []


def test_a_torch_whose_graphs_cannot_be_looked_at(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(recorder)
    with monkeypatch.context() as patched:
        patched.delattr(torch._C, "DisableTorchFunction")
        update_once = torch.optim.SGD([torch.nn.Parameter(torch.ones(3).double())], lr=0.1)
        update_once.step()
    assert told(recorder) == []
    assert len(recorder.session.backward_watches) == 1  # for forwards that are computed again


def test_a_large_graph_is_not_gone_through(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompositions, "_MOST_NODES", 3)
    start(recorder)
    train(lambda matrix: (DECOMPOSED["cholesky"](matrix) + 1).exp().log().sum())
    assert told(recorder) == []


def test_a_fault_of_ours_ends_the_looking(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bool:
        raise ValueError("ours")

    monkeypatch.setattr(Decompositions, "_is_in", fails)
    start(recorder)
    train(plain)
    assert len(recorder.read().notes(Topic.PROBE_FAILED)) == 1
    assert recorder.session.backward_watches == ()
