"""Scripts that wrong advice made slower: each gets the right finding, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from support.styles import profile, without_compiler

TRAINING: Final = """
import json, os, sys, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Stream(IterableDataset):
    def __init__(self, shares):
        self.shares = shares

    def __iter__(self):
        first, step = 0, 1
        if self.shares == "seed":  # a worker's seed is the epoch's and its number
            first, step = torch.initial_seed() % 2, 2
        for i in range(first, 640, step):
            burn(0.0005)
            yield torch.full((16,), i / 640), float(i)


class Computed(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, i):
        burn(0.0005)
        return torch.full((16,), i / 640), float(i)


def train(loader, epochs=2):
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for _ in range(epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x)[:, 0], y.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("{}")
"""


def findings_of(tmp_path: Path, script: str) -> dict[str, Any]:
    summary, _ = profile(tmp_path, without_compiler(TRAINING) + script)
    assert summary["faults"] == []
    return {finding["id"]: finding for finding in summary["findings"]}


@pytest.mark.parametrize(
    ("shares", "workers", "is_found"), [(None, 2, True), ("seed", 2, False), (None, 0, False)]
)
def test_a_stream_that_each_worker_yields(
    tmp_path: Path, shares: str | None, workers: int, is_found: bool
) -> None:
    stream = f"DataLoader(Stream({shares!r}), batch_size=16, num_workers={workers})"
    findings = findings_of(tmp_path, f"train({stream})")
    assert ("duplicated_stream" in findings) is is_found
    if is_found:
        assert next(iter(findings)) == "duplicated_stream"
    for finding in findings.values():
        assert shares or finding["change"].get("num_workers", 0) < 2


def test_no_worker_for_the_only_core(tmp_path: Path) -> None:
    script = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
train(DataLoader(Computed(), batch_size=16))
"""
    findings = findings_of(tmp_path, script)
    assert not any("num_workers=" in finding["advice"] for finding in findings.values())


def test_an_evaluation_ahead_of_training_is_no_recompilation(tmp_path: Path) -> None:
    script = """
def slowly(graph, _):
    time.sleep(0.6)
    return graph.forward


net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.1), nn.Linear(64, 1))
model = torch.compile(net, backend=slowly)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
x = torch.randn(32, 16)
with torch.no_grad():
    model.eval()(x)
model.train()
for _ in range(60):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print("{}")
"""
    summary, _ = profile(tmp_path, TRAINING + script)
    assert "recompiling" not in {finding["id"] for finding in summary["findings"]}
    assert sum(record["count"] for record in summary["compilations"]) >= 2
    assert sum(record["again"] for record in summary["compilations"]) == 0


def test_batches_of_two_small_tensors_are_received_as_they_should_be(tmp_path: Path) -> None:
    script = """
class Rows(Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, i):
        return torch.full((16,), i / 6400), float(i)


train(DataLoader(Rows(), batch_size=64, num_workers=2, persistent_workers=True))
"""
    assert "slow_receive" not in findings_of(tmp_path, script)
