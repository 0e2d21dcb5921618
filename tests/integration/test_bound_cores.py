"""Training on fewer cores than trainprof itself may be on."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest
from support.styles import PREAMBLE, TRAINPROF, output

SCRIPT: Final = """
if sys.argv[1:] == ["itself"]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
model = make_model(0.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in make_loader(batches=8, num_workers=1):
        loss = mse(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
print(len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset is not installed")
@pytest.mark.parametrize("by", ["taskset", "itself"])
def test_the_cores_are_those_of_the_process_that_trains(tmp_path: Path, by: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    launcher = [*TRAINPROF, "-o", "run"]
    if by == "taskset":
        launcher += ["taskset", "-c", str(cores[0]), sys.executable]
    script = f"{PREAMBLE}\nimport os, sys\n{SCRIPT}"
    bound = int(output(launcher, tmp_path, script, arguments=[by]))
    manifest, summary = (
        json.loads((tmp_path / "run" / f"{name}.json").read_text())
        for name in ("manifest", "summary")
    )
    assert bound == 1
    assert summary["system"]["cpu"]["core_numbers"] == cores[:1]
    assert summary["system"]["cpu"]["cores_usable"] <= 1
    assert manifest["host"]["core_numbers"] == cores
    assert summary["system"]["cpu"]["cores_launched_on"] == len(cores)
    assert manifest["entry"] == "script.py"
    assert summary["faults"] == []
