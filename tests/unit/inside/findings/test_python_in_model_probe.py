"""Functions of the user's that backward calls are noted by where they begin."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch import nn

from trainprof.findings.model.python_in_model.probe import BackwardCodeNote, BackwardCodeProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.record.notes import last_note
from trainprof.record.schema import Topic


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor / 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / 2


class Scaled:
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient

    def scale(self, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def keep(*_: Any) -> None: ...


def line_of(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


HALVED = line_of(Halved.backward)


@pytest.mark.parametrize(
    ("register", "line"),
    [
        (lambda model: model.weight.register_hook(Scaled()), line_of(Scaled.__call__)),
        (lambda model: model.weight.register_hook(hook=Scaled().scale), line_of(Scaled.scale)),
        (lambda model: model.weight.register_hook(partial(keep, 1)), line_of(keep)),
        (lambda model: model.bias.register_post_accumulate_grad_hook(keep), line_of(keep)),
        (lambda model: model.register_full_backward_hook(keep), line_of(keep)),
        (lambda model: model.register_full_backward_pre_hook(keep), line_of(keep)),
        (lambda model: model.weight.register_hook(torch.neg), None),
        (lambda model: None, None),
    ],
)
def test_what_backward_calls_is_noted(
    recorder: Recorder, register: Callable[[nn.Linear], object], line: int | None
) -> None:
    recorder.start(OptimizerProbe(), BackwardCodeProbe())
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(3):
        register(model)
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        optimizer.step()
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    note = last_note(BackwardCodeNote, recording.notes(Topic.ENVIRONMENT))
    assert note is not None
    sites = [json.loads(recording.texts[number][1]) for number in note.sites]
    # That of the class is noted at the first step.
    expected = {HALVED} if line is None else {HALVED, line}
    assert {at for file, at, _ in sites if file == __file__} == expected


def test_a_wrong_hook_fails_as_it_would_without_us(recorder: Recorder) -> None:
    recorder.start(BackwardCodeProbe())
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        torch.ones(2).register_hook(keep)
    with pytest.raises(TypeError):
        torch.ones(2, requires_grad=True).register_hook()  # type: ignore[call-arg]
    assert recorder.read().notes(Topic.PROBE_FAILED) == []
