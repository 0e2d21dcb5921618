"""Trials in the script's own process, against what the script timed and computed itself."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from support.session import read_recordings, run_hooked, run_plain
from support.styles import without_compiler
from support.trials import free_pace_in

from trainprof.launch.options import TrialOptions
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind
from trainprof.tune.trial_output import read_trial_notes

# A batch takes 8 ms, a step 4 ms and what it computes. Prints what both took, one by one.
SCRIPT = without_compiler("""\
import json, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

fetches, steps = [], []

class Slow(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        started = time.perf_counter()
        time.sleep(0.008)
        fetches.append(time.perf_counter() - started)
        return torch.full((4, 8), index / 30), torch.zeros(4, 1)

def train(batches, backward):
    for x, y in batches:
        started = time.perf_counter()
        time.sleep(0.004)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        steps.append(time.perf_counter() - started)

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Slow(), batch_size=None, shuffle=True, num_workers=int(sys.argv[1]))  # here
backward = torch.Tensor.backward
""")
PLAIN = """
try:
    for epoch in range(4):
        train(loader, backward)
finally:
    print(json.dumps({"steps": steps, "fetches": fetches}))
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
backward = accelerator.backward
"""
SITE = f"script.py:{SCRIPT[: SCRIPT.index('# here')].count(chr(10)) + 1}"


def run_trial(
    directory: Path, script: str, workers: int, **asked: Any
) -> tuple[dict[str, list[float]], RunDirectory]:
    (directory / "script.py").write_text(script)
    run = RunDirectory(directory / "run")
    trial = TrialOptions(sites=(SITE,), **asked).to_json()
    words = ["script.py", str(workers)]
    done = run_hooked(words, directory, run.path, options={"trial": trial})
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout), run


@pytest.mark.parametrize("workers", [0, 2])
def test_on_free_data_a_step_takes_what_training_takes(tmp_path: Path, workers: int) -> None:
    check_free_data(tmp_path, SCRIPT + PLAIN, workers)


@pytest.mark.frameworks("accelerate")
def test_so_it_does_where_accelerate_rebuilt_the_loader(tmp_path: Path) -> None:
    check_free_data(tmp_path, SCRIPT + ACCELERATE + PLAIN, 1)


def check_free_data(directory: Path, script: str, workers: int) -> None:
    timed, run = run_trial(directory, script, workers, data="free")
    pace = free_pace_in(run)
    assert pace is not None
    assert pace.steps_s is not None
    # Of three passes; where a machine's clock changes meanwhile, what came before is warm-up.
    assert len(pace.steps_s) >= 2 * 28
    training_s = statistics.median(timed["steps"][30:])
    assert statistics.median(pace.steps_s.tolist()) == pytest.approx(training_s, rel=0.1)
    main = read_recordings(run.events)[0]
    assert main.of(Kind.FREE_DATA)[0].value == 30
    assert len(main.of(Kind.WORKER)) == workers  # of the first pass
    assert len(timed["fetches"]) == (0 if workers else 30)
    assert len(timed["steps"]) == 4 * 30
    assert read_trial_notes(run).applied == {"data": "free"}


UNCHANGED = """
for epoch in range(2):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x + torch.randn_like(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
print(torch.get_rng_state().sum().item(), loader.prefetch_factor)
print("to the other side", file=sys.stderr)
{}["a fault of the script's"]
"""


def test_what_a_trial_does_not_ask_for_is_as_in_a_plain_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text((SCRIPT + UNCHANGED).replace("0.008", "0"))
    plain = run_plain(["script.py", "2"], tmp_path)
    asked = TrialOptions(
        loaders={"prefetch_factor": 5},  # with workers that live on torch draws fewer seeds
        sites=(SITE,),
        settings={"torch_threads": 1},
    )
    run = RunDirectory(tmp_path / "run")
    ours = run_hooked(["script.py", "2"], tmp_path, run.path, options={"trial": asked.to_json()})
    assert plain.returncode == ours.returncode == 1
    assert ours.stderr == plain.stderr
    assert ours.stdout == plain.stdout[: plain.stdout.rindex(" ")] + " 5\n"
    notes = read_trial_notes(run)
    assert notes.applied == {**asked.loaders, **asked.settings}
    assert notes.refused == {}
    losses = [float.fromhex(line) for line in plain.stdout.split()[:50]]
    assert list(notes.losses) == losses
