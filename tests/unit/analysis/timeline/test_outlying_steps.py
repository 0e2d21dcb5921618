"""Steps that take much longer than the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.timeline.steady_state import MAX_LISTED
from trainprof.record.schema import Kind


def run_with(slow, steps=60, tmp_path=None):
    """Steps of 5 ms; `slow` maps a step to (kind, further ns)."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(steps):
        kind, extra = slow.get(step, (None, 0))
        run.next(loader, MS + (extra if kind == "data_wait" else 0))
        run.forward(MS + (extra if kind == "forward" else 0), flags=LEARNS)
        run.backward(2 * MS)
        if kind == "checkpoint":
            run.leaf(Kind.CHECKPOINT_SAVE, extra)
        if kind == "other":
            run.passes_time(extra)
        run.update(optimizer, MS)
    run.stop(loader)
    return run.summary(tmp_path)


def test_twice_the_median_and_ten_milliseconds_more(tmp_path):
    found = run_with(
        {30: ("forward", 10 * MS), 40: ("forward", 10 * MS - 1), 50: ("forward", 6 * MS)},
        tmp_path=tmp_path,
    )
    (outlier,) = found.outliers
    assert (outlier.step, outlier.epoch, outlier.grew) == (30, 0, "forward")
    assert outlier.seconds == pytest.approx(0.015)
    assert outlier.grew_s == pytest.approx(0.010)
    assert outlier.start_s == pytest.approx((10 * US + 30 * 5 * MS) / 1e9)


def test_ten_milliseconds_alone_are_not_enough(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(40):
        run.next(loader)
        run.learn(optimizer, backward=50 * MS if step == 30 else 30 * MS)
    assert run.summary(tmp_path).outliers == []


@pytest.mark.parametrize("key", ["data_wait", "forward", "checkpoint", "other"])
def test_what_grew_is_named(tmp_path, key):
    assert run_with({30: (key, 20 * MS)}, tmp_path=tmp_path).outliers[0].grew == key


def test_regular_spacing_is_noted_and_the_longest_comes_first(tmp_path):
    slow = {step: ("checkpoint", (20 + step) * MS) for step in range(9, 60, 10)}
    found = run_with(slow, tmp_path=tmp_path).outliers
    assert [o.step for o in found] == [59, 49, 39, 29, 19, 9]
    assert {o.every for o in found} == {10}


def test_of_very_many_the_longest_are_listed_and_all_are_counted(tmp_path):
    """As where every fifth step of a GAN updates the other network as well."""
    slow = {step: ("forward", 20 * MS + step * US) for step in range(9, 700, 5)}
    found = run_with(slow, steps=700, tmp_path=tmp_path)
    assert (found.outlier_count, len(found.outliers)) == (len(slow), MAX_LISTED)
    assert [o.step for o in found.outliers] == sorted(slow, reverse=True)[:MAX_LISTED]
    assert found.outliers_in_all == len(slow)
    # Older runs do not tell.
    assert replace(found, outlier_count=None).outliers_in_all == MAX_LISTED


def test_irregular_ones_have_no_spacing(tmp_path):
    slow = dict.fromkeys((7, 12, 31, 50), ("forward", 20 * MS))
    assert {o.every for o in run_with(slow, tmp_path=tmp_path).outliers} == {None}


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
