"""How fast a run trains, starts of passes included: against recordings that have them planted."""

from __future__ import annotations

import numpy as np
import pytest
from support.compared_runs import ended_early, read, recorded
from support.events import MS, US

from trainprof.analysis.statistics.speedup import Pace

# Of a step as `recorded` makes it: wait, forward, and the rest of learning.
STEP_S = (2 * MS + 1 * MS + 300 * US + 50 * US) / 1e9
START_S = 0.060


def run_of(tmp_path, *, steps, passes, start=60 * MS, between=0):
    return read(
        recorded(
            tmp_path,
            "run",
            forwards=[1 * MS] * steps,
            wait=2 * MS,
            passes=passes,
            start=start,
            between=between,
        )
    )


WITH_STARTS_S = STEP_S + START_S / 12


@pytest.mark.parametrize(
    ("how", "length", "mean_s"),
    [
        # Starts of passes are spread over their steps.
        ({"steps": 120, "passes": 10}, ..., WITH_STARTS_S),
        # Ended in its first pass: it starts as often as passes would, if their length is known.
        ({"steps": 60, "passes": 1}, 300, STEP_S + START_S / 300),
        ({"steps": 60, "passes": 1}, None, STEP_S),
        # Its loader has far more batches, which no pass ever asks for.
        ({"steps": 120, "passes": 10}, 5000, WITH_STARTS_S),
        # Checkpoints and plots between passes are no starts.
        ({"steps": 120, "passes": 10, "between": 1000 * MS}, ..., WITH_STARTS_S),
        ({"steps": 120, "passes": 10, "between": 1000 * MS}, 12, WITH_STARTS_S),
    ],
)
def test_starts_of_passes_are_spread_over_their_steps(tmp_path, how, length, mean_s):
    run = run_of(tmp_path, **how)
    assert run.pace().mean_s == pytest.approx(STEP_S)
    ended = run if length is ... else ended_early(run, length=length)
    assert ended.training_pace().mean_s == pytest.approx(mean_s, rel=0.02)


def test_what_starts_add_does_not_grow_where_the_last_pass_was_cut(tmp_path):
    forwards = [1 * MS] * 48
    cut = recorded(tmp_path, "run", forwards=forwards, wait=2 * MS, passes=4, start=60 * MS, cut=11)
    run = ended_early(read(cut), length=12)
    for pace in (run.later_pace(), run.training_pace()):
        assert pace.mean_s == pytest.approx(STEP_S + START_S / 12, rel=0.02)


def test_starts_that_differ_make_the_mean_less_sure():
    steps_s = np.full(100, 0.002)

    def error_s(*starts_s: float) -> float:
        return 0.003 * Pace(0.003, steps_s, starts_s=np.array(starts_s)).error()

    assert error_s(*[0.0, 0.002] * 4) > 1.5 * error_s(*[0.001] * 8) > 0
    # Two tell hardly more than one, and no single one is certain.
    assert error_s(*[0.001] * 8) < error_s(0.0009, 0.0011) < error_s(0.001)
    # By hand: 0.3 of it, known as if by four; Student's t of three degrees of freedom is 3.18.
    assert error_s(0.001) == pytest.approx(0.0003 * 3.182446 / 1.959964, rel=1e-3)
