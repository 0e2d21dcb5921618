"""Steady steps: warm-up, borders, full buffers, whole cycles of workers; and outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.events import LEARNS, MS, US, FakeRun
from support.loops import Loop

from trainprof.analysis.timeline.steady_state import MAX_LISTED, MIN_STEADY_STEPS, steady_steps
from trainprof.record.schema import Kind


def steady(wall, border=(), buffered=(), cycle=1):
    def mask(places):
        chosen = np.zeros(len(wall), dtype=bool)
        chosen[list(places)] = True
        return chosen

    return steady_steps(
        np.array(wall, dtype=np.int64), border=mask(border), buffered=mask(buffered), cycle=cycle
    )


@pytest.mark.parametrize(
    ("wall", "border", "least", "most"),
    [
        pytest.param([100] * 50, [], 1, 1, id="the first step alone"),
        pytest.param([5000, 900, 400, 300, 250, 220, 200, 180, *[100] * 92], [], 6, 8, id="slow"),
        pytest.param([1000] * 300 + [100] * 700, [], 298, 300, id="late in the first half"),
        pytest.param([1000] * 40_000 + [100] * 60_000, [], 39_998, 40_000, id="block by block"),
        pytest.param([1000] * 60 + [10] * 40, [], 1, 25, id="in the second half"),
        pytest.param([900, 800, 700, *[100] * 60], [0], 3, 3, id="past borders"),
        pytest.param([900, *[100] * 60], [0], 1, 1, id="at a border"),
        pytest.param([900, 300, *[100] * 8], [0], 2, 2, id="of few steps"),
        pytest.param([900, 800, 700, *[100] * 5], [], 2, 2, id="six are left"),
    ],
)
def test_warm_up(wall, border, least, most):
    steps = steady(wall, border=border)
    assert least <= steps.warmup <= most
    assert steps.mask.sum() == len(wall) - steps.warmup


@pytest.mark.parametrize(
    ("count", "border", "buffered", "cycle", "kept"),
    [
        (100, [0, 50], range(50, 58), 1, 99 - 8),
        # Kept where too few would remain.
        (30, [10], range(1, 28), 1, 28),
        (30, range(1, 28), [], 1, 29),
        # Whole cycles of workers, but not at the price of a verdict.
        (48, [], [], 4, 44),
        (22, [], [], 8, 21),
        # Of few steps the first is enough of a warm-up, and each rule leaves six.
        (7, [], [], 1, 6),
        (12, [0, 6], range(5), 1, 6),
        (12, [0, 6], range(6), 1, 10),
        (9, [0, 3, 6], [], 1, 6),
        (8, [0, 3, 6], [], 1, 7),
        (11, [], [], 4, 8),
    ],
)
def test_what_is_left_out_of_even_steps(count, border, buffered, cycle, kept):
    mask = steady([100] * count, border, buffered, cycle).mask
    assert mask.sum() == kept
    if cycle == 4:
        assert not mask[-((count - 1) % 4) :].any()
    if count == 100:
        assert not mask[50:58].any()


@given(st.lists(st.integers(1, 10**9), max_size=60), st.integers(1, 9))
def test_any_series_has_a_mask_of_its_length(wall, cycle):
    steps = steady(wall, cycle=cycle)
    assert len(steps.mask) == len(wall)
    assert not steps.mask[: steps.warmup].any()
    assert steps.mask.sum() >= min(MIN_STEADY_STEPS, len(wall) - steps.warmup)


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
    training = run.summary(tmp_path).training
    assert training.steps == 120
    assert training.step_s.min == training.step_s.max == pytest.approx(4.55e-3)
    assert training.steady_steps % 2 == 0


def test_steady_figures_leave_evaluation_out(tmp_path):
    loop = "i1 3( 10( n1 l ) [ i2 50( n2 f0 ) s2 ] 10( n1 l ) )"
    summary = Loop().play(loop).run.summary(tmp_path)
    assert summary.training.step_s.max == pytest.approx(650e-6)
    assert summary.outliers == []


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 6])
def test_a_short_run_has_figures_and_no_verdict(tmp_path, steps):
    summary = Loop().play(f"i1 {steps}( n1 l ) s1").run.summary(tmp_path)
    assert summary.training.steps == steps
    assert 1 <= summary.training.steady_steps < MIN_STEADY_STEPS
    assert summary.verdict.bottleneck == "unknown"


def run_with(slow, tmp_path, steps=60, backward=2 * MS):
    """Steps of 5 ms; `slow` maps a step to (kind, further ns)."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(steps):
        kind, extra = slow.get(step, (None, 0))
        run.next(loader, MS + (extra if kind == "data_wait" else 0))
        run.forward(MS + (extra if kind == "forward" else 0), flags=LEARNS)
        run.backward(backward)
        if kind == "checkpoint":
            run.leaf(Kind.CHECKPOINT_SAVE, extra)
        if kind == "other":
            run.passes_time(extra)
        run.update(optimizer, MS)
    run.stop(loader)
    return run.summary(tmp_path)


def test_outliers_take_twice_the_median_and_ten_milliseconds_more(tmp_path):
    slow = {30: ("forward", 10 * MS), 40: ("forward", 10 * MS - 1), 50: ("forward", 6 * MS)}
    (outlier,) = run_with(slow, tmp_path).outliers
    assert (outlier.step, outlier.epoch, outlier.grew) == (30, 0, "forward")
    assert outlier.seconds == pytest.approx(0.015)
    assert outlier.grew_s == pytest.approx(0.010)
    assert outlier.start_s == pytest.approx((10 * US + 30 * 5 * MS) / 1e9)
    long_steps = run_with({30: ("forward", 20 * MS)}, tmp_path / "long", backward=30 * MS)
    assert long_steps.outliers == []


@pytest.mark.parametrize("key", ["data_wait", "forward", "checkpoint", "other"])
def test_what_grew_is_named(tmp_path, key):
    assert run_with({30: (key, 20 * MS)}, tmp_path).outliers[0].grew == key


@pytest.mark.parametrize(("places", "every"), [(range(9, 60, 10), 10), ((7, 12, 31, 50), None)])
def test_regular_spacing_is_noted_and_the_longest_comes_first(tmp_path, places, every):
    slow = {step: ("checkpoint", (20 + step) * MS) for step in places}
    outliers = run_with(slow, tmp_path).outliers
    assert [outlier.step for outlier in outliers] == sorted(places, reverse=True)
    assert {outlier.every for outlier in outliers} == {every}


def test_of_very_many_the_longest_are_listed_and_all_are_counted(tmp_path):
    """As where every fifth step of a GAN updates the other network as well."""
    slow = {step: ("forward", 20 * MS + step * US) for step in range(9, 700, 5)}
    summary = run_with(slow, tmp_path, steps=700)
    assert (summary.outlier_count, len(summary.outliers)) == (len(slow), MAX_LISTED)
    assert [x.step for x in summary.outliers] == sorted(slow, reverse=True)[:MAX_LISTED]
    assert summary.outliers_in_all == len(slow)
    # Older runs lack the count.
    assert replace(summary, outlier_count=None).outliers_in_all == MAX_LISTED


def test_the_first_step_of_an_epoch_is_no_outlier(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    for _ in range(3):
        run.iterate(loader)
        for batch in range(20):
            run.next(loader, 80 * MS if batch == 0 else MS)
            run.learn(optimizer)
        run.stop(loader)
    assert run.summary(tmp_path).outliers == []
