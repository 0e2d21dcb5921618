"""Optimizers that could be fused, and backwards that grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of
from support.found import found, hot_line, looped, only

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import LIKELY, OTHER_OPTIMIZERS
from trainprof.analysis.torch_settings import LoopedOptimizer, OwnOptimizer, TorchSettings


def with_steps(
    case: Case, backward_s: Any, forward_s: Any = 0.001, *, other_s: Any = 0.0, wall_s: Any = None
) -> Case:
    """Returns a case whose steady steps' backwards, forwards and other code took so long."""
    steady = np.flatnonzero(case.steps.steady.mask)
    if wall_s is not None:
        wall_ns = case.steps.wall_ns.copy()
        wall_ns[steady] = np.resize(np.asarray(wall_s, dtype=float), len(steady)) * 1e9
        case = replace(case, steps=replace(case.steps, wall_ns=wall_ns))
    columns = {}
    for name, took in (("backward", backward_s), ("forward", forward_s), ("other", other_s)):
        column = np.zeros(len(case.steps), dtype=np.int64)
        column[steady] = np.resize(np.asarray(took, dtype=float), len(steady)) * 1e9
        columns[name] = column
    steps = replace(case.steps, per_step={**case.steps.per_step, **columns})
    spent = {name: float(column.sum() / 1e9) for name, column in columns.items()}
    return replace(case, steps=steps, training={**case.training, **spent})


def test_a_backward_that_goes_through_earlier_steps_grows() -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03))
    each_epoch = np.linspace(0.002, 0.050, 60)
    finding = only(with_steps(healthy, each_epoch))
    assert finding.id == "growing_backward"
    assert "state.detach()" in finding.advice
    assert finding.evidence["times"] == pytest.approx(44.6 / 6.4, rel=0.15)
    assert finding.is_at_most


def test_on_a_device_whole_steps_have_to_grow_as_well() -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03), device="cuda:0")
    longer = np.linspace(0.002, 0.050, STEPS)
    case = with_steps(healthy, longer, wall_s=longer + 0.05)
    [finding] = [one for one in diagnose(case).findings if one.id == "growing_backward"]
    # 26 ms of a step of 76 in the mean are beyond the 50 of the beginning.
    assert finding.recoverable_s == pytest.approx(0.024 * STEPS, rel=0.1)
    assert "growing_backward" not in found(with_steps(healthy, longer, wall_s=0.1))


def test_a_backward_grows_all_the_same_where_the_clock_changes() -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03))
    noise = np.random.default_rng(2).uniform(0.9, 1.1, STEPS)
    clock = np.where((np.arange(STEPS) > 80) & (np.arange(STEPS) < 120), 0.7, 1.0)
    finding = only(with_steps(healthy, np.linspace(0.002, 0.050, STEPS) * clock * noise))
    assert finding.id == "growing_backward"


@pytest.mark.parametrize(
    ("backward_s", "forward_s", "other_s"),
    [
        (0.02, 0.001, 0.0),
        (np.linspace(0.015, 0.025, 60), 0.001, 0.0),  # warms up
        (np.linspace(0.002, 0.050, 60), np.linspace(0.001, 0.025, 60), 0.0),  # longer batches
        (np.linspace(0.002, 0.050, 60), 0.001, np.linspace(0.001, 0.025, 60)),  # a bank fills
        (np.random.default_rng(1).uniform(0.002, 0.05, STEPS), 0.001, 0.0),  # by chance
        (np.linspace(0.050, 0.002, 60), 0.001, 0.0),  # gets shorter
        ([0.002] * 9 + [0.05], 0.001, 0.0),  # another loss each tenth step
    ],
)
def test_a_backward_that_differs_otherwise_is_left_alone(
    backward_s: Any, forward_s: Any, other_s: Any
) -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03))
    case = with_steps(healthy, backward_s, forward_s, other_s=other_s)
    assert "growing_backward" not in found(case)


def test_an_optimizer_that_could_be_fused() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(healthy, parts={"optimizer": 1.0}, torch=looped()))
    assert (finding.id, finding.site, finding.change) == (
        "slow_optimizer",
        "train.py:60",
        {"fused": True},
    )
    # A third of training, of which 0.4 to 0.9 were seen to go.
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.4 / 3), rel=0.05)
    assert high == pytest.approx(1 / (1 - 0.9 / 3), rel=0.05)


@pytest.mark.parametrize(
    ("settings", "spent_s"),
    [
        pytest.param(TorchSettings(), 1.0, id="fused, foreach, or no optimizer of torch's"),
        pytest.param(looped("Muon"), 1.0, id="nobody knows what fusing it gives"),
        pytest.param(looped(spent_s=0.2), 0.2, id="a small part"),
        pytest.param(looped(spent_s=0.2), 1.0, id="others, or clipping, take the time"),
    ],
)
def test_an_optimizer_that_is_left_alone(settings: TorchSettings, spent_s: float) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    assert found(case_of(healthy, parts={"optimizer": spent_s}, torch=settings)) == []


def several(*optimizers: LoopedOptimizer) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    settings = TorchSettings(looped=list(optimizers), optimizers=len(optimizers))
    return case_of(healthy, parts={"optimizer": 1.0}, torch=settings)


def test_optimizers_that_could_be_fused_are_named_with_all_their_lines() -> None:
    finding = only(
        several(
            LoopedOptimizer("Adam", 30, "gan.py:60", spent_s=0.4),
            LoopedOptimizer("Adam", 50, "gan.py:61", spent_s=0.6),
        )
    )
    assert finding.title.startswith("2 optimizers (Adam) change 80 parameters one by one: 1.00 s,")
    assert finding.site == "gan.py:61"
    assert finding.advice == "torch.optim.Adam(..., fused=True), and so at gan.py:60 (Adam)"
    assert finding.evidence[OTHER_OPTIMIZERS] == ["Adam gan.py:60"]
    alone = only(several(LoopedOptimizer("Adam", 80, "gan.py:61", spent_s=1.0)))
    assert finding.predicted_speedup == pytest.approx(alone.predicted_speedup)


def test_each_optimizer_saves_what_its_class_does() -> None:
    finding = only(
        several(
            LoopedOptimizer("AdamW", 30, "train.py:60", spent_s=0.5),
            LoopedOptimizer("SGD", 30, "train.py:60", spent_s=0.5),
            LoopedOptimizer("Muon", 90, "train.py:62", spent_s=0.9),
        )
    )
    assert finding.title.startswith("AdamW and SGD change 60 parameters one by one: 1.00 s,")
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.3 / 3), rel=0.05)
    assert high == pytest.approx(1 / (1 - 0.825 / 3), rel=0.05)


def test_one_that_is_built_for_each_task_is_named_once() -> None:
    tasks = [LoopedOptimizer("Adam", 30, "tasks.py:6", spent_s=0.125) for _ in range(8)]
    finding = only(several(*tasks))
    assert finding.title.startswith("Adam changes 30 parameters one by one: 1.00 s,")
    assert finding.evidence[OTHER_OPTIMIZERS] is None


def test_time_that_is_anothers_is_not_blamed_on_an_optimizer_that_could_be_fused() -> None:
    finding = only(several(LoopedOptimizer("AdamW", 40, "train.py:60", spent_s=0.4)))
    assert finding.evidence["optimizer_s"] == 0.4
    _, high = finding.predicted_speedup or (0.0, 0.0)
    assert high == pytest.approx(1 / (1 - 0.4 * 0.9 / 3), rel=0.05)


def own(tensors: int = 60, optimizers: int = 1, spent_s: float = 1.0) -> TorchSettings:
    one = OwnOptimizer("Lion", tensors, "lion.py:9", spent_s)
    return TorchSettings(own=[one], optimizers=optimizers)


def test_an_optimizer_that_the_script_wrote_with_a_loop() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"optimizer": 1.0}, torch=own())
    met = replace(hot_line("optimizer"), site="lion.py:14", function="step")
    finding = only(replace(case, summary=replace(case.summary, part_lines=[met])))
    assert finding.also == ["its line that was met most is lion.py:14 (step)"]
    assert (finding.id, finding.site, finding.change) == ("slow_optimizer", "lion.py:9", {})
    assert finding.title.startswith("Lion, written in the script, changes 60 parameters one by one")
    assert finding.is_at_most
    assert finding.evidence[LIKELY] == pytest.approx(1 / (1 - 0.9 / 3), rel=0.05)


@pytest.mark.parametrize(
    ("settings", "spent_s"),
    [
        pytest.param(own(spent_s=0.1), 0.1, id="a small part"),
        pytest.param(own(spent_s=0.1), 1.0, id="clipping takes the time"),
        pytest.param(own(4), 1.0, id="few parameters"),
        pytest.param(own(12, spent_s=3.0), 3.0, id="large: it is the numbers that take the time"),
        pytest.param(own(optimizers=2), 1.0, id="another one, that may take it"),
    ],
)
def test_an_optimizer_of_the_scripts_that_is_left_alone(
    settings: TorchSettings, spent_s: float
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    assert found(case_of(healthy, parts={"optimizer": spent_s}, torch=settings)) == []
