"""Training on a real device: each mode runs, and what it says is true.

`pytest -s tests/gpu` shows the figures that are printed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.on_device import ROOT, bare, part_of, profiled, write

pytestmark = pytest.mark.gpu

MODES = {
    "async": (),
    "synchronized": ("--cuda-sync",),
    "looking for syncs": ("--find-syncs",),
}
# The steps of BUSY that are compared: its first ones load kernels.
WARMUP, STEPS = 30, 60
POINTS = 0.03
# From one kernel that is there already to the next, at most (0.7 us a kernel was seen on an H100).
BETWEEN_S = 1.5e-6


@pytest.mark.parametrize("mode", MODES)
def test_the_sample_script_runs_in_each_mode(tmp_path: Path, device: str, mode: str) -> None:
    if device != "cuda":
        pytest.skip("the sample scripts use CUDA or the CPU")
    for directory in ("sample_scripts", "configs"):
        shutil.copytree(ROOT / directory, tmp_path / directory)
    script = tmp_path / "sample_scripts" / "train.py"
    arguments = (str(tmp_path / "configs" / "example_config.py"), "epochs=2", "pictures=320")
    plain = bare(script, device, *arguments)
    ours, summary = profiled(script, device, *arguments, options=MODES[mode])
    assert (plain.status, ours.status) == (0, 0), ours.stderr
    assert len(ours.stdout.splitlines()) == len(plain.stdout.splitlines())
    assert summary["faults"] == []
    assert summary["run"]["device"] == "cuda:0"
    timing = "synchronized" if mode == "synchronized" else "async"
    assert summary["run"]["device_timing"] == timing
    assert summary["training"]["steps"] == 80
    (row,) = summary["devices"]
    assert 0 < row["memory"]["peak_allocated_bytes"] <= row["memory"]["peak_reserved_bytes"]
    assert row["memory"]["peak_reserved_bytes"] < row["memory"]["limit_bytes"]
    if timing == "async":
        low, high = row["busy_share"]
        assert 0 <= low <= high <= 1
    last = {name: summary[name] for name in ("devices", "found_syncs", "overhead", "verdict")}
    step = summary["training"]["step_s"]["p50"]
    print(f"\n{mode}: a step {step * 1e3:.2f} ms, {json.dumps(last)}")


# What a device did, by torch.profiler: the union of all that ran there, over the time it took.
BUSY = f"""
case, by = sys.argv[1:]
width = rows = 512 if case == "starved" else 4096
model = perceptron(width)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x, y = torch.randn(rows, width).to(device), torch.randn(rows, 1).to(device)
sleep_s = 0.02 if case == "starved" else 0.0

def train(steps):
    for _ in range(steps):
        loss = descend(model, optimizer, x, y)
        if case == "half":
            loss.item()
        time.sleep(sleep_s)

train({WARMUP - 10})
wait()
began = time.perf_counter()
train(10)
wait()
if case == "half":
    sleep_s = (time.perf_counter() - began) / 10
if by == "trainprof":
    train({STEPS})
    sys.exit()
activity = torch.profiler.ProfilerActivity
with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profiler:
    began = time.perf_counter()
    train({STEPS})
    wait()
    took_us = (time.perf_counter() - began) * 1e6
spans = sorted(
    (event.time_range.start, event.time_range.end)
    for event in profiler.events()
    if event.device_type == torch.autograd.DeviceType.CUDA
    and not getattr(event, "is_user_annotation", False)  # of the optimizer's step, gaps included
)
busy_us = reach = 0.0
for start, end in spans:
    busy_us += max(0.0, end - max(start, reach))
    reach = max(reach, end)
told = {{"busy": busy_us / took_us, "spans": len(spans), "step_ms": took_us / {STEPS} / 1e3}}
print(json.dumps(told))
"""


@pytest.mark.parametrize("workload", ["works", "half", "starved"])
def test_the_device_is_busy_as_torchs_profiler_says(
    tmp_path: Path, cuda: str, workload: str
) -> None:
    script = write(tmp_path, BUSY)
    truth = bare(script, cuda, workload, "profiler")
    assert truth.status == 0, truth.stderr
    ours, _ = profiled(script, cuda, workload, "trainprof")
    assert ours.status == 0, ours.stderr
    (row,) = part_of(tmp_path / "run", cuda, f"{WARMUP + 1}:{WARMUP + STEPS}")["devices"]
    low, high = row["busy_share"]
    busy = truth.last_line()["busy"]
    print(f"\n{workload}: torch.profiler {busy:.3f}, trainprof {low:.3f} to {high:.3f}, {row}")
    assert truth.last_line()["spans"] > 0
    assert low - POINTS <= busy <= high + POINTS


UNTOUCHED = """
before = module.is_initialized()
nn.Linear(3, 1)(torch.ones(3)).sum().backward()
print(json.dumps([before, module.is_initialized()]))
"""


@pytest.mark.parametrize("mode", MODES)
def test_the_device_is_not_touched_before_the_script_does(
    tmp_path: Path, device: str, mode: str
) -> None:
    script = write(tmp_path, UNTOUCHED)
    ours, _ = profiled(script, device, options=MODES[mode])
    assert ours == bare(script, device)
    assert ours.last_line() == [False, False]


# Small pieces of work, given out slowly: what a launch-bound script's device really does.
LAUNCH_BOUND = f"""
(by,) = sys.argv[1:]
layers = [layer for _ in range(20) for layer in (nn.Linear(256, 256), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)
x, y = torch.randn(64, 256).to(device), torch.randn(64, 1).to(device)
losses = []

def train(seconds):
    until = time.perf_counter() + seconds
    steps = 0
    while time.perf_counter() < until or steps < {STEPS}:
        losses.append(descend(model, optimizer, x, y))
        steps += 1
    return steps

if by == "trainprof":
    train(20)
    sys.exit()
train(3)
wait()
activity = torch.profiler.ProfilerActivity
with torch.profiler.profile(activities=[activity.CUDA]) as profiler:
    for _ in range({STEPS}):
        descend(model, optimizer, x, y)
    wait()
kernels = [
    event.time_range.elapsed_us()
    for event in profiler.events()
    if event.device_type == torch.autograd.DeviceType.CUDA
    and not getattr(event, "is_user_annotation", False)
]
print(json.dumps({{"step_us": sum(kernels) / {STEPS}, "kernels": len(kernels)}}))
"""


def test_the_bounds_hold_the_time_of_its_kernels(tmp_path: Path, cuda: str) -> None:
    """A trace slows a slow host down: kernels of a step are held against its time without one."""
    script = write(tmp_path, LAUNCH_BOUND)
    truth = bare(script, cuda, "profiler")
    assert truth.status == 0, truth.stderr
    ours, summary = profiled(script, cuda, "trainprof")
    assert ours.status == 0, ours.stderr
    assert summary["faults"] == []
    (row,) = summary["devices"]
    step_s = summary["phases"]["training_s"] / summary["training"]["steps"]
    last, (low, high) = truth.last_line(), row["busy_share"]
    busy, between = last["step_us"] / 1e6 / step_s, last["kernels"] / STEPS * BETWEEN_S / step_s
    print(f"\nlaunch-bound: torch.profiler {busy:.3f}, trainprof {low:.3f} to {high:.3f}")
    assert last["kernels"] > 0
    # What a device needs from one kernel to the next is its own time.
    assert low - POINTS - between <= busy <= high + POINTS
