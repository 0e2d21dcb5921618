"""Drawn scripts, run: the planted fault is the first finding, and healthy ones have none.

They are benchmarks/faults and benchmarks/controls; benchmarks/finding_truth.py runs many more.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from finding_truth import CONTROLS, FAULTS, Outcome, drawn_scripts, judged
from planted.script_file import PlantedScript
from planted.styles import MAIN
from support.machine import attempts
from support.styles import without_compiler

# Those that no sample script has (test_truth.py), by seeds that make them short.
SEEDS = {
    "slow_collate": 10,
    "slow_pass_starts": 5,
    "slow_optimizer": 9,
    "anomaly_detection": 7,
    "double_precision": 5,
    "double_on_purpose": 5,
    "unused_gradients": 9,
    "discarded_gradients": 9,
    "dense_embeddings": 9,
    "needless_averaging": 9,
    "averaged_once": 7,
    "small_vocabulary": 9,
    "padded_batches": 9,
    "padded_to_the_longest": 9,
    "validation_by_hand": 9,
    "validation_without_loaders": 9,
    "slow_environment": 9,
    "recompiling": 37,
    "cold_first_epoch": 7,
    "uneven_batches": 5,
    "idle_workers": 5,
    "crowded_cores": 52,
    "torch_in_workers": 9,
    "one_thread_each": 9,
    "slow_rank": 5,
    "python_in_model": 14,
    "elements_in_model": 9,
    "deciding_layers": 9,
    "optimizer_by_hand": 9,
    "quick_optimizer": 9,
    "sample_by_sample": 13,
    "needless_workers": 13,
    "growing_backward": 13,
    "blocking_copies": 3,
    "exposed_syncs": 3,
    "emptied_cache": 3,
    "device_at_work": 3,
    "full_precision": 3,
    "tensor_cores": 3,
    "launch_bound": 3,
    "python_on_device": 3,
}

pytestmark = pytest.mark.truth
NEEDS_COMPILER = ("torch.compile", "torch.utils.checkpoint", "DistributedDataParallel")


def drawn(name: str) -> PlantedScript:
    """Returns the last script of that name: of a fault, one with a random size."""
    *_, script = drawn_scripts(SEEDS[name], 2, [name])
    if not any(word in script.files[MAIN] for word in NEEDS_COMPILER):
        script.files[MAIN] = without_compiler(script.files[MAIN])
    return script


def as_parameter(name: str) -> Any:
    """Returns the name as a parameter, skipped where its script needs a package that is missing."""
    is_of_accelerate = drawn(name).style == "accelerate"
    mark = pytest.mark.frameworks("accelerate")
    return pytest.param(name, marks=mark) if is_of_accelerate else name


def judged_again(script: PlantedScript, folder: Path, libraries: Path | None = None) -> Outcome:
    """Judges a script until it is right: the machine is not ours alone."""
    for attempt in attempts():
        (folder / str(attempt)).mkdir()
        outcome = judged(script, folder / str(attempt), libraries)
        if outcome.is_right:
            break
    return outcome


@pytest.mark.parametrize("name", [as_parameter(name) for name in SEEDS])
def test_what_is_planted_is_found_and_nothing_else(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = drawn(name)
    if "import simgpu" in script.files[MAIN] and shutil.which("g++") is None:
        pytest.skip("the simulated device needs a compiler")
    # Beside all workers' directories: the simulated device is built once.
    outcome = judged_again(script, tmp_path, tmp_path_factory.getbasetemp().parent)
    slugs = [finding["id"] for finding in outcome.findings]
    assert slugs[:1] == ([script.finding] if script.finding else [])
    assert outcome.is_at_place, outcome.findings[0]["site"]


# What stands between forward and backward, and whether something is to be found there.
BY_HAND = {
    "torch": (
        """\
    near = torch.cdist(out, out)  # here
    for _ in range(12):  # here
        near = near.softmax(1).exp() + near.sum(0)  # here
    return near.mean()  # here
""",
        False,
    ),
    "elements": (
        """\
    total = 0.0
    for row in out.detach()[:8]:  # here
        for value in row:  # here
            total += value.item()  # here
    return out.square().mean() + 0 * total
""",
        True,
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_loss_by_hand_is_found_where_it_is_not_torch_that_computes(
    name: str, tmp_path: Path
) -> None:
    body, is_found = BY_HAND[name]
    text = f"""\
import numpy
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

def loss_of(out):
{body}

for step in range(200):
    x = torch.ones(384, 256)
    loss = loss_of(model(x))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    finding = "python_in_loop" if is_found else None
    outcome = judged_again(PlantedScript(name, "by hand", "plain", {MAIN: text}, finding), tmp_path)
    slugs = [finding["id"] for finding in outcome.findings]
    assert ("python_in_loop" in slugs) is is_found
    if is_found:
        assert slugs[0] == "python_in_loop"
        assert outcome.is_at_place, outcome.findings[0]["site"]


def test_the_same_seed_draws_the_same_scripts() -> None:
    assert list(drawn_scripts(3, 2)) == list(drawn_scripts(3, 2))
    other = [script.size for script in drawn_scripts(4, 2) if script.finding]
    assert other != [script.size for script in drawn_scripts(3, 2) if script.finding]


@pytest.mark.parametrize("name", [*FAULTS, *CONTROLS])
def test_every_script_is_python_and_names_its_places(name: str) -> None:
    for seed in range(8):
        for script in drawn_scripts(seed, 2, [name]):
            for file, text in script.files.items():
                compile(text, file, "exec")
            assert (script.finding is None) is (name in CONTROLS)
            assert script.no_line or bool(script.places()) is (name in FAULTS)
