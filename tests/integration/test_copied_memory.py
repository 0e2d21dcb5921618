"""Memory that forked workers copy as they read Python objects, against what the script saw."""

from __future__ import annotations

from pathlib import Path

from support.machine import attempts
from support.styles import profile, without_compiler

# The worker reads all objects, 100 a sample, and goes on until memory has been measured twice.
SCRIPT = without_compiler("""
import json, sys, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.rows = [{"file": f"{n:064d}", "boxes": [n + 1000, n + 2000]} for n in range(400_000)]
        self.read = 0
        if sys.argv[1] == "packed":
            self.rows = np.array([row["boxes"] for row in self.rows])

    def __len__(self):
        return 100

    def __getitem__(self, index):
        part = self.rows[self.read : self.read + 100]
        self.read = (self.read + 100) % 400_000
        values = [[*row.values()] for row in part] if isinstance(part, list) else part
        return torch.full((8,), float(len(values)))

def private(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_Dirty"))

torch.set_num_threads(1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.0001)
loader = DataLoader(Rows(), num_workers=1, persistent_workers=True)
begin, first = time.perf_counter(), None
while time.perf_counter() - begin < 16:
    batches = iter(loader)
    for batch in batches:
        first = first or private(batches._workers[0].pid)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
print(json.dumps({"first": first, "last": private(batches._workers[0].pid)}))
""")


def test_what_a_worker_copies_is_seen(tmp_path: Path) -> None:
    for attempt in attempts():  # measuring memory waits longer where it takes long
        directory = tmp_path / str(attempt)
        directory.mkdir()
        summary, truth = profile(directory, SCRIPT, arguments=["listed"])
        copied = summary["copied_pages"]
        if copied is not None:
            break
    assert copied is not None
    assert (copied["workers"], copied["python_objects"]) == (1, ["rows (list of 400,000)"])
    assert truth["last"] / 2 < copied["last_bytes"] < 1.1 * truth["last"]
    assert 0.9 * truth["first"] < copied["first_bytes"] < copied["last_bytes"] / 2
    assert "slow_receive" not in {finding["id"] for finding in summary["findings"]}


def test_an_array_is_not_copied(tmp_path: Path) -> None:
    summary, truth = profile(tmp_path, SCRIPT, arguments=["packed"])
    assert summary["copied_pages"] is None
    assert truth["last"] < 100 << 20
