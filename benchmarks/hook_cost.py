"""What each hook adds to the call it wraps: `python benchmarks/hook_cost.py`.

Every call is timed bare and under all probes of a default run, the least of interleaved repeats.
With TRAINPROF_PURE_PYTHON=1 the hooks are those in Python.
"""

from __future__ import annotations

import os
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainprof.inside.catalogue import default_probes
from trainprof.inside.session import Session
from trainprof.record.event_log import EventLog

REPEATS = 9
# In the first ones findings sample module calls and steps.
SAMPLED_STEPS = 200


class Empty(nn.Module):
    def forward(self) -> None:
        return None


class Nest(nn.Module):
    """One call with 100 inner ones."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Empty()

    def forward(self) -> None:
        for _ in range(100):
            self.inner()


class Ones(Dataset[torch.Tensor]):
    """The same sample for ever."""

    def __init__(self) -> None:
        self.sample = torch.ones(8)

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


def endless(loader: DataLoader[torch.Tensor]) -> Callable[[], torch.Tensor]:
    return iter(loader).__next__


def calls() -> dict[str, tuple[Callable[[], Any], int]]:
    """Returns what is timed, by name, and how often it is called in a repeat."""
    host, empty, nest = torch.ones(4), Empty(), Nest()
    scalar = torch.tensor(1.0)
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    trained = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = endless(DataLoader(Ones(), batch_size=4, sampler=_Zeros()))
    step_batches = endless(DataLoader(Ones(), batch_size=4, sampler=_Zeros()))
    leaf = torch.ones(1, requires_grad=True)
    target = torch.zeros(4, 8)

    def training_step() -> float:
        batch = step_batches().to("cpu")
        trained.zero_grad()
        loss = F.mse_loss(model(batch), target)
        loss.backward()
        trained.step()
        return loss.item()

    return {
        "next(loader), fetch, collate, sampler": (batches, 1000),
        "Module.__call__, outermost": (empty, 10_000),
        "Module.__call__, 100 inner": (nest, 300),
        "functional loss": (lambda: F.mse_loss(host, host), 3000),
        "backward": (leaf.backward, 2000),
        "optimizer.step": (optimizer.step, 2000),
        "zero_grad": (optimizer.zero_grad, 5000),
        "Tensor.to, stays": (lambda: host.to("cpu"), 10_000),
        "Tensor.to, other dtype": (lambda: host.to(torch.float64), 5000),
        "item": (lambda: scalar.item(), 10_000),
        "bool": (lambda: bool(scalar), 10_000),
        "a whole training step": (training_step, 500),
    }


class _Zeros:
    def __iter__(self) -> Any:
        while True:
            yield 0

    def __len__(self) -> int:
        return 1 << 40


def main() -> None:
    torch.set_num_threads(1)
    subjects = calls()
    bare = dict.fromkeys(subjects, float("inf"))
    hooked = dict(bare)
    with tempfile.TemporaryDirectory() as directory:
        log = EventLog(directory, role="script")
        for _ in range(REPEATS):
            _time(subjects, bare)
            session = Session(log, cwd=os.getcwd())
            session.attach(torch, default_probes())
            attached = calls()
            for _ in range(SAMPLED_STEPS):
                attached["a whole training step"][0]()
            _time(attached, hooked)
            session.detach()
    print(f"{'':40}{'bare':>10}{'hooked':>10}{'added':>10}   ns a call")
    for name in subjects:
        added = hooked[name] - bare[name]
        print(f"{name:40}{bare[name]:10.0f}{hooked[name]:10.0f}{added:10.0f}")


def _time(subjects: dict[str, tuple[Callable[[], Any], int]], least: dict[str, float]) -> None:
    for name, (call, number) in subjects.items():
        call()
        least[name] = min(least[name], timeit.timeit(call, number=number) / number * 1e9)


if __name__ == "__main__":
    main()
