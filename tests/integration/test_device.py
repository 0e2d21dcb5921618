"""Training on a simulated accelerator: what it did, and when, is known exactly."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support import simgpu
from support.machine import attempts
from support.styles import PREAMBLE, ROOT, TRAINPROF, output

WITHIN = 0.03
STEPS = 6
# What the host takes to give work out is small beside an operation.
SLOW = {"OPERATION_NS": "80000000"}

SCRIPT = f"""{PREAMBLE}
import os
import simgpu

operation_ns = int(os.environ.get("OPERATION_NS", 1_000_000))
simgpu.device.set_costs_ns(operation_ns, 2 * operation_ns, 0, 50_000)

class worked:
    "Adds up what the device was given meanwhile."

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.before = len(simgpu.device.done())

    def __exit__(self, *exception):
        given = simgpu.device.done()[self.before:]
        truth[self.name] += sum(end - start for start, end, *_ in given) / 1e9

with worked("transfer"):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to("simgpu")
    one = torch.ones(()).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
losses = []
for x, y in make_loader({STEPS}):
    with worked("transfer"):
        x, y = x.to("simgpu", non_blocking=True), y.to("simgpu", non_blocking=True)
    with worked("forward"):
        p = model(x)
    with worked("loss"):
        loss = mse(p, y)
    optimizer.zero_grad()
    with worked("backward"):
        loss.backward(one)
    with worked("optimizer"):
        optimizer.step()
    losses.append(loss.item().hex())
print(*losses)
tell()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    # Beside all workers' directories: one of them builds it.
    library = simgpu.built(tmp_path_factory.getbasetemp().parent)
    return {"TEST_SIMGPU": str(library), "PYTHONPATH": f"{simgpu.HERE}{os.pathsep}{ROOT}"}


@pytest.mark.proves("Devices", "--cuda-sync: each phase takes what the device took")
def test_synchronized_phases_take_what_the_device_takes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    plain = output((sys.executable,), tmp_path, SCRIPT, env=environment).splitlines()
    for attempt in attempts():
        run = tmp_path / str(attempt)
        run.mkdir()
        launcher = (*TRAINPROF, "-o", "run", "--cuda-sync")
        shown = output(launcher, run, SCRIPT, env=environment | SLOW).splitlines()
        summary = json.loads((run / "run" / "summary.json").read_text())
        assert shown[:-1] == plain[:-1]
        assert summary["faults"] == []
        assert summary["training"]["steps"] == STEPS
        assert summary["run"]["device_timing"] == "synchronized"
        assert summary["overhead"]["synchronizations"] >= 10 * STEPS
        ledger, truth = summary["ledger"]["seconds"], json.loads(shown[-1])["seconds"]
        missed = {
            phase: (ledger[phase], seconds)
            for phase, seconds in truth.items()
            if ledger[phase] != pytest.approx(seconds, rel=WITHIN)
        }
        if not missed:  # else the scheduler may have taken the processor away in between
            break
    assert not missed
    assert truth.keys() == {"transfer", "forward", "loss", "backward", "optimizer"}


# What the loop waits for, what an operation and a copy take, and what is true of the device then.
BUSY = f"""{PREAMBLE}
import os, sys
import numpy
import simgpu

case, operation_ns, copy_ns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
simgpu.device.set_costs_ns(operation_ns, copy_ns, 0, 5_000)
STEPS = 2500 if case == "tiny" else 40

class Data(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if case == "starved":
            time.sleep(0.05)
        return torch.randn(4, 8), torch.randn(4, 1)

model = nn.Linear(8, 1).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
batches = iter(DataLoader(Data(), batch_size=None))
blocks = case == "copies"
waits, moves, syncs, now = [], [], [], time.monotonic_ns
began = now()
for _ in range(STEPS):
    at = now()
    x, y = next(batches)
    waits.append((at, now()))
    at = now()
    x, y = x.to("simgpu", non_blocking=not blocks), y.to("simgpu", non_blocking=not blocks)
    moves.append((at, now()))
    loss = mse(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if case == "item":
        at = now()
        loss.item()
        syncs.append((at, now()))
ended = now()
print("waited for", simgpu.device.synchronizations())
torch.accelerator.synchronize()

def before(spans, times):
    "How much of spans, which are in order, lies before each time."
    starts, ends = numpy.array(spans or [(0, 0)]).T
    passed = numpy.concatenate([[0], numpy.cumsum(ends - starts)])
    last = numpy.searchsorted(starts, times, side="right")
    return passed[last] - numpy.maximum(ends[last - 1] - times, 0) * (last > 0)

def share(spans, others):
    starts, ends = numpy.array(others or [(0, 0)]).T
    return float((before(spans, ends) - before(spans, starts)).sum()) / (ended - began)

done = simgpu.device.done()
idle = ("item", "sleep")
work = [(start, end) for start, end, *_, name in done if "copy" not in name and name not in idle]
copies = [(start, end) for start, end, *_, name in done if "copy" in name]
run = [(began, ended)]

def idle_in(spans):
    return share(spans, run) - share(spans, work) - share(spans, copies)

print(json.dumps({{
    "busy": share(work, run), "data_wait": idle_in(waits), "sync": idle_in(syncs),
    "transfer": share(copies, run) + idle_in(moves),
}}))
"""
POINTS = 0.03
WIDEST = 0.25


def row(proves: str, *values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.proves("Devices", proves))


@pytest.mark.parametrize(
    ("workload", "operation_ns", "copy_ns", "bottleneck"),
    [
        row("a device that waits for data", "starved", 1_500_000, 150_000, "data"),
        row("one that works, with a sync in every step", "item", 1_500_000, 150_000, "compute"),
        row("one with little to do for a slow host", "tiny", 20_000, 2_000, "host"),
        row("one that waits for copies", "copies", 500_000, 6_000_000, "transfer"),
    ],
)
@pytest.mark.proves("Devices", "without it the device is never waited for")
def test_the_device_is_busy_and_idle_as_it_is(
    environment: dict[str, str],
    tmp_path: Path,
    workload: str,
    operation_ns: int,
    copy_ns: int,
    bottleneck: str,
) -> None:
    for attempt in attempts():
        run = tmp_path / str(attempt)
        run.mkdir()
        arguments = (workload, str(operation_ns), str(copy_ns))
        launcher = (*TRAINPROF, "-o", "run")
        shown = output(launcher, run, BUSY, arguments=arguments, env=environment).splitlines()
        summary = json.loads((run / "run" / "summary.json").read_text())
        assert summary["faults"] == []
        assert (shown[-2], summary["run"]["device_timing"]) == ("waited for 0", "async")
        missed = missed_shares(
            summary, json.loads(shown[-1]), 1.0 if workload == "tiny" else WIDEST
        )
        named = summary["verdict"]["bottleneck"]
        if not missed and named == bottleneck:
            break
    assert not missed
    assert named == bottleneck
    (device,) = summary["devices"]
    training_s = summary["phases"]["training_s"]
    counted_s = training_s - device["idle_because"]["warmup_s"]  # shares are of the time after it
    idle_s = training_s - device["busy_share"][0] * counted_s
    assert sum(device["idle_because"].values()) == pytest.approx(idle_s)
    if workload == "tiny":
        assert device["busy_share"][0] < 0.5
        # Between two pieces of work it may be idle or not: that is said, and not guessed.
        assert device["idle_because"]["unknown_s"] > 0.3 * training_s
        assert "wide bounds" in summary["not_observed"]["devices.busy_share"]
    if workload == "copies":
        (copies,) = summary["transfers"]
        assert (copies["in_training"], copies["by_library_share"]) == (80, 0.0)
        assert copies["exposed_in_training_s"] == copies["exposed_s"]
    if workload == "item":
        point = max(summary["sync_points"], key=lambda sync: sync["seconds"] or 0.0)
        assert point["seconds"] > 0.5 * training_s
        assert point["exposed_s"] < 0.25 * point["seconds"]


def missed_shares(
    summary: dict[str, Any], truth: dict[str, float], widest: float
) -> dict[str, Any]:
    """Returns what lies off the truth, of the training phase: as found, and as it is."""
    (device,) = summary["devices"]
    training_s = summary["phases"]["training_s"]
    ledger = {name: [s / training_s for s in both] for name, both in device["exposed_s"].items()}
    ledger["busy"] = device["busy_share"]
    missed = {
        name: (ledger[name], true)
        for name, true in truth.items()
        if not ledger[name][0] - POINTS <= true <= ledger[name][1] + POINTS
    }
    low, high = device["busy_share"]
    return missed if high - low <= widest else missed | {"width": high - low}
