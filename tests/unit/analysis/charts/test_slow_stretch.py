"""The slow stretch of a run: planted waits, an outlier, an even run, warm-up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import charts

from trainprof.analysis.charts.slow_stretch import slow_stretch
from trainprof.analysis.summary.charts import StepBins

BINS = 40


def waiting(waits_s: dict[int, float]) -> StepBins:
    """Returns bins of ten steps of 0.1 s; some bins wait longer for data, in seconds a step."""
    steps = charts.charts(bins=BINS).steps
    assert steps is not None
    more = np.zeros(BINS)
    more[list(waits_s)] = list(waits_s.values())
    parts = steps.parts_s | {"data_wait": steps.parts_s["data_wait"] + 10 * more}
    p50_s = (steps.p50_s + more).astype(np.float32)
    return replace(steps, total_s=steps.total_s + 10 * more, p50_s=p50_s, parts_s=parts)


def test_the_planted_stretch_is_found():
    slow = slow_stretch(waiting(dict.fromkeys(range(20, 25), 0.3)), warmup=0)
    assert slow is not None
    assert (slow.first, slow.last, slow.part) == (200, 249, "data_wait")
    assert (slow.start_s, slow.end_s) == (20.0, 25.0)
    assert (slow.mean_s, slow.other_s, slow.part_s) == pytest.approx((0.4, 0.1, 0.3))


def test_even_steps_and_warm_up_are_not_slow():
    assert slow_stretch(waiting({}), warmup=0) is None
    assert slow_stretch(waiting(dict.fromkeys(range(4), 0.3)), warmup=40) is None


def test_a_long_step_among_usual_ones_is_no_stretch():
    steps = waiting({20: 0.3})
    usual = charts.charts(bins=BINS).steps
    assert usual is not None
    assert slow_stretch(replace(steps, p50_s=usual.p50_s), warmup=0) is None
