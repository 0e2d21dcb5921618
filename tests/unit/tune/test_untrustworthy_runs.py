"""Runs that failed, that were cold, or that something interrupted: none of them decides."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support import summaries
from support.events import FakeRun
from support.planted_trials import FakeRunner, Planted, plan_of, search_of, workers

from trainprof.analysis.summary.tune import (
    BASELINE,
    FAILED,
    FINISHED,
    INTERRUPTED,
    LOADER_ALONE,
    OK,
)
from trainprof.launch.outcome import Outcome
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.journal import Asked, Journal, RememberingRunner, read_journal
from trainprof.tune.measurements import Measurements
from trainprof.tune.results import summary_of_tune
from trainprof.tune.session import AlreadyTuning, alone_in
from trainprof.tune.trial import (
    WARM_UP,
    Limits,
    Measured,
    Trial,
    baseline,
    loader_alone,
)
from trainprof.tune.trial_limits import limits_of
from trainprof.tune.trial_reading import (
    DID_NOT_END,
    Ended,
    _feeding,
    _outcome,
    _read_bytes,
    _steps,
)

ASKED = Asked(("train.py",), None, None, 600.0, None, False, 0.5, None, {}, {}, True)


def by_workers(overrides: object) -> float:
    return 0.005 if overrides else 0.010


class Changed(FakeRunner):
    """As FakeRunner, but of one trial's runs one is another."""

    def __init__(self, name: str, number: int, **changes: object) -> None:
        super().__init__(Planted(by_workers))
        self._at, self._changes = (name, number), changes

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        found = super().run(trial, number, limits)
        found = replace(found, read_bytes=0.0)
        if (trial.name, number) == self._at:
            return replace(found, **self._changes)  # type: ignore[arg-type]
        return found


def searched(runner: FakeRunner, *, keep: list[Measurements] | None = None) -> Measurements:
    def kept(found: Measurements) -> None:
        if keep is not None:
            keep.append(replace(found, runs=list(found.runs)))

    plan = plan_of(workers(2))
    return search_of(runner, lambda base, free_s: plan, budget_s=600.0, keep=kept).run()


def killed_by(number: int, *received: int) -> Outcome:
    return Outcome(
        pid=1,
        status=None,
        signal=number,
        spawned_ns=0,
        ended_ns=1,
        max_rss_bytes=0,
        user_s=0.0,
        system_s=0.0,
        interrupted=False,
        signals_received=received,
    )


def test_a_setting_that_failed_once_is_not_recommended() -> None:
    assert searched(Changed("none", 1)).best is not None
    found = searched(Changed("num_workers=2", 2, outcome=FAILED, pace=None, training_pace=None))
    assert [one.outcome for one in found.of("num_workers=2")][:2] == [OK, FAILED]
    assert found.best is None


class FailingAfter(FakeRunner):
    """As FakeRunner, but some trials' scripts fail once their training was ended at the limit."""

    def __init__(self, was_cut: bool = False, **told: str) -> None:
        super().__init__(Planted(by_workers))
        self._told, self._was_cut = told, was_cut

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        found = super().run(trial, number, limits)
        name = "change" if trial.overrides else trial.name
        return replace(found, failed_after=self._told.get(name), was_cut=self._was_cut)


MISSING = "FileNotFoundError: no trials/{}/final.pt"


def test_a_script_that_fails_whenever_it_was_ended_at_the_limit_is_tuned() -> None:
    told = {name: MISSING.format(name) for name in (WARM_UP, BASELINE, "change")}
    found = searched(FailingAfter(**told))
    assert {one.outcome for one in found.runs} == {OK}
    assert found.best is not None
    summary = summary_of_tune(
        summaries.slow_loader(), found, name="tune", directory="tune", budget_s=600.0
    )
    said = [note for note in summary.tuning.notes if "ended at the limit" in note]
    assert len(said) == 1
    assert MISSING.format(WARM_UP) in said[0]


def test_a_script_that_does_not_end_whenever_it_was_ended_at_the_limit_is_tuned() -> None:
    told = dict.fromkeys((WARM_UP, BASELINE, "change"), DID_NOT_END)
    found = searched(FailingAfter(**told))
    assert {one.outcome for one in found.runs} == {OK}
    assert found.best is not None


@pytest.mark.parametrize(
    "told", [{"change": "OSError: x"}, {BASELINE: MISSING, "change": "OSError: too many files"}]
)
def test_a_change_that_has_the_script_fail_after_its_training_is_not_recommended(
    told: dict[str, str],
) -> None:
    found = searched(FailingAfter(**told))
    [first, *_] = found.of("num_workers=2")
    assert (first.outcome, first.detail, first.pace) == (FAILED, told["change"], None)
    assert found.best is None


def test_a_trial_that_was_cut_may_fail_for_that() -> None:
    found = searched(FailingAfter(was_cut=True, change=MISSING))
    assert {one.outcome for one in found.of("num_workers=2")} == {OK}


def test_how_a_run_ended_and_what_it_left_is_remembered(tmp_path: Path) -> None:
    journal = Journal(RunDirectory(tmp_path), ASKED)
    journal.save()
    run = replace(
        FakeRunner(Planted(by_workers)).run(baseline(), 1, Limits(30, 60.0)),
        failed_after=MISSING,
        left_running=("tensorboard",),
    )
    journal.add(run)
    directory = FakeRun().write(tmp_path / "trials").path
    directory.rename(tmp_path / "trials" / BASELINE)
    again = read_journal(RunDirectory(tmp_path)).remembered(baseline(), 1)
    assert again.failed_after == MISSING
    assert again.left_running == ("tensorboard",)


def test_a_trial_that_read_from_disk_what_others_had_in_memory_is_made_again() -> None:
    cold = 200 * 8.0 * 2**20
    found = searched(Changed("num_workers=2", 1, read_bytes=cold))
    assert [one.number for one in found.comparable("num_workers=2")][:1] == [2]
    assert found.best is not None


def test_a_loader_alone_that_read_from_disk_what_training_had_in_memory_is_drawn_again() -> None:
    cold = 200 * 8.0 * 2**20
    found = searched(Changed(LOADER_ALONE, 1, read_bytes=cold))
    assert [one.number for one in found.of(LOADER_ALONE)] == [1, 2]
    assert [one.number for one in found.comparable(LOADER_ALONE)] == [2]
    warm = searched(Changed(LOADER_ALONE, 1))
    assert [one.number for one in warm.of(LOADER_ALONE)] == [1]


@pytest.mark.parametrize("updates", [1.0, 10.0, 0.25])
def test_what_a_loader_alone_read_is_told_by_the_batches_of_an_update(updates: float) -> None:
    plan = replace(plan_of(workers(2)), steps_per_batch=updates)
    runner = FakeRunner(Planted(by_workers))
    found = search_of(runner, lambda base, free_s: plan, budget_s=600.0).run()
    [alone] = found.of(LOADER_ALONE)
    drawn = min(runner.limits[runner.ran.index(LOADER_ALONE)].steps or 0, 200)
    assert alone.steps == pytest.approx(drawn * updates)


@pytest.mark.parametrize(
    ("steps", "per_batch", "read", "fewest", "drawn"),
    [
        (100, 1.0, 100, 22, 100),  # as many as training has read
        (100, 1.0, 6000, 22, 180),  # the run that does not count read more
        (1000, 10.0, 100, 22, 100),
        (1000, 10.0, 6000, 22, 180),
        (60, 1.0, 60, 86, 86),  # so many workers that fewer tell nothing
        (None, 1.0, 25, 22, 140),  # all of it was read
    ],
)
def test_a_loader_alone_draws_what_was_read_before(
    steps: int | None, per_batch: float, read: int, fewest: int, drawn: int
) -> None:
    limits = limits_of(
        loader_alone(("train.py:9",)),
        steps,
        usual_s=5.0,
        left_s=500.0,
        steps_per_batch=per_batch,
        times=1.0,
        alone=max(read, fewest),
    )
    assert limits.steps == drawn


def test_a_search_draws_no_more_batches_alone_than_a_run_has_read() -> None:
    plan = replace(plan_of(workers(2)), steps_per_batch=2.0, fewest_alone=22)
    runner = FakeRunner(Planted(by_workers, steps=10_000))
    search_of(runner, lambda base, free_s: plan, budget_s=600.0, trial_steps=100).run()
    assert runner.limits[runner.ran.index(LOADER_ALONE)].steps == 50


def test_what_is_drawn_alone_feeds_no_training() -> None:
    fetch = replace(summaries.loader("train.py:9").fetch, read_bytes=70)
    of_training = summaries.loader("train.py:9", iterations=50, fetch=fetch)
    alone = replace(of_training, role="other")
    elsewhere = summaries.loader("train.py:20", role="other", fetch=fetch)
    base = summaries.slow_loader()
    drawn = replace(base, loaders=[alone, elsewhere])
    trial = loader_alone(("train.py:9",))
    assert (_read_bytes(_feeding(trial, drawn)), _steps(trial, drawn)) == (70.0, 50)
    trained = replace(base, loaders=[of_training, elsewhere])
    assert _read_bytes(_feeding(baseline(), trained)) == 70.0
    assert _steps(baseline(), trained) == base.training.steps


def test_what_is_saved_meanwhile_says_what_is_known_by_then() -> None:
    told: list[Measurements] = []
    found = searched(FakeRunner(Planted(by_workers)), keep=told)
    first = next(one for one in told if one.of("num_workers=2"))
    assert first.best == found.best is not None


def test_one_slow_baseline_does_not_make_the_others_expected_so() -> None:
    found = searched(Changed(BASELINE, 2, seconds=250.0))
    assert found.spent_s() > 250
    assert found.ended_by == FINISHED


@pytest.mark.parametrize("updates", [1.0, 0.25])
def test_a_loader_alone_is_measured_by_the_batches_of_an_update(updates: float) -> None:
    """A batch takes 6 ms; an update of 10 ms, or of four batches."""
    plan = replace(plan_of(workers(2)), steps_per_batch=updates)
    runner = FakeRunner(Planted(by_workers, alone_s=0.006))
    found = search_of(runner, lambda base, free_s: plan, budget_s=600.0).run()
    [alone] = found.of(LOADER_ALONE)
    assert alone.pace.mean_s == pytest.approx(0.006 / updates, rel=0.05)
    speed = found.speedup(alone.trial)
    assert speed.mid == pytest.approx(0.010 * updates / 0.006, rel=0.05)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGTERM", "SIGINT"])
def test_what_ends_the_session_is_no_failure_of_the_script(name: str, tmp_path: Path) -> None:
    number = getattr(signal, name)
    console = tmp_path / "console"
    told, _ = _outcome(summaries.slow_loader(), Ended(killed_by(number, number), False), console)
    assert told == INTERRUPTED
    # One that the script was sent by another, or by itself, is.
    told, _ = _outcome(summaries.slow_loader(), Ended(killed_by(number), False), console)
    assert told == FAILED


@pytest.mark.parametrize(
    ("trial", "is_kept"),
    [(Trial(WARM_UP), False), (baseline(), False), (workers(2).trial(), True)],
)
def test_what_all_stands_on_is_tried_again_when_it_failed(
    trial: Trial, is_kept: bool, tmp_path: Path
) -> None:
    journal = Journal(RunDirectory(tmp_path), ASKED)
    planted = Planted(by_workers, failing={trial.name: FAILED})
    RememberingRunner(FakeRunner(planted), journal).run(trial, 1, Limits(60, 60.0))
    (RunDirectory(tmp_path).trials / trial.name).mkdir(parents=True)
    assert journal.knows(trial, 1) is is_kept


def test_one_tune_at_a_time_is_at_work_in_a_directory(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with alone_in(directory), pytest.raises(AlreadyTuning), alone_in(directory):
        raise AssertionError("two at work")
    with alone_in(directory):
        pass
