"""What the steps of one run tell of their own noise."""

from __future__ import annotations

import numpy as np
import pytest
from support.compared_runs import ar1

from trainprof.analysis.statistics.step_noise import (
    block_length,
    half_split_drift,
    standard_error,
    t_quantile,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 10, 2.2281),
        (0.95, 5, 2.0150),
        (0.995, 30, 2.7500),
        (0.975, 1e9, 1.9623),  # of 1000 degrees: no worse than 0.2 % from the normal 1.9600
    ],
)
def test_quantiles_of_student_are_those_of_the_tables(probability, degrees, quantile):
    assert t_quantile(probability, degrees) == pytest.approx(quantile, abs=2e-4)


def test_steps_that_are_alike_are_drawn_in_longer_blocks() -> None:
    random = np.random.default_rng(3)
    independent = block_length(random.normal(size=1000) + 10)
    assert independent == 32  # the square root of 1000
    assert block_length(ar1(random, 1000, alike=0.95)) > 1.2 * independent
    assert block_length(np.arange(1000.0)) == 166  # at least six blocks
    assert block_length(np.ones(400)) == 20


def test_blocks_are_whole_cycles_of_workers() -> None:
    steps = np.tile([1.0, 1.0, 7.0], 100)
    assert block_length(steps, cycle=3) % 3 == 0
    assert standard_error(steps, cycle=3) < 1e-9  # each whole cycle has the same mean
    # Also where so few steps are left that six blocks of a cycle are more than there are.
    assert block_length(np.tile([1.0] * 7 + [40.0], 5), cycle=8) == 8
    assert block_length(np.tile([1.0, 1.0, 7.0], 8), cycle=3) == 3
    assert block_length(np.ones(12), cycle=8) == 2  # not even two cycles


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
def test_the_mean_is_as_uncertain_as_the_process_that_made_the_steps(alike: float) -> None:
    random = np.random.default_rng(11)
    runs = [ar1(random, 800, alike=alike) for _ in range(150)]
    truth = np.std([run.mean() for run in runs])
    error = np.mean([standard_error(run) for run in runs[:40]])
    # A few percent less for blocks that end, a few more for Student's t.
    assert 0.8 < error / truth < 1.35


def test_a_drift_inside_a_run_is_found_and_noise_is_none() -> None:
    random = np.random.default_rng(2)
    flat = ar1(random, 400)
    assert half_split_drift(flat) == 0
    later = np.concatenate([flat[:200], flat[200:] * 1.2])
    assert half_split_drift(later) == pytest.approx(np.log(1.2), abs=0.03)
