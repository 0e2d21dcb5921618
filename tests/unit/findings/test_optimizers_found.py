"""Optimizers that could be fused, and backwards that grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of
from support.found import found, only

from trainprof.analysis.model.torch_settings import LoopedOptimizer, OwnOptimizer, TorchSettings
from trainprof.analysis.summary.finding import LIKELY, OTHER_OPTIMIZERS
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext


def with_steps(
    context: RunContext,
    backward_s: Any,
    forward_s: Any = 0.001,
    *,
    other_s: Any = 0.0,
    wall_s: Any = None,
) -> RunContext:
    """Returns a case whose steady steps' backwards, forwards and other code took so long."""
    steady = np.flatnonzero(context.steps.steady.mask)
    if wall_s is not None:
        wall_ns = context.steps.wall_ns.copy()
        wall_ns[steady] = np.resize(np.asarray(wall_s, dtype=float), len(steady)) * 1e9
        context = replace(context, steps=replace(context.steps, wall_ns=wall_ns))
    columns = {}
    for name, took in (("backward", backward_s), ("forward", forward_s), ("other", other_s)):
        column = np.zeros(len(context.steps), dtype=np.int64)
        column[steady] = np.resize(np.asarray(took, dtype=float), len(steady)) * 1e9
        columns[name] = column
    steps = replace(context.steps, per_step={**context.steps.per_step, **columns})
    spent = {name: float(column.sum() / 1e9) for name, column in columns.items()}
    return replace(context, steps=steps, training={**context.training, **spent})


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
    context = with_steps(healthy, longer, wall_s=longer + 0.05)
    [finding] = [x for x in diagnose(context).findings if x.id == "growing_backward"]
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
    context = with_steps(healthy, backward_s, forward_s, other_s=other_s)
    assert "growing_backward" not in found(context)


def with_optimizers(
    *optimizers: LoopedOptimizer, spent_s: float = 1.0, own: tuple[OwnOptimizer, ...] = ()
) -> RunContext:
    """A run of 3 s, so much of it in updates."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    count = len(optimizers) + len(own)
    settings = TorchSettings(looped=list(optimizers), own=list(own), optimizers=count)
    return case_of(healthy, parts={"optimizer": spent_s}, torch=settings)


def loops(name: str, tensors: int, line: int, spent_s: float, **more: Any) -> LoopedOptimizer:
    return LoopedOptimizer(name, tensors, f"train.py:{line}", spent_s=spent_s, **more)


def lion(spent_s: float = 1.0, tensors: int = 60) -> OwnOptimizer:
    return OwnOptimizer("Lion", tensors, "lion.py:9", spent_s)


@pytest.mark.parametrize(
    ("context", "site", "others", "saved_s"),
    [
        pytest.param(
            with_optimizers(loops("AdamW", 120, 60, 1.0)), "train.py:60", None, (0.4, 0.9), id="one"
        ),
        pytest.param(
            with_optimizers(loops("Adam", 30, 60, 0.4), loops("Adam", 50, 61, 0.6)),
            "train.py:61",
            ["Adam train.py:60"],
            (0.4, 0.9),
            id="two lines",
        ),
        pytest.param(
            with_optimizers(loops("AdamW", 30, 60, 0.5), loops("SGD", 30, 60, 0.5)),
            "train.py:60",
            ["SGD train.py:60"],
            (0.3, 0.825),
            id="each by its class",
        ),
        pytest.param(
            with_optimizers(*[loops("Adam", 30, 6, 0.125)] * 8),
            "train.py:6",
            None,
            (0.4, 0.9),
            id="for each task",
        ),
        pytest.param(
            with_optimizers(loops("AdamW", 40, 60, 0.4)),
            "train.py:60",
            None,
            (0.16, 0.36),
            id="others take the rest",
        ),
        pytest.param(
            with_optimizers(loops("AdamW", 40, 60, 1.0, has_hooks=True)),
            "train.py:60",
            None,
            (0.0, 0.9),
            id="hooks may take most",
        ),
        pytest.param(with_optimizers(own=(lion(),)), "lion.py:9", None, None, id="the script's"),
    ],
)
def test_an_optimizer_that_could_be_fused(
    context: RunContext, site: str, others: list[str] | None, saved_s: tuple[float, float] | None
) -> None:
    finding = only(context)
    assert (finding.id, finding.site) == ("slow_optimizer", site)
    assert finding.evidence.get(OTHER_OPTIMIZERS) == others
    assert finding.change == ({"fused": True} if saved_s else {})
    if saved_s is None:
        assert finding.is_at_most
        assert finding.evidence[LIKELY] == pytest.approx(1 / (1 - 0.9 / 3), rel=0.05)
    else:
        expected = [1 / (1 - s / 3) for s in saved_s]
        assert finding.predicted_speedup == pytest.approx(expected, rel=0.05)
        assert finding.is_at_most is (saved_s[0] == 0)


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(with_optimizers(), id="fused, foreach, or no optimizer of torch's"),
        pytest.param(with_optimizers(loops("Muon", 120, 60, 1.0)), id="what fusing gives: unknown"),
        pytest.param(with_optimizers(loops("Adam", 9, 6, 0.2), spent_s=0.2), id="a small part"),
        pytest.param(with_optimizers(loops("Adam", 9, 6, 0.2)), id="clipping takes the time"),
        pytest.param(with_optimizers(own=(lion(0.1),)), id="own: others take the time"),
        pytest.param(with_optimizers(own=(lion(tensors=4),)), id="own: few parameters"),
        pytest.param(with_optimizers(own=(lion(3.0, 12),), spent_s=3.0), id="own: large ones"),
        pytest.param(
            with_optimizers(loops("Muon", 9, 6, 0.1), own=(lion(),)), id="own: another one"
        ),
    ],
)
def test_an_optimizer_that_is_left_alone(context: RunContext) -> None:
    assert found(context) == []
