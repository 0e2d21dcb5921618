"""A stream of samples: workers that each yield all of it are found, those that share it are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.styles import profile, without_compiler

SCRIPT = without_compiler("""
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(0)
torch.set_num_threads(1)

class Stream(IterableDataset):
    def __iter__(self):
        first, step = 0, 1
        if sys.argv[1] == "shared":  # a worker's seed is the epoch's and its number
            first, step = torch.initial_seed() % 2, 2
        for i in range(first, 640, step):
            end = time.thread_time() + 0.0005
            while time.thread_time() < end:
                pass
            yield torch.full((16,), i / 640), float(i)

model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
loader = DataLoader(Stream(), batch_size=16, num_workers=2)
for _ in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x)[:, 0], y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("{}")
""")


@pytest.mark.parametrize("how", ["repeated", "shared"])
def test_a_stream_that_each_worker_yields(tmp_path: Path, how: str) -> None:
    summary, _ = profile(tmp_path, SCRIPT, arguments=[how])
    assert summary["faults"] == []
    slugs = [finding["id"] for finding in summary["findings"]]
    assert ("duplicated_stream" in slugs) is (how == "repeated")
    if how == "repeated":
        assert slugs[0] == "duplicated_stream"
        for finding in summary["findings"]:
            assert finding["change"].get("num_workers", 0) < 2
