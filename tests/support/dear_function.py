"""A model that computes by one of torch's functions which takes 5 ms of a fake clock."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
from support.session import FakeClock, Recorder
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from trainprof.record.schema import Topic

CLOCK = FakeClock()
STEPS, COST_NS = 60, 5_000_000
EDGES = torch.eye(8).roll(1, 0)

# Stands for one of torch's, in a file of torch's.
_DEAR = """
def dear(x):
    if has_torch_function((x,)):
        return handle_torch_function(dear, (x,), x)
    advance()
    return torch.linalg.matrix_exp(x)

def dear_view(x):
    if has_torch_function((x,)):
        return handle_torch_function(dear_view, (x,), x)
    advance()
    return x.t()

class Dear(torch.nn.Module):
    def forward(self, x):
        return dear(x)
"""
_NAMES: dict[str, Any] = {
    "has_torch_function": has_torch_function,
    "handle_torch_function": handle_torch_function,
    "torch": torch,
    "advance": lambda: CLOCK.advance(COST_NS),
}
exec(compile(_DEAR, torch.__file__, "exec"), _NAMES)
dear, dear_view, Dear = _NAMES["dear"], _NAMES["dear_view"], _NAMES["Dear"]


class Model(nn.Module):
    """Adds to its input what `made` gives, of itself, the input and the number of the step."""

    def __init__(self, made: Callable[[Any, torch.Tensor, int], Any]) -> None:
        super().__init__()
        self.linear, self.made, self.step = nn.Linear(8, 1), made, 0
        self.register_buffer("edges", EDGES.clone())
        self.kept: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        CLOCK.advance(COST_NS)
        out: torch.Tensor = self.linear(x + self.made(self, x, self.step)[:1, :8])
        return out


def train(model: nn.Module, batches: list[torch.Tensor] | None = None) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(STEPS):
        x = torch.randn(4, 8) if batches is None else batches[number % len(batches)]
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        CLOCK.advance(1_000_000_000)
        losses.append(loss.item())
    return losses


def lines_told(recorder: Recorder, key: str, file: str) -> dict[int, dict[str, Any]]:
    """Returns what was told last under a key, by the line of that file."""
    recording = recorder.read()
    assert recording.notes(Topic.PROBE_FAILED) == []
    notes = [x for x in recording.notes(Topic.ENVIRONMENT) if key in x]
    if not notes:
        return {}
    found = {}
    for one in notes[-1][key]["lines"]:
        topic, text = recording.texts[one["site"]]
        name, line, _ = json.loads(text)
        assert topic == Topic.SITE
        if os.path.basename(name) == os.path.basename(file):
            found[line] = one
        else:
            assert (os.path.basename(name), one["step_ns"]) == (os.path.basename(__file__), 0)
    return found
