"""What is recorded of the autograd engine."""

from __future__ import annotations

from typing import Any

import torch
from support.session import FakeClock, Recorder
from torch.utils.checkpoint import checkpoint

from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.record.schema import Kind


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


class Timed(torch.autograd.Function):
    clock = FakeClock()

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Timed.clock.advance(300)
        return grad


def test_every_way_into_the_engine(recorder: Recorder) -> None:
    clock = Timed.clock
    recorder.start(BackwardProbe(), now=clock)
    x = leaf()
    Timed.apply(x).sum().backward()
    torch.autograd.grad(Timed.apply(x).sum(), x)
    torch.autograd.backward([Timed.apply(x).sum()])
    assert [(e.kind, e.ns) for e in recorder.read().events] == [(Kind.BACKWARD, 300)] * 3


def test_a_recomputed_forward_lies_inside(recorder: Recorder) -> None:
    recorder.start(BackwardProbe(), ForwardProbe())
    layer = torch.nn.Linear(2, 2)
    checkpoint(layer, leaf(), use_reentrant=True).sum().backward()
    events = recorder.read().events
    outer = events[-1]
    assert [e.kind.name for e in events] == ["FORWARD", "FORWARD", "BACKWARD", "BACKWARD"]
    assert all(outer.start <= e.start <= e.end <= outer.end for e in events[1:3])
