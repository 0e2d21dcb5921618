"""A run whose device's memory grows, is looked for syncs in native code, and ends out of memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import simgpu
from support.fake_memory import GIB, MIB
from support.processes import PYTHON, TRAINPROF, run, write_script
from support.styles import PREAMBLE, ROOT

STEPS = 90
GROWS = 3 * MIB

# The simulated device gets an allocator, and a sync debug mode that warns as torch's C++ code does.
SCRIPT = f"""{PREAMBLE}
import ctypes, functools
import simgpu
from support.fake_memory import FakeAllocator

simgpu.device.set_costs_ns(50_000, 0, 0, 0)
memory, modes = FakeAllocator(), [0]
warn = ctypes.pythonapi.PyErr_WarnEx
warn.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t]
waits = functools.partial(warn, UserWarning, b"called a synchronizing CUDA operation", 1)
torch.simgpu.memory_stats_as_nested_dict = memory.nested
torch.simgpu.get_sync_debug_mode = lambda: modes[0]
torch.simgpu.set_sync_debug_mode = lambda mode: modes.__setitem__(0, mode)

class Works(nn.Linear):
    def forward(self, x):
        memory.allocate({GIB})
        y = super().forward(x)
        memory.free({GIB})
        return y

model = Works(8, 1).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
memory.allocate({GIB})
for x, y in make_loader({STEPS}):
    loss = mse(model(x.to("simgpu")), y.to("simgpu"))
    optimizer.zero_grad(); loss.backward()
    for _ in range(2):
        modes[0] and waits()  # here it waits
    memory.allocate({GROWS})
    optimizer.step()
torch.accelerator.synchronize()  # else plain python aborts at its end now and then
print(memory.peak, modes, "__warningregistry__" in globals())
raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 80.00 GiB of which 5.00 MiB is free. Of the allocated memory 77.00 GiB is "
    "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.")
"""


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def environment_with(library: Path) -> dict[str, str]:
    places = (simgpu.HERE, ROOT, ROOT / "tests")
    return {
        "TEST_SIMGPU": str(library),
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.proves("Devices", "its memory: peak, growth, out of memory, nothing is reset")
@pytest.mark.proves("Devices", "--find-syncs: waits in native code, by line; no warning is seen")
def test_memory_and_found_syncs_of_a_run(tmp_path: Path) -> None:
    library = simgpu.built(tmp_path.parent.parent)
    environment = environment_with(library)
    script = write_script(tmp_path, SCRIPT)
    bare = run(PYTHON, script.name, cwd=tmp_path, env=environment)
    options = ("-o", "run", "--find-syncs")
    ours = run(TRAINPROF, *options, script.name, cwd=tmp_path, env=environment)
    assert ours == bare
    assert bare.stdout == f"{2 * GIB + (STEPS - 1) * GROWS} [0] False\n".encode()

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["faults"] == []
    assert summary["run"]["exit"]["detail"] == "OutOfMemoryError"
    lack = summary["out_of_memory"]
    assert lack["device"] == "simgpu:0"
    assert lack["site"] == f"{script.name}:{line_of('raise torch.OutOfMemoryError')}"
    assert (lack["requested_bytes"], lack["total_bytes"]) == (2 * GIB, 80 * GIB)

    (device,) = summary["devices"]
    memory = device["memory"]
    assert device["busy_share"] is not None
    assert memory["peak_allocated_bytes"] == 2 * GIB + (STEPS - 1) * GROWS
    # How many steps were read depends on how long they took.
    assert memory["readings"] > 20
    assert memory["growth_bytes_per_step"] in (None, pytest.approx(GROWS))

    syncs = summary["found_syncs"]
    assert (syncs["first_step"], syncs["steps"], syncs["known_calls"]) == (20, 20, 0)
    (call,) = syncs["calls"]
    assert call == {"site": f"{script.name}:{line_of('here it waits')}", "count": 40}


# Operators of 2 us, which take the host longer to launch, and a peak of so much of 80 GiB.
SMALL = f"""{PREAMBLE}
import sys
from types import SimpleNamespace
import simgpu
from support.fake_memory import FakeAllocator

simgpu.device.set_costs_ns(2_000, 20_000, 0, 5_000)
memory = FakeAllocator()
memory.allocate(int(sys.argv[1]) * {GIB})
torch.simgpu.memory_stats_as_nested_dict = memory.nested
torch.simgpu.get_device_properties = lambda index: SimpleNamespace(total_memory=memory.total)
layers = [layer for _ in range(16) for layer in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 1)).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
for _ in range(150):
    loss = mse(model(torch.randn(16, 64).to("simgpu")), torch.randn(16, 1).to("simgpu"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.accelerator.synchronize()
"""


@pytest.mark.proves("Devices", "a small batch: launch-bound, and most of its memory is free")
@pytest.mark.parametrize(("gib", "expected"), [(10, True), (60, False)])
def test_a_small_batch_where_memory_is_free(tmp_path: Path, gib: int, expected: bool) -> None:
    library = simgpu.built(tmp_path.parent.parent)
    script = write_script(tmp_path, SMALL)
    words = ("-o", "run", script.name, str(gib))
    assert run(TRAINPROF, *words, cwd=tmp_path, env=environment_with(library)).status == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    findings = {finding["id"]: finding for finding in summary["findings"]}
    assert "launch_bound" in findings
    assert ("small_batch" in findings) is expected
    if expected:
        evidence = findings["small_batch"]["evidence"]
        assert (evidence["reserved_bytes"], evidence["limit_bytes"]) == (gib * GIB, 80 * GIB)
