"""Runs beside GPUs that a stand-in for NVIDIA's library tells of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.nvml import build_stub, stub_environment
from support.processes import PYTHON, TRAINPROF, run, write_script
from support.styles import PREAMBLE, profile

GPUS = "GPUs, by a stand-in for their driver"
BUSY_W = 650.0
EPOCH_S = 1.1

# Tells the driver that it is on GPU 1, as the driver would know by itself, before it trains.
TRAINS_ON_ONE_OF_TWO = f"""{PREAMBLE}
import os

with open(os.environ["STUB_NVML_CONF"] + ".new", "w") as file:
    file.write(f"gpus=2\\nduty_pct=100\\ngpu0.util_on=7\\ngpu1.procs={{os.getpid()}}:1000,1:5\\n")
os.replace(file.name, os.environ["STUB_NVML_CONF"])
model, loader = make_model(0), make_loader(batches=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad(); mse(model(x), y).backward(); optimizer.step()
        time.sleep({EPOCH_S} / 4)
with open("/proc/self/maps") as maps:
    truth["libraries"] = sum("nvidia-ml" in line for line in maps)
tell()
"""

# Waits until the driver was asked, makes it lose the GPU, and waits until that was noticed.
LOSES_ITS_GPU = """
import os, time

def await_call(*ending):
    while not any(line.split()[1:] == list(ending) for line in open(os.environ["STUB_NVML_LOG"])):
        time.sleep(0.01)

if "STUB_NVML_LOG" in os.environ:
    while not os.path.exists(os.environ["STUB_NVML_LOG"]):
        time.sleep(0.01)
    await_call("nvmlDeviceGetPowerUsage", "0")
    with open(os.environ["STUB_NVML_CONF"], "w") as file:
        file.write("lost_after=0\\n")
    await_call("nvmlDeviceGetTotalEnergyConsumption", "15")
print("trained on")
raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("nvml"))


def energy_miss(gpu: dict[str, Any]) -> float:
    """How far the energy is from that of a constant power, as a share."""
    first_s, last_s = gpu["seen_s"]
    return abs(gpu["energy_wh"] / ((last_s - first_s) * BUSY_W / 3600) - 1)


@pytest.mark.proves(GPUS, "energy of a run within 1 %")
@pytest.mark.proves(GPUS, "nothing of NVML in the script")
def test_a_run_on_one_of_two_gpus(tmp_path: Path, library: Path) -> None:
    environment = {**stub_environment(library, tmp_path), "CUDA_VISIBLE_DEVICES": "GPU-00000001"}
    for attempt in attempts():
        (tmp_path / "conf").write_text("gpus=2\nduty_pct=100\n")
        summary, stdout_truth = profile(
            *(tmp_path, TRAINS_ON_ONE_OF_TWO),
            run=f"run-{attempt}",
            options=["--interval", "0.1"],
            env=environment,
        )
        hidden, used = summary["system"]["gpus"]
        # The scheduler may stop the sampler between its clock and the driver's, not every time.
        if energy_miss(used) <= 0.01:
            break
    assert energy_miss(used) <= 0.01
    assert stdout_truth["seconds"]["libraries"] == 0
    assert (used["logical_index"], used["is_visible"], used["is_used"]) == (0, True, True)
    assert (hidden["logical_index"], hidden["is_visible"]) == (None, False)
    assert {process["role"] for process in used["processes"]} == {"own", "other"}
    assert used["utilization"]["p50"] == 96
    assert hidden["utilization"]["min"] == 7
    assert used["throttled_share"] == 0
    energy = summary["system"]["energy"]
    assert energy["gpus"] == [1]
    assert energy["samples_per_wh"] == pytest.approx(summary["training"]["samples"] / energy["wh"])
    callers = {line.split()[0] for line in (tmp_path / "log").read_text().splitlines()}
    script_pid = json.loads((tmp_path / f"run-{attempt}" / "manifest.json").read_text())[
        "script_pid"
    ]
    assert str(script_pid) not in callers


@pytest.mark.proves("Endings", "a GPU that falls off the bus: training goes on")
def test_a_gpu_that_vanishes_ends_nothing(tmp_path: Path, library: Path) -> None:
    script = write_script(tmp_path, LOSES_ITS_GPU)
    bare = run(PYTHON, script.name, cwd=tmp_path)
    environment = stub_environment(library, tmp_path)
    ours = run(TRAINPROF, "-o", "run", script.name, cwd=tmp_path, env=environment)
    assert ours == bare
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (gpu,) = summary["system"]["gpus"]
    assert gpu["not_observed"] == {"gpu": "GPU is lost"}
    assert gpu["utilization"] is not None
    assert summary["faults"] == []
