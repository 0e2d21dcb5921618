"""The real allocator: its figures are the script's own, and what ran out of memory is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.on_device import bare, line_of, profiled, write

pytestmark = pytest.mark.gpu

MIB = 1 << 20
KEPT_BYTES = 4 * MIB
STEPS = 260

# Matrix products alone: their memory is the same in every run.
GROWS = f"""
model = perceptron(1024)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
kept = []
for x, y in batches({STEPS}, 1024, rows=2048, sleep_s=0.06):
    descend(model, optimizer, x, y)
    if sys.argv[1] == "keeps":
        kept.append(torch.empty({KEPT_BYTES}, dtype=torch.uint8, device=device))
stats = torch.cuda.memory_stats()
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(),
                  stats["num_alloc_retries"], stats["num_ooms"]]))
"""


@pytest.mark.parametrize("what", ["keeps", "keeps nothing"])
def test_the_peak_is_the_scripts_own_and_growth_is_growth(
    tmp_path: Path, cuda: str, what: str
) -> None:
    script = write(tmp_path, GROWS)
    plain = bare(script, cuda, what)
    ours, summary = profiled(script, cuda, what)
    assert ours == plain
    assert summary["faults"] == []
    (row,) = summary["devices"]
    memory = row["memory"]
    figures = [
        memory[name]
        for name in (
            *("peak_allocated_bytes", "peak_reserved_bytes"),
            *("retries", "out_of_memory_errors"),
        )
    ]
    assert figures == ours.last_line()
    print(f"\n{what}: {memory}")
    assert memory["is_growing"] is (what == "keeps")
    if what == "keeps":
        assert memory["growth_bytes_per_step"] == pytest.approx(KEPT_BYTES, rel=0.05)


RESETS = """
model = perceptron(256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in batches(30, 256):
    descend(model, optimizer, x, y)
torch.empty(300 << 20, dtype=torch.uint8, device=device)
before = torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats()
for x, y in batches(30, 256):
    descend(model, optimizer, x, y)
print(json.dumps([before, torch.cuda.max_memory_allocated()]))
"""


def test_a_peak_that_the_script_resets_is_not_lost(tmp_path: Path, cuda: str) -> None:
    script = write(tmp_path, RESETS)
    ours, summary = profiled(script, cuda)
    assert ours == bare(script, cuda)
    before, after = ours.last_line()
    assert after < 300 * MIB < before
    assert summary["devices"][0]["memory"]["peak_allocated_bytes"] == before


RUNS_OUT = """
torch.cuda.set_per_process_memory_fraction(0.02)
model = perceptron(256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in batches(30, 256):
    descend(model, optimizer, x, y)
hoard = []

def take_all():
    while True:
        hoard.append(torch.empty(64 << 20, dtype=torch.uint8, device=device))  # here

if sys.argv[1] == "caught":
    try:
        take_all()
    except torch.OutOfMemoryError:
        hoard.clear()
    for x, y in batches(30, 256):
        descend(model, optimizer, x, y)
else:
    take_all()
"""


def test_an_error_that_ends_the_run_is_told_with_its_state(tmp_path: Path, cuda: str) -> None:
    script = write(tmp_path, RUNS_OUT)
    ours, summary = profiled(script, cuda, "not caught")
    assert (ours.status, summary["run"]["exit"]["detail"]) == (1, "OutOfMemoryError")
    lack = summary["out_of_memory"]
    print(f"\n{lack}")
    assert lack["device"] == "cuda:0"
    assert lack["site"] == line_of(RUNS_OUT, "# here")
    assert lack["requested_bytes"] == 64 * MIB
    assert lack["allocated_bytes"] > 64 * MIB
    assert lack["free_bytes"] <= lack["total_bytes"]


def test_one_that_the_script_catches_is_counted(tmp_path: Path, cuda: str) -> None:
    script = write(tmp_path, RUNS_OUT)
    ours, summary = profiled(script, cuda, "caught")
    assert ours == bare(script, cuda, "caught")
    memory = summary["devices"][0]["memory"]
    assert summary["out_of_memory"] is None
    assert memory["out_of_memory_errors"] == 1
    assert memory["retries"] >= 1
    assert memory["peak_reserved_bytes"] > 0.7 * memory["limit_bytes"]
