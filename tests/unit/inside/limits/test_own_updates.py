"""How a limit ends scripts that update their parameters themselves, and leaves others alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder, read_recordings, run_hooked
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from trainprof.inside.catalogue import default_probes
from trainprof.inside.limits.limit import STEPS_AHEAD, RunLimitReached
from trainprof.record.schema import Kind

SECOND = 10**9


def weights() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def by_backward(w: torch.Tensor) -> None:
    (w**2).sum().backward()
    assert w.grad is not None
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None


def by_grad(w: torch.Tensor) -> None:
    (gradient,) = torch.autograd.grad((w**2).sum(), w)
    w.data.sub_(0.1 * gradient)


def with_penalty(w: torch.Tensor) -> None:
    x = weights()
    (slope,) = torch.autograd.grad((w * x**2).sum(), x, create_graph=True)
    (slope**2).sum().backward()
    w.data.sub_(0.1 * w.grad)  # type: ignore[operator]


def recomputed(w: torch.Tensor) -> None:
    checkpoint(lambda x: x**2, w, use_reentrant=True).sum().backward()
    w.data.sub_(0.1 * w.grad)  # type: ignore[operator]


def never_final(w: torch.Tensor) -> None:
    """Each pass may be differentiated, and none is."""
    (gradient,) = torch.autograd.grad((w**2).sum(), w, create_graph=True)
    w.data.sub_(0.1 * gradient.detach())


def trained(
    update: Callable[[torch.Tensor], None], *, batches: int = 9, has_loader: bool = True
) -> int:
    """Returns how many updates were made until the limit, or all."""
    w, done = weights(), 0
    loader: Any = DataLoader(list(range(batches))) if has_loader else range(batches)
    try:
        for _ in loader:
            update(w)
            done += 1
    except RunLimitReached:
        return done
    return done


@pytest.mark.parametrize("update", [by_backward, by_grad, with_penalty, recomputed, never_final])
@pytest.mark.parametrize("has_loader", [True, False])
def test_updates_that_no_optimizer_makes_are_counted(
    recorder: Recorder, update: Callable[[torch.Tensor], None], has_loader: bool
) -> None:
    recorder.start(*default_probes(), options={"max_steps": 3})
    assert trained(update, has_loader=has_loader) == 3
    assert [event.value for event in recorder.read().of(Kind.LIMIT)][:1] == [1]


FUNCTIONAL = """
import torch
w = torch.ones(2)

def loss(w, x):
    return (w * x).sum() ** 2

def squared_slope(w, x):
    return torch.func.vmap(torch.func.grad(loss, 1), (None, 0))(w, x).pow(2).sum()

done = 0
try:
    for step in range(50):
        try:
            w = w - 1e-4 * torch.func.grad(squared_slope)(w, torch.ones(4, 2))
        except Exception:
            print("swallowed")
        done += 1
finally:
    print(done, "finally")
print("never")
"""


def test_torch_s_own_functional_derivatives(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FUNCTIONAL)
    done = run_hooked(["script.py"], tmp_path, tmp_path / "run", options={"max_steps": 5})
    assert (done.returncode, done.stdout) == (0, "5 finally\n"), done.stderr
    [main] = read_recordings(tmp_path / "run" / "events")[:1]
    assert len(main.of(Kind.BACKWARD)) == 2 * 5 + 1  # the last one's inner derivative


@pytest.mark.parametrize("backwards", [1, 4])
def test_once_there_is_an_optimizer_its_steps_alone_count(
    recorder: Recorder, backwards: int
) -> None:
    """Accumulated gradients: many passes for an update, also before the first."""
    recorder.start(*default_probes(), options={"max_steps": 3})
    w = weights()
    optimizer = torch.optim.SGD([w], lr=0.1)
    assert recorder.session.on_backward.watchers == ()

    def update(w: torch.Tensor) -> None:
        for _ in range(backwards):
            (w**2).sum().backward()
        optimizer.step()

    assert trained(update) == 3


def test_passes_before_an_optimizer_is_built_are_forgotten(recorder: Recorder) -> None:
    recorder.start(*default_probes(), options={"max_steps": 3})
    assert trained(by_backward, batches=2) == 2
    both = [torch.optim.SGD([weights()], lr=0.1) for _ in range(2)]  # of a GAN

    def update(w: torch.Tensor) -> None:
        for optimizer in both:
            (w * optimizer.param_groups[0]["params"][0]).sum().backward()
            optimizer.step()

    assert trained(update) == 3


@pytest.mark.parametrize(("ranks", "updates"), [(1, 4), (2, 4 + STEPS_AHEAD)])
def test_time_ends_what_has_neither_loader_nor_module(
    recorder: Recorder, ranks: int, updates: int
) -> None:
    """Ranks end at a step a little ahead, as those of an optimizer do."""
    clock = FakeClock()
    options = {"max_time_s": 4.0, "spawned_ns": clock()}
    recorder.start(*default_probes(), options=options, now=clock)
    recorder.session.limit.join(ranks)

    def update(w: torch.Tensor) -> None:
        by_backward(w)
        clock.advance(SECOND)

    assert trained(update, batches=30, has_loader=False) == updates
