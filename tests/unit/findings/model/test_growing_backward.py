"""Backwards that grow from step to step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from support.cases import STEPS, Planted, case_of
from support.findings import is_silent, reports, row

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


GROWS: dict[str, Any] = {"times": 44.6 / 6.4, "rel": 0.2, "is_at_most": True, "is_only": False}
# 26 ms of a step of 76 in the mean are beyond the 50 of the beginning.
OF_STEPS = (0.9 * 0.024 * STEPS, 1.1 * 0.024 * STEPS)

test_growing_backward = reports(
    "growing_backward",
    {
        "again in each epoch": row(with_steps(EACH_EPOCH), None, **GROWS),
        "while the clock changes": row(with_steps(LONGER * CLOCK * NOISE), None, **GROWS),
        "steps of a device too": row(
            with_steps(LONGER, LONGER + 0.05, "cuda:0"), None, saved_s=OF_STEPS, **GROWS
        ),
    },
)

test_a_backward_that_differs_otherwise = is_silent(
    "growing_backward",
    {
        "stays": with_steps(0.02),
        "longer batches": with_steps(EACH_EPOCH, forward=EACH_EPOCH / 2),
        "a bank fills": with_steps(EACH_EPOCH, other=EACH_EPOCH / 2),
        "by chance": with_steps(np.random.default_rng(1).uniform(0.002, 0.05, STEPS)),
        "another loss each tenth step": with_steps([0.002] * 9 + [0.05]),
        "steps of a device stay": with_steps(LONGER, 0.1, "cuda:0"),
    },
)
