"""Steps that are asked for have to fit into the budget, or nothing would be known behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.planted_trials import (
    FakeRunner,
    Planted,
    plan_of,
    search_of,
    seen_steps,
    threads,
    workers,
)

from trainprof.analysis.tuning import BASELINE, OK
from trainprof.experiments.search import CannotTune
from trainprof.experiments.trial import WARM_UP, Measured, Trial
from trainprof.experiments.trial_limits import budget_for

PLANS = (workers(2), workers(4), threads(1))


@pytest.mark.parametrize(
    ("step_s", "asked", "budget_s", "needed"),
    [
        (0.2, 5000, 600.0, 101),  # 6 x 17 minutes
        (1.0, 500, 120.0, 51),
        (1.0, 50, 120.0, None),
        (0.01, 5000, 600.0, None),
    ],
)
def test_steps_that_do_not_fit_are_refused_once_that_is_known(step_s, asked, budget_s, needed):
    planted = Planted(lambda overrides: step_s, steps=100_000, start_up_s=1.0, later=(0, 1.0))
    runner = FakeRunner(planted)
    search = search_of(
        runner,
        lambda base, free_s: plan_of(*PLANS),
        budget_s=budget_s,
        trial_steps=asked,
        directory=Path("my runs/t"),
    )
    if needed is None:
        found = search.run()
        assert found.of(BASELINE)[0].steps == asked
        return
    with pytest.raises(CannotTune, match=f"--trial-steps {asked} takes too long") as refused:
        search.run()
    assert refused.value.hint.startswith(f"go on with --resume 'my runs/t' --budget {needed}m, or")
    assert runner.ran == [WARM_UP]
    assert search.found.spent_s() < budget_s / 5


def test_they_are_not_where_the_script_as_it_is_was_measured_before():
    planted = Planted(lambda overrides: 1.0, steps=100_000)
    runner = FakeRunner(planted)
    search = search_of(
        runner,
        lambda base, free_s: plan_of(*PLANS),
        budget_s=120.0,
        trial_steps=500,
        is_known=lambda trial, number: number == 1 and trial.name in (WARM_UP, BASELINE),
    )
    assert search.run().of(BASELINE)


def test_a_first_step_that_compiles_refuses_nothing():
    """A minute, and 9 steps of 2 s behind it: 85 steps take 3 minutes of 10, not 11."""
    seen = seen_steps(np.array([60.0, *[2.0] * 9]))
    run = Measured(Trial(WARM_UP), 1, "trials/warm_up", OK, None, 81.0, steps=10, training_s=78.0)
    run = replace(run, seen=seen)
    assert budget_for(85, run, 600.0) is None
    assert budget_for(160, run, 600.0) == pytest.approx(81 + 6 * (3 + 320))
    assert budget_for(160, replace(run, seen=seen_steps(np.array([60.0]))), 600.0) is None
    assert budget_for(160, replace(run, run_s=81.0), 600.0) is None
