"""Warm-up, borders, full buffers, whole cycles of workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.events import MS, US, FakeRun

from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS, steady_steps


def steady(wall, border=(), buffered=(), cycle=1):
    def mask(places):
        chosen = np.zeros(len(wall), dtype=bool)
        chosen[list(places)] = True
        return chosen

    return steady_steps(
        np.array(wall, dtype=np.int64), border=mask(border), buffered=mask(buffered), cycle=cycle
    )


def test_a_constant_series_loses_its_first_step_alone():
    found = steady([100] * 50)
    assert found.warmup == 1
    assert found.mask.sum() == 49


def test_slow_first_steps_are_warm_up():
    found = steady([5000, 900, 400, 300, 250, 220, 200, 180, *[100] * 92])
    assert 6 <= found.warmup <= 8
    assert found.mask.sum() == 100 - found.warmup


def test_a_change_late_in_the_first_half_is_found():
    found = steady([1000] * 300 + [100] * 700)
    assert 298 <= found.warmup <= 300


def test_a_long_series_that_never_settles_early_is_found_block_by_block():
    found = steady([1000] * 40_000 + [100] * 60_000)
    assert 39_998 <= found.warmup <= 40_000


def test_a_series_that_settles_only_in_its_second_half_loses_a_quarter():
    assert steady([1000] * 60 + [10] * 40).warmup in (1, 25)


def test_borders_and_buffered_steps_are_left_out():
    found = steady([100] * 100, border=[0, 50], buffered=range(50, 58))
    assert not found.mask[50:58].any()
    assert found.mask.sum() == 99 - 8


def test_they_are_kept_where_too_few_would_remain():
    assert steady([100] * 30, border=[10], buffered=range(1, 28)).mask.sum() == 28
    assert steady([100] * 30, border=range(1, 28)).mask.sum() == 29


def test_warm_up_is_counted_past_borders():
    assert steady([900, 800, 700, *[100] * 60], border=[0]).warmup == 3
    assert steady([900, *[100] * 60], border=[0]).warmup == 1


def test_whole_cycles_of_workers():
    found = steady([100] * 48, cycle=4)
    assert found.mask.sum() == 44
    assert not found.mask[-3:].any()


def test_a_cycle_is_not_kept_whole_at_the_price_of_a_verdict():
    assert steady([100] * 22, cycle=8).mask.sum() == 21


@given(st.lists(st.integers(1, 10**9), max_size=60), st.integers(1, 9))
def test_any_series_has_a_mask_of_its_length(wall, cycle):
    found = steady(wall, cycle=cycle)
    assert len(found.mask) == len(wall)
    assert not found.mask[: found.warmup].any()
    assert found.mask.sum() >= min(MIN_STEADY_STEPS, len(wall) - found.warmup)


def test_batches_piled_up_by_workers_are_not_steady(tmp_path):
    run = FakeRun()
    loader = run.loader(1, num_workers=2, prefetch_factor=2)
    validation, optimizer = run.loader(2), run.optimizer()
    for _ in range(3):
        run.iterate(loader)
        for batch in range(40):
            run.next(loader, 10 * US if batch < 4 else 4 * MS)
            run.learn(optimizer)
        run.stop(loader)
        run.evaluation_pass(validation, 2)
    found = run.summary(tmp_path).training
    assert found.steps == 120
    assert found.step_s.min == found.step_s.max == pytest.approx(4.55e-3)
    assert found.steady_steps % 2 == 0


def test_steady_figures_leave_evaluation_out(tmp_path):
    run = FakeRun()
    loader, validation, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(loader)
    for step in range(60):
        run.next(loader)
        run.learn(optimizer)
        if step % 20 == 10:
            run.evaluation_pass(validation, 50)
    found = run.summary(tmp_path)
    assert found.training.step_s.max == pytest.approx(650e-6)
    assert found.outliers == []


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 19])
def test_a_short_run_has_figures_and_no_verdict(tmp_path, steps):
    run = FakeRun()
    run.train_pass(run.loader(), run.optimizer(), steps)
    found = run.summary(tmp_path)
    assert found.training.steps == steps
    assert 1 <= found.training.steady_steps < 20
    assert found.verdict.bottleneck == "unknown"
    assert "NOT ENOUGH DATA" in found.verdict.headline
    assert "20 are needed" in found.verdict.headline
