"""Runs are compared by the same stretch of training, where later steps are of another kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.planted_trials import (
    FakeRunner,
    Planted,
    base_summary,
    plan_of,
    search_of,
    seen_steps,
    threads,
    workers,
)

from trainprof.analysis.statistics.speedup import FASTER, SLOWER, UNKNOWN
from trainprof.analysis.summary.tune import BASELINE, CEILING, OK
from trainprof.tune.measurements import Measurements
from trainprof.tune.results import summary_of_tune, trials_of
from trainprof.tune.trial import (
    Limits,
    Measured,
    Trial,
    baseline,
    ceiling,
    loader_alone,
)

SITE = "train.py:9"
WORKERS = workers(4).trial()
FREE = ceiling((SITE,), None)
# What is too little to tell, or comes to nothing.
NEAR = 0.06


def ran(
    trial: Trial, *stretches: tuple[int, float], first: int = 0, number: int = 1, seed: int = 0
) -> Measured:
    """Returns a run whose steps take what is said, each stretch a number of them and s."""
    random = np.random.default_rng([seed, number, len(trial.name)])
    counts, seconds = zip(*stretches, strict=True)
    steps_s = np.repeat(seconds, counts) * random.gamma(400.0, 1 / 400.0, size=sum(counts))
    seen = seen_steps(steps_s, first)
    paces = seen.paces()
    return Measured(
        trial,
        number,
        f"trials/{trial.name}.{number}",
        OK,
        None,
        1.0,
        pace=paces.steps,
        training_pace=paces.training,
        steps=seen.until,
        seen=seen,
    )


def found_of(*runs: Measured) -> Measurements:
    return Measurements(runs=list(runs), plan=plan_of(workers(4)))


def notes_of(found: Measurements) -> str:
    summary = summary_of_tune(base_summary(), found, name="t", directory="t", budget_s=60.0)
    return "; ".join(summary.tuning.notes)


def test_slower_steps_that_the_script_as_it_is_never_came_to_do_not_count() -> None:
    """A model is unfrozen after 200 steps: the trial saw 600 dear ones, the baseline none."""
    found = found_of(ran(baseline(), (200, 0.010)), ran(WORKERS, (200, 0.005), (600, 0.015)))
    speed = found.speedup(WORKERS)
    assert speed.verdict == FASTER
    assert speed.mid == pytest.approx(2.0, rel=NEAR)
    assert found.alike(WORKERS.name).until == 200
    assert "only the first 200 count: num_workers=4" in notes_of(found)
    (row,) = (one for one in trials_of(found) if one.name == WORKERS.name)
    assert row.steps_per_s == pytest.approx(200, rel=NEAR)


def test_what_is_quick_once_it_lies_in_memory_makes_no_setting_faster() -> None:
    found = found_of(ran(baseline(), (200, 0.010)), ran(WORKERS, (200, 0.010), (600, 0.004)))
    speed = found.speedup(WORKERS)
    assert speed.mid == pytest.approx(1.0, rel=NEAR)
    assert speed.verdict != FASTER


def test_a_trial_that_was_ended_early_is_held_against_the_steps_that_it_made() -> None:
    """Its steps are slower, but the dear ones come later."""
    base = ran(baseline(), (100, 0.004), (100, 0.016))
    found = found_of(base, ran(WORKERS, (60, 0.006)))
    speed = found.speedup(WORKERS)
    assert speed.verdict == SLOWER
    assert speed.mid == pytest.approx(2 / 3, rel=NEAR)
    # The baseline alone counts whole.
    assert found.alike(BASELINE).until is None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("later", [1.0, 0.97, 1.04])
def test_all_steps_count_where_later_ones_are_like_earlier_ones(later: float, seed: int) -> None:
    trial = ran(WORKERS, (200, 0.005), (600, 0.005 * later), seed=seed)
    found = found_of(ran(baseline(), (200, 0.010), seed=seed), trial)
    both = found.alike(WORKERS.name)
    assert both.until is None
    assert both.other[0] is trial
    assert "later steps" not in notes_of(found)


def test_a_few_more_steps_tell_of_no_other_kind() -> None:
    found = found_of(ran(baseline(), (200, 0.010)), ran(WORKERS, (200, 0.005), (10, 0.05)))
    assert found.alike(WORKERS.name).until is None


def test_what_the_pace_of_a_machine_wanders_by_is_no_other_kind() -> None:
    base, trial = ran(baseline(), (200, 0.010)), ran(WORKERS, (200, 0.005), (600, 0.0058))
    assert found_of(base, trial).alike(WORKERS.name).until == 200
    assert base.pace is not None
    virtual = replace(base, pace=replace(base.pace, wandering=0.2))
    assert found_of(virtual, trial).alike(WORKERS.name).until is None
    shared = replace(trial, disturbance=0.2)
    assert found_of(base, shared).alike(WORKERS.name).until is None


def test_where_single_steps_are_not_known_all_of_them_count() -> None:
    trial = ran(WORKERS, (200, 0.005), (600, 0.015))
    found = found_of(replace(ran(baseline(), (200, 0.010)), seen=None), trial)
    assert found.alike(WORKERS.name).until is None
    alone = replace(ran(loader_alone((SITE,)), (300, 0.005)), seen=None)
    assert found_of(ran(baseline(), (200, 0.010)), alone).alike(alone.trial.name).until is None


def test_free_data_counts_as_far_as_the_script_as_it_is_came() -> None:
    free = ran(FREE, (136, 0.006), (400, 0.018), first=64)
    found = found_of(ran(baseline(), (200, 0.010)), free)
    speed = found.speedup(FREE)
    assert speed.mid == pytest.approx(10 / 6, rel=NEAR)
    assert found.free_step_s() == pytest.approx(0.006, rel=NEAR)


@pytest.mark.parametrize("later", [1.0, 3.0])
def test_free_data_that_comes_late_tells_where_its_steps_are_all_alike(later: float) -> None:
    """The baseline was over before batches were free."""
    free = ran(FREE, (150, 0.006), (150, 0.006 * later), first=64)
    found = found_of(ran(baseline(), (60, 0.010)), free)
    speed = found.speedup(FREE)
    if later == 1.0:
        assert speed.mid == pytest.approx(10 / 6, rel=NEAR)
        assert found.free_step_s() == pytest.approx(0.006, rel=NEAR)
    else:
        assert (speed.low, speed.mid, speed.high, speed.verdict) == (None, None, None, UNKNOWN)
        assert found.free_step_s() is None
        assert "so not compared: ceiling" in notes_of(found)
        (row,) = (one for one in trials_of(found) if one.name == CEILING)
        assert row.speedup is None


class Told(FakeRunner):
    """As FakeRunner, and told besides: how large batches are, and of free data what is said."""

    def __init__(self, planted: Planted, sizes: tuple[float, float], **of_free: object) -> None:
        super().__init__(planted)
        self._sizes, self._of_free = sizes, of_free

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        found, size = super().run(trial, number, limits), self._sizes[trial.data == "free"]
        found = replace(found, batches={SITE: size})
        return replace(found, **self._of_free) if trial.data == "free" else found  # type: ignore[arg-type]


PLAN = replace(plan_of(workers(2), threads(1)), free_sites=(SITE,))


def searched(runner: FakeRunner, budget_s: float = 600.0) -> Measurements:
    return search_of(runner, lambda base, free_s: PLAN, budget_s=budget_s).run()


def not_faster() -> Planted:
    return Planted(lambda _: 0.010, free_s=0.010)


@pytest.mark.parametrize("size", [40.0, 300.0])
def test_free_data_of_other_batches_clears_no_loader(size: float) -> None:
    """Samples come sorted: the first batches are not like those that the baseline met."""
    runner = Told(not_faster(), (100.0, size))
    found = searched(runner)
    assert "num_workers=2" in runner.ran
    assert found.speedup(FREE) is None
    assert found.free_step_s() is None
    # It is not repeated: more runs of it tell no more.
    assert runner.ran.count(CEILING) == 1
    assert "not as large as later ones, so not compared: trials/ceiling.1" in notes_of(found)


@pytest.mark.parametrize("size", [100.0, 95.0, 112.0])
def test_batches_that_are_alike_or_may_be_leave_it_as_it_is(size: float) -> None:
    runner = Told(not_faster(), (100.0, size))
    found = searched(runner)
    assert "num_workers=2" not in runner.ran
    assert found.speedup(FREE) is not None


def test_free_data_that_may_be_faster_still_clears_no_loader() -> None:
    runner = Told(not_faster(), (100.0, 100.0), is_least=True)
    found = searched(runner)
    assert "num_workers=2" in runner.ran
    assert found.free_step_s() is None
    (row,) = (one for one in trials_of(found) if one.name == CEILING)
    assert (row.is_least, row.held) == (True, None)
    plain = next(one for one in trials_of(found) if one.name == BASELINE)
    assert not plain.is_least


def test_a_search_is_not_misled_by_what_comes_later_in_training() -> None:
    """From a step on that only quick trials come to they take five times as long."""
    later = 120
    planted = Planted(
        lambda o: 0.005 if o.get("num_workers") else 0.010, steps=10_000, later=(later, 5.0)
    )
    found = searched(FakeRunner(planted), 120.0)
    assert found.best.overrides == {"num_workers": 2}
    base, quick = (found.of(name)[0].steps for name in (BASELINE, found.best.name))
    assert base < later < quick - 20
    speed = found.speedup(found.best)
    assert speed.mid == pytest.approx(2.0, rel=NEAR)
