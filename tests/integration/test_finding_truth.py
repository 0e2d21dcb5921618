"""Scripts made to order, run: the planted fault is the first finding, and healthy ones have none.

benchmarks/finding_truth.py makes them, and runs many more.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from finding_truth import cases, judged
from planted.script import MAIN, Case
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
    "launch_bound": 3,
    "python_on_device": 3,
}

pytestmark = pytest.mark.truth
NEEDS_COMPILER = ("torch.compile", "torch.utils.checkpoint", "DistributedDataParallel")


def made(name: str) -> Case:
    """Returns the last case of that name: of a fault, one with a random size."""
    *_, case = cases(SEEDS[name], 2, [name])
    if not any(word in case.files[MAIN] for word in NEEDS_COMPILER):
        case.files[MAIN] = without_compiler(case.files[MAIN])
    return case


def named(name: str) -> Any:
    """Returns the name as a parameter, skipped where its case needs a package that is missing."""
    is_of_accelerate = made(name).style == "accelerate"
    return (
        pytest.param(name, marks=pytest.mark.frameworks("accelerate")) if is_of_accelerate else name
    )


@pytest.mark.parametrize("name", [named(name) for name in SEEDS])
def test_what_is_planted_is_found_and_nothing_else(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = made(name)
    if "import simgpu" in case.files[MAIN] and shutil.which("g++") is None:
        pytest.skip("the simulated device needs a compiler")
    for attempt in attempts():  # the machine is not ours alone
        folder = tmp_path / str(attempt)
        folder.mkdir()
        # Beside all workers' directories: the simulated device is built once.
        told = judged(case, folder, tmp_path_factory.getbasetemp().parent)
        if told.is_right:
            break
    assert [one["id"] for one in told.findings][:1] == ([case.finding] if case.finding else [])
    assert told.is_at_place, told.findings[0]["site"]


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
    "numpy": (
        """\
    values = out.detach().numpy()
    for _ in range(40):  # here
        values = numpy.sort(numpy.exp(-values * values), axis=1) + values  # here
    return out.square().mean() + 0 * float(values[0, 0])  # here
""",
        True,
    ),
    "python": (
        """\
    total = 0.0
    for value in out.detach().flatten().tolist():  # here
        total += abs(value) ** 0.5  # here
    return out.square().mean() + 0 * total
""",
        True,
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
    case = Case(name, "by hand", "plain", {MAIN: text}, "python_in_loop" if is_found else None)
    for attempt in attempts():
        folder = tmp_path / str(attempt)
        folder.mkdir()
        told = judged(case, folder)
        if told.is_right:
            break
    ids = [one["id"] for one in told.findings]
    assert ("python_in_loop" in ids) is is_found
    if is_found:
        assert ids[0] == "python_in_loop"
        assert told.is_at_place, told.findings[0]["site"]


def test_the_same_seed_makes_the_same_scripts() -> None:
    assert list(cases(3, 2)) == list(cases(3, 2))
    other = [case.planted for case in cases(4, 2) if case.finding]
    assert other != [case.planted for case in cases(3, 2) if case.finding]
