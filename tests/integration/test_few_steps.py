"""Scripts of ten steps: long even ones get their verdict and finding, healthy ones no finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.styles import profile, without_compiler

SCRIPT = without_compiler("""
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
of_sample_s, of_step_s, workers = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])

class Samples(Dataset):
    def __len__(self):
        return 44
    def __getitem__(self, index):
        time.sleep(of_sample_s)
        return torch.full((16,), index / 44), float(index)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    def forward(self, x):
        time.sleep(of_step_s)
        return self.layers(x)

model = Slow()
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for x, y in DataLoader(Samples(), batch_size=4, num_workers=workers):
    loss = nn.functional.mse_loss(model(x)[:, 0], y.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("{}")
""")


@pytest.mark.parametrize(
    ("sample_s", "step_s", "workers", "bottleneck", "findings"),
    [
        (0.05, 0.2, 0, "data", ["serial_loading"]),
        (0.1, 0.1, 1, "data", ["too_few_workers"]),
        (0.0001, 0.3, 0, "compute", []),
        (0.01, 0.3, 2, "compute", []),
    ],
)
def test_what_ten_steps_show(
    tmp_path: Path,
    sample_s: float,
    step_s: float,
    workers: int,
    bottleneck: str,
    findings: list[str],
) -> None:
    arguments = [str(sample_s), str(step_s), str(workers)]
    summary, _ = profile(tmp_path, SCRIPT, arguments=arguments)
    assert 6 <= summary["training"]["steady_steps"] < 11
    assert summary["verdict"]["bottleneck"] == bottleneck, summary["verdict"]["headline"]
    assert [finding["id"] for finding in summary["findings"]] == findings
