"""Which runs are compared and which decide nothing; what speaks against a setting; repeats."""

from __future__ import annotations

from collections import Counter
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
from trainprof.analysis.summary.tune import BASELINE, CEILING, FAILED, FINISHED, LOADER_ALONE, OK
from trainprof.tune.choice import against
from trainprof.tune.measurements import Measurements
from trainprof.tune.results import summary_of_tune, trials_of
from trainprof.tune.trial import (
    WARM_UP,
    FirstEpoch,
    Measured,
    Trial,
    baseline,
    ceiling,
    loader_alone,
)
from trainprof.tune.trial_limits import limits_of
from trainprof.tune.trial_reading import DID_NOT_END

SITE = "train.py:9"
WORKERS = workers(4).trial()
FREE = ceiling((SITE,), None)
NEAR = 0.06  # what is too little to tell, or comes to nothing


def summary_of(measurements: Measurements, **loader):
    base = base_summary()
    changed = replace(base, loaders=[replace(base.loaders[0], **loader)])
    return summary_of_tune(changed, measurements, name="t", directory="t", budget_s=60.0)


def notes_of(measurements: Measurements) -> str:
    return "; ".join(summary_of(measurements).tuning.notes)


def row_of(measurements: Measurements, name: str):
    return next(row for row in trials_of(measurements) if row.name == name)


def searched(runner: FakeRunner, plan=None, **options) -> Measurements:
    options = {"budget_s": 600.0, **options}
    return search_of(runner, lambda base, free_s: plan or plan_of(workers(2)), **options).run()


# -- the same stretch of training


def ran(trial: Trial, *stretches, first: int = 0, number: int = 1, seed: int = 0) -> Measured:
    """A run whose steps take what is said, each stretch a number of them and s."""
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


def measured(*runs: Measured) -> Measurements:
    return Measurements(runs=list(runs), plan=plan_of(workers(4)))


BASE = ran(baseline(), (200, 0.010))


@pytest.mark.parametrize(
    ("base", "trial", "mid", "verdicts", "until"),
    [
        # A model is unfrozen after 200 steps: the trial saw 600 slow ones, the baseline none.
        (BASE, ran(WORKERS, (200, 0.005), (600, 0.015)), 2.0, {FASTER}, 200),
        # What is fast once it lies in memory makes no setting faster.
        (BASE, ran(WORKERS, (200, 0.010), (600, 0.004)), 1.0, {SLOWER, UNKNOWN, None}, 200),
        # A trial that was ended early: its steps are slower, but the slow ones come later.
        (
            ran(baseline(), (100, 0.004), (100, 0.016)),
            ran(WORKERS, (60, 0.006)),
            2 / 3,
            {SLOWER},
            60,
        ),
        # A few more steps are of no other kind.
        (BASE, ran(WORKERS, (200, 0.005), (10, 0.05)), None, None, None),
        (BASE, ran(FREE, (136, 0.006), (400, 0.018), first=64), 10 / 6, {FASTER}, 200),
    ],
)
def test_runs_are_compared_by_the_same_stretch_of_training(base, trial, mid, verdicts, until):
    measurements = measured(base, trial)
    assert measurements.alike(trial.trial.name).until == until
    if mid is None:
        return
    speed = measurements.speedup(trial.trial)
    assert speed.mid == pytest.approx(mid, rel=NEAR)
    assert speed.verdict in verdicts or (FASTER not in verdicts and speed.verdict != FASTER)
    if trial.trial.data == "free":
        assert measurements.free_step_s() == pytest.approx(0.006, rel=NEAR)
    elif until == 200:
        assert f"{WORKERS.name}: only the first 200 steps" in notes_of(measurements)
        row = row_of(measurements, WORKERS.name)
        assert row.steps_per_s == pytest.approx(100 * mid, rel=NEAR)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("later", [1.0, 0.97, 1.04])
def test_all_steps_count_where_later_ones_are_like_earlier_ones(later, seed):
    trial = ran(WORKERS, (200, 0.005), (600, 0.005 * later), seed=seed)
    measurements = measured(ran(baseline(), (200, 0.010), seed=seed), trial)
    assert measurements.alike(WORKERS.name).until is None


def test_what_the_pace_of_a_machine_wanders_by_is_no_other_kind():
    trial = ran(WORKERS, (200, 0.005), (600, 0.0058))
    virtual = replace(BASE, pace=replace(BASE.pace, wandering=0.2))
    assert measured(BASE, trial).alike(WORKERS.name).until == 200
    for runs in ((virtual, trial), (BASE, replace(trial, disturbance=0.2))):
        assert measured(*runs).alike(WORKERS.name).until is None


def test_free_data_that_comes_too_late_is_not_compared():
    free = ran(FREE, (150, 0.006), (150, 0.018), first=64)
    measurements = measured(ran(baseline(), (60, 0.010)), free)
    speed = measurements.speedup(FREE)
    assert (speed.low, speed.mid, speed.high, speed.verdict) == (None, None, None, UNKNOWN)
    assert measurements.free_step_s() is None
    assert "ceiling not compared" in notes_of(measurements)
    assert row_of(measurements, CEILING).speedup is None


def test_a_search_is_not_misled_by_what_comes_later_in_training():
    """From a step on that only fast trials come to they take five times as long."""
    later = 120
    planted = Planted(
        lambda o: 0.005 if o.get("num_workers") else 0.010, steps=10_000, later=(later, 5.0)
    )
    measurements = searched(FakeRunner(planted), plan_of(workers(2), threads(1)), budget_s=120.0)
    assert measurements.best.overrides == {"num_workers": 2}
    base, fast = (measurements.of(name)[0].steps for name in (BASELINE, measurements.best.name))
    assert base < later < fast - 20
    assert measurements.speedup(measurements.best).mid == pytest.approx(2.0, rel=NEAR)


@pytest.mark.parametrize(
    ("size", "changes", "is_clear"),
    [
        (40.0, {}, False),  # samples come sorted: the first batches are not like later ones
        (300.0, {}, False),
        (112.0, {}, True),
        (100.0, {"is_least": True}, False),  # it may be faster still
    ],
)
def test_free_data_that_is_no_faster_clears_loaders_where_its_batches_are_alike(
    size, changes, is_clear
):
    def alter(trial, number):
        is_free = trial.data == "free"
        return {"batches": {SITE: size if is_free else 100.0}, **(changes if is_free else {})}

    runner = FakeRunner(Planted(lambda _: 0.010, free_s=0.010), alter)
    measurements = searched(runner, replace(plan_of(workers(2), threads(1)), free_sites=(SITE,)))
    assert ("num_workers=2" not in runner.ran) is is_clear
    assert (measurements.free_step_s() is not None) is is_clear
    if changes:
        row = row_of(measurements, CEILING)
        assert (row.is_least, row.held) == (True, None)
    elif not is_clear:
        assert measurements.speedup(FREE) is None
        assert runner.ran.count(CEILING) == 1  # more runs of it tell no more
        assert "trials/ceiling.1 not compared" in notes_of(measurements)


# -- runs that failed, that were cold, or that something held up


def by_workers(overrides):
    return 0.005 if overrides else 0.010


def at(name, number, **changes):
    """Alters one run of one trial; none reads from disk otherwise."""

    def alter(trial, of_trial):
        return {"read_bytes": 0.0, **(changes if (trial.name, of_trial) == (name, number) else {})}

    return FakeRunner(Planted(by_workers), alter)


def test_a_setting_that_failed_once_is_not_recommended():
    assert searched(at("none", 1)).best is not None
    measurements = searched(at("num_workers=2", 2, outcome=FAILED, pace=None, training_pace=None))
    assert [run.outcome for run in measurements.of("num_workers=2")][:2] == [OK, FAILED]
    assert measurements.best is None


MISSING = "FileNotFoundError: no trials/{}/final.pt"


@pytest.mark.parametrize(
    ("failures", "was_cut", "is_failed"),
    [
        ({name: MISSING.format(name) for name in (WARM_UP, BASELINE, "change")}, False, False),
        (dict.fromkeys((WARM_UP, BASELINE, "change"), DID_NOT_END), False, False),
        ({"change": MISSING}, True, False),  # a trial that was cut may fail for that
        ({"change": "OSError: x"}, False, True),
        ({BASELINE: MISSING, "change": "OSError: too many files"}, False, True),
    ],
)
def test_a_failure_after_training_counts_where_the_change_may_be_why(failures, was_cut, is_failed):
    def alter(trial, number):
        name = "change" if trial.overrides else trial.name
        return {"failed_after": failures.get(name), "was_cut": was_cut}

    measurements = searched(FakeRunner(Planted(by_workers), alter))
    [first, *_] = measurements.of("num_workers=2")
    assert first.outcome == (FAILED if is_failed else OK)
    assert (first.pace is None) is is_failed
    assert (measurements.best is None) is is_failed
    failure = failures.get(WARM_UP, failures.get(BASELINE))
    notes = [x for x in summary_of(measurements).tuning.notes if failure and failure in x]
    assert len(notes) == (BASELINE in failures)


@pytest.mark.parametrize("name", ["num_workers=2", LOADER_ALONE])
def test_a_trial_that_read_from_disk_what_others_had_in_memory_is_made_again(name):
    measurements = searched(at(name, 1, read_bytes=200 * 8.0 * 2**20))
    assert [run.number for run in measurements.comparable(name)][:1] == [2]
    assert measurements.best is not None


@pytest.mark.parametrize("updates", [1.0, 10.0, 0.25])
def test_a_loader_alone_is_measured_by_the_batches_of_an_update(updates):
    """A batch takes 6 ms; an update of 10 ms."""
    plan = replace(plan_of(workers(2)), steps_per_batch=updates)
    runner = FakeRunner(Planted(by_workers, alone_s=0.006))
    measurements = searched(runner, plan)
    alone = measurements.of(LOADER_ALONE)[0]
    drawn = min(runner.limits[runner.ran.index(LOADER_ALONE)].steps or 0, 200)
    assert alone.steps == pytest.approx(drawn * updates)
    assert alone.pace.mean_s == pytest.approx(0.006 / updates, rel=0.05)
    speed = measurements.speedup(alone.trial)
    assert speed.mid == pytest.approx(0.010 * updates / 0.006, rel=0.05)


@pytest.mark.parametrize(
    ("steps", "per_batch", "read", "fewest", "drawn"),
    [
        (100, 1.0, 100, 22, 100),  # as many as training has read
        (1000, 10.0, 6000, 22, 180),  # the run that does not count read more
        (60, 1.0, 60, 86, 86),  # so many workers that fewer tell nothing
        (None, 1.0, 25, 22, 140),  # all of it was read
    ],
)
def test_a_loader_alone_draws_what_was_read_before(steps, per_batch, read, fewest, drawn):
    limits = limits_of(
        loader_alone((SITE,)),
        steps,
        usual_s=5.0,
        left_s=500.0,
        steps_per_batch=per_batch,
        times=1.0,
        alone=max(read, fewest),
    )
    assert limits.steps == drawn


# -- what speaks against a setting whose steps were faster


def step_s(overrides):
    return (0.005 if "num_workers" in overrides else 0.010) * (
        0.8 if "torch_threads" in overrides else 1
    )


def first_epochs(base, other):
    """The first epoch of the baseline, and with other workers."""

    def alter(trial, number):
        first = other if "num_workers" in trial.overrides else base
        return {"first_epochs": {} if first is None else {SITE: first}}

    return FakeRunner(Planted(step_s), alter)


def whole(slower, *, noise=0.002, steps=120, more_steps=0):
    """Runs to the script's end, that take so many times as long with a change."""

    def alter(trial, number):
        times = slower if trial.overrides else 1.0
        count = steps + (more_steps if trial.overrides else 0)
        return {"run_s": 10.0 * (1 + noise * number) * times, "steps": count}

    return FakeRunner(Planted(step_s), alter)


def ended(batches):
    return FirstEpoch(batches, is_ended=True)


def begun(batches):
    return FirstEpoch(batches, is_ended=False)


@pytest.mark.parametrize(
    ("runner", "why"),
    [
        (first_epochs(ended(100), ended(200)), "200 batches, 100 in"),  # each gives all
        (first_epochs(ended(8), ended(12)), "12 batches, 8 in"),  # many last ones not full
        (first_epochs(ended(100), begun(200)), "over 200 batches, 100 in"),
        (first_epochs(begun(200), ended(100)), "100 batches, over 200 in"),
        (first_epochs(ended(100), ended(102)), None),
        (first_epochs(ended(100), begun(60)), None),
        (first_epochs(begun(60), begun(200)), None),
        (whole(1.5), "(0.67x)"),
        (whole(1.02), None),  # less than counts
        (whole(1.2, noise=0.1), None),  # it may be chance
        (whole(1.5, more_steps=2), "(0.67x)"),
        (whole(1.5, more_steps=40), None),  # one that stops early by its loss
    ],
)
def test_what_speaks_against_a_setting_that_is_faster(runner, why):
    measurements = searched(runner)
    reasons = against(measurements, workers(2).trial())
    is_recommended = summary_of(measurements).recommended is not None
    assert (measurements.best is not None) is is_recommended is (why is None)
    assert [why in reason for reason in reasons] == [True] if why else reasons == []


def test_what_else_is_faster_is_recommended_then_and_alone():
    measurements = searched(first_epochs(ended(100), ended(200)), plan_of(workers(2), threads(1)))
    assert measurements.best.overrides == {"torch_threads": 1}
    assert not any(len(run.trial.overrides) > 1 for run in measurements.runs)


@pytest.mark.parametrize(
    ("loader", "first", "is_noted"),
    [
        ({"is_iterable": True, "shares_samples": True}, begun(60), True),
        ({"is_iterable": True, "shares_samples": True}, ended(100), False),
        ({"is_iterable": True, "shares_samples": None}, None, False),  # it has its own caution
    ],
)
def test_where_no_epoch_ended_a_caution_names_the_stream(loader, first, is_noted):
    summary = summary_of(searched(first_epochs(first, first)), **loader)
    assert any(SITE in caution for caution in summary.recommended.cautions) is is_noted


# -- what is not decided is repeated

# One thread saves 25 %, and runs differ by as much: four of each do not tell how much it is.
ROUGH = Planted(lambda o: 0.008 if o else 0.010, free_s=0.007, spread=0.12, seed=3)
MOST = 4


class Remembering(FakeRunner):
    """Makes no run twice."""

    def __init__(self, planted):
        super().__init__(planted)
        self.done = {}

    def run(self, trial, number, limits):
        key = trial.name, number
        if key not in self.done:
            self.done[key] = super().run(trial, number, limits)
        return self.done[key]

    def search(self):
        """Goes on with a search; returns it, its progress, and how often each trial was run."""
        before, progress = set(self.done), []
        measurements = searched(
            self,
            plan_of(threads(1)),
            is_known=lambda trial, number: (trial.name, number) in before,
            on_progress=progress.append,
        )
        return measurements, progress, Counter(run.trial.name for run in measurements.runs)


def test_a_search_that_goes_on_repeats_what_is_undecided_as_often_again():
    runner = Remembering(ROUGH)
    measurements, progress, made = runner.search()
    assert measurements.ended_by == FINISHED
    assert made["torch_threads=1"] == MOST
    assert not any(step.is_kept for step in progress)
    before = len(runner.done)
    _, progress, made = runner.search()
    assert MOST < made["torch_threads=1"] <= 2 * MOST
    kept = [step.is_kept for step in progress if step.measured is not None]
    assert kept == [True] * before + [False] * (len(kept) - before)
