"""Backwards that grow from step to step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of
from support.findings import finding_of

from trainprof.findings.run_context import RunContext

LONGER = np.linspace(0.002, 0.050, STEPS)
EACH_EPOCH = np.linspace(0.002, 0.050, 60)
NOISE = np.random.default_rng(2).uniform(0.9, 1.1, STEPS)
CLOCK = np.where((np.arange(STEPS) > 80) & (np.arange(STEPS) < 120), 0.7, 1.0)


def with_steps(
    backward_s: Any, wall_s: Any = None, device: str = "cpu", **others_s: Any
) -> RunContext:
    """A run whose steady steps' backwards, forwards and other code took so long."""
    context = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03), device=device)
    steady = np.flatnonzero(context.steps.steady.mask)

    def of_steps(took_s: Any, before: Any) -> Any:
        column = before.copy()
        column[steady] = np.resize(np.asarray(took_s, dtype=float), len(steady)) * 1e9
        return column

    wall_ns, nothing = context.steps.wall_ns, np.zeros(len(context.steps), dtype=np.int64)
    each_s = {"backward": backward_s, "forward": 0.001, "other": 0.0, **others_s}
    columns = {name: of_steps(took_s, nothing) for name, took_s in each_s.items()}
    steps = replace(
        context.steps,
        wall_ns=wall_ns if wall_s is None else of_steps(wall_s, wall_ns),
        per_step={**context.steps.per_step, **columns},
    )
    spent_s = {name: float(column.sum() / 1e9) for name, column in columns.items()}
    return replace(context, steps=steps, training={**context.training, **spent_s})


@pytest.mark.parametrize(
    ("context", "saved_s"),
    [
        pytest.param(with_steps(EACH_EPOCH), None, id="again in each epoch"),
        pytest.param(with_steps(LONGER * CLOCK * NOISE), None, id="while the clock changes"),
        # 26 ms of a step of 76 in the mean are beyond the 50 of the beginning.
        pytest.param(
            with_steps(LONGER, LONGER + 0.05, "cuda:0"), 0.024 * STEPS, id="steps of a device too"
        ),
    ],
)
def test_growing_backward(context: RunContext, saved_s: float | None) -> None:
    finding = finding_of("growing_backward", context)
    assert finding is not None
    assert finding.is_at_most
    assert finding.evidence["times"] == pytest.approx(44.6 / 6.4, rel=0.2)
    if saved_s is not None:
        assert finding.recoverable_s == pytest.approx(saved_s, rel=0.1)


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(with_steps(0.02), id="stays"),
        pytest.param(with_steps(np.linspace(0.015, 0.025, 60)), id="warms up"),
        pytest.param(with_steps(EACH_EPOCH, forward=EACH_EPOCH / 2), id="longer batches"),
        pytest.param(with_steps(EACH_EPOCH, other=EACH_EPOCH / 2), id="a bank fills"),
        pytest.param(
            with_steps(np.random.default_rng(1).uniform(0.002, 0.05, STEPS)), id="by chance"
        ),
        pytest.param(with_steps(EACH_EPOCH[::-1]), id="gets shorter"),
        pytest.param(with_steps([0.002] * 9 + [0.05]), id="another loss each tenth step"),
        pytest.param(with_steps(LONGER, 0.1, "cuda:0"), id="steps of a device stay"),
    ],
)
def test_a_backward_that_differs_otherwise(context: RunContext) -> None:
    assert finding_of("growing_backward", context) is None
