"""The search finds what was planted to be faster, and nothing where nothing is."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.planted_trials import FakeRunner, Planted, plan_of, search_of, threads, workers

from trainprof.analysis.statistics.speedup import SLOWER
from trainprof.analysis.summary.tune import (
    BASELINE,
    BUDGET,
    CEILING,
    CUT_SHORT,
    FAILED,
    FINISHED,
    HUNG,
    INTERRUPTED,
    LOADER_ALONE,
    OK,
    OUT_OF_MEMORY,
    TIMED_OUT,
)
from trainprof.tune.candidate import Candidate
from trainprof.tune.search import CannotTune
from trainprof.tune.trial import WARM_UP, Measured, Trial
from trainprof.tune.trial_limits import limits_of_warm_up, steps_beyond_epoch, steps_of_trials

PLANS = (workers(2), workers(4), threads(1))


def searched(planted, plan=None, **options):
    runner = FakeRunner(planted)
    search = search_of(
        runner,
        lambda base, free_s: plan or plan_of(*PLANS),
        budget_s=options.pop("budget_s", 600.0),
        **options,
    )
    return search.run(), runner


def by_workers_and_threads(overrides):
    """Loading hides behind 4 workers; one thread saves a quarter of the computing."""
    compute_s = 0.003 if overrides.get("torch_threads") == 1 else 0.004
    loading_s = 0.008 / max(overrides.get("num_workers", 0), 1)
    waits = loading_s if not overrides.get("num_workers") else max(loading_s - compute_s, 0.0)
    return compute_s + waits


def test_changes_that_help_together_are_recommended_together():
    known, runner = searched(Planted(by_workers_and_threads, spread=0.003))
    assert known.ended_by == FINISHED
    assert known.best.overrides == {"num_workers": 4, "torch_threads": 1}
    times = known.speedup(next(r.trial for r in known.runs if r.trial.name == known.best.name))
    assert times.low < 0.012 / 0.003 < times.high * 1.02
    assert runner.ran[0] == WARM_UP
    assert runner.ran[1] == runner.ran[-1] == BASELINE
    assert not [run.trial.name for run in known.runs if run.was_cut]
    assert {CEILING, LOADER_ALONE} < set(runner.ran)


@pytest.mark.parametrize(
    ("step_s", "free_s", "best"),
    [
        (lambda o: 0.010, 0.010, None),  # nothing helps
        (lambda o: 0.0098 if o else 0.010, 0.0098, None),  # less than is worth a change
        # Of settings that are as fast the smaller one.
        (lambda o: 0.004 if o.get("num_workers") else 0.010, 0.004, "num_workers=2"),
    ],
)
@pytest.mark.parametrize("seed", range(8))
def test_what_is_recommended_is_worth_it(step_s, free_s, best, seed):
    known, _ = searched(Planted(step_s, free_s=free_s, spread=0.005, seed=seed, steps=1000))
    assert (None if known.best is None else known.best.name) == best


FUSED = Candidate("optimizer", {"fused": True}, (0.97, 1.2))


def by_workers_and_optimizer(overrides):
    loading_s = 0.0006 if overrides.get("num_workers") else 0.006
    return 0.006 + loading_s + (0.0012 if overrides.get("fused") else 0.002)


@pytest.mark.parametrize("budget_s", [36.0, 60.0, 600.0])
def test_changes_that_help_alone_are_tried_together_or_named_as_not_tried(budget_s):
    plan = plan_of(workers(4), FUSED, threads(1))
    known, runner = searched(Planted(by_workers_and_optimizer), plan, budget_s=budget_s)
    both = "num_workers=4,fused=True"
    assert {"num_workers=4", "fused=True"} < set(runner.ran)
    assert (both in runner.ran) != (both in known.unfinished)
    assert (both in runner.ran) is (budget_s > 36.0)
    if budget_s == 600.0:
        assert known.best.name == both


@pytest.mark.parametrize(
    ("budget_s", "left_out"),
    [
        (12.0, {CEILING, LOADER_ALONE}),
        (15.0, {CEILING, LOADER_ALONE}),
        (21.0, {LOADER_ALONE}),
        (30.0, set()),
    ],
)
def test_in_a_short_time_the_most_promising_change_comes_before_bounds(budget_s, left_out):
    plan = plan_of(workers(4), FUSED)
    known, runner = searched(Planted(by_workers_and_optimizer), plan, budget_s=budget_s)
    assert "num_workers=4" in runner.ran
    assert {CEILING, LOADER_ALONE} & set(known.unfinished) == left_out
    assert not left_out & set(runner.ran)
    assert known.spent_s() <= budget_s + 0.1


KEPT = Candidate(
    "restarts", {"persistent_workers": True}, (0.97, 1.05), ("a copy",), ("train.py:9",)
)


def restarted_workers(overrides):
    is_kept = overrides.get("persistent_workers") is True
    return 0.002 if overrides.get("num_workers") and not is_kept else 0.0


def planned_from_either(base, free_s):
    """The baseline has no workers, and ends within its first epoch."""
    return plan_of(KEPT) if base.trial.overrides else plan_of(workers(2), workers(4))


def test_workers_that_restart_each_epoch_are_tried_as_persistent_ones():
    planted = Planted(by_workers_and_threads, starts_s=restarted_workers)
    runner = FakeRunner(planted)
    known = search_of(runner, planned_from_either, budget_s=600.0).run()
    kept = "num_workers=2,persistent_workers=True"
    assert known.best.overrides == {"num_workers": 2, "persistent_workers": True}
    assert known.best.sites == ("train.py:9",)
    assert known.cautions[kept] == ("a copy",)
    assert "num_workers=4,persistent_workers=True" not in runner.ran
    low, high = known.predicted[kept]
    times = known.speedup(known.best)
    assert low < times.mid < high


def test_a_baseline_that_no_model_meets_is_not_planned_from():
    planned = []
    unmet = replace(plan_of(threads(1)), ceiling=None, alone=None)

    def plan_from(base, free_s):
        planned.append((base.trial.name, base.number))
        return unmet if planned[-1] == (BASELINE, 1) else plan_of(*PLANS)

    runner = FakeRunner(Planted(by_workers_and_threads))
    known = search_of(runner, plan_from, budget_s=600.0).run()
    assert planned == [(WARM_UP, 1), (BASELINE, 1), (BASELINE, 2), (BASELINE, 2)]
    assert runner.ran[:3] == [WARM_UP, BASELINE, BASELINE]
    assert known.best.overrides["num_workers"] == 4
    assert known.predicted[CEILING] == plan_of().ceiling


def test_where_free_data_is_no_faster_no_change_of_loading_is_tried():
    known, runner = searched(Planted(lambda _: 0.010, free_s=0.010))
    assert not any("workers" in name for name in runner.ran)
    assert "torch_threads=1" in runner.ran
    assert len(known.plan.notes) == 1


def test_quicker_trials_make_more_steps_unless_their_number_was_asked_for():
    known, runner = searched(Planted(by_workers_and_threads, steps=10_000))
    at = runner.ran.index("num_workers=4")
    low, high = known.predicted["num_workers=4"]
    assert runner.limits[at].steps == math.ceil(known.trial_steps * math.sqrt(low * high))
    assert runner.limits[runner.ran.index("torch_threads=1")].steps == known.trial_steps

    _, runner = searched(Planted(by_workers_and_threads, steps=10_000), trial_steps=60)
    assert runner.limits[runner.ran.index("num_workers=4")].steps == 60


def test_free_data_has_enough_steps_after_the_batches_that_are_kept():
    plan = replace(plan_of(*PLANS), steps_per_batch=2.0, free_sites=("train.py:9", "train.py:12"))
    known, runner = searched(Planted(by_workers_and_threads), plan, trial_steps=60)
    at = runner.ran.index(CEILING)
    times = math.sqrt(plan.ceiling[0] * plan.ceiling[1])
    assert runner.limits[at].steps == math.ceil(60 * times) + 160
    assert known.of(CEILING)[0].trial.sites == ("train.py:9", "train.py:12")
    assert known.of(LOADER_ALONE)[0].trial.sites == ("train.py:9",)


def test_a_trial_that_fails_is_a_result_and_the_others_go_on():
    outcomes = {"num_workers=2": OUT_OF_MEMORY, "torch_threads=1": TIMED_OUT}
    known, _ = searched(Planted(by_workers_and_threads, failing=outcomes))
    assert known.best.overrides == {"num_workers": 4}
    assert {r.outcome for r in known.of("num_workers=2")} == {OUT_OF_MEMORY}


@pytest.mark.parametrize("name", [WARM_UP, BASELINE])
def test_a_script_that_fails_by_itself_cannot_be_tuned(name):
    with pytest.raises(CannotTune, match="failed: ValueError") as refused:
        searched(Planted(by_workers_and_threads, failing={name: FAILED}), directory=Path("runs/t"))
    assert refused.value.hint.endswith(f"runs/t/trials/{name}.1/console")


@pytest.mark.parametrize(
    ("slow_s", "slow_start_s", "budget_s", "outcome", "ended_by", "beyond_s"),
    [
        # Of 10 ms steps one setting makes such of 8 s: too few tell anything. Beyond the budget is
        # the step in which the time was over, and an end behind it.
        *((8.0, 2.0, budget_s, CUT_SHORT, BUDGET, 9.0) for budget_s in (40.0, 55.0)),
        (4.0, 2.0, 60.0, OK, None, 5.0),  # six are enough
        (1.0, 2.0, 60.0, OK, None, 2.0),  # what it did until then counts
        (1.0, 2.0, 3600.0, OK, FINISHED, 0.0),  # a minute at most of an hour
        (0.010, 1e6, 60.0, HUNG, None, 0.0),
        (0.010, 1e6, 3600.0, HUNG, None, 0.0),
    ],
)
def test_a_slow_or_hanging_trial_is_ended_within_the_budget(
    slow_s, slow_start_s, budget_s, outcome, ended_by, beyond_s
):
    planted = Planted(
        lambda o: slow_s if "torch_threads" in o else 0.010,
        slow_starts={"torch_threads=1": slow_start_s},
    )
    known, runner = searched(planted, plan_of(threads(1)), budget_s=budget_s)
    slow = known.of("torch_threads=1")[0]
    assert (slow.outcome, slow.was_cut) == (outcome, True)
    assert known.spent_s() <= budget_s + beyond_s
    assert ended_by is None or known.ended_by == ended_by
    if outcome == OK:
        assert 6 <= slow.steps < 200
        assert 55 < slow.seconds < 65 or budget_s == 60.0
        assert known.speedup(slow.trial).verdict == SLOWER
        assert runner.ran[-1] == BASELINE


@pytest.mark.parametrize("name", [WARM_UP, BASELINE])
@pytest.mark.parametrize("budget_s", [10.0, 20.0, 600.0])
def test_a_script_that_hangs_is_killed_within_the_budget(name, budget_s):
    runner = FakeRunner(Planted(lambda o: 0.010, slow_starts={name: 1e6}))
    search = search_of(runner, lambda base, free_s: plan_of(*PLANS), budget_s=budget_s)
    with pytest.raises(CannotTune, match="hangs") as refused:
        search.run()
    assert "longer --budget" in refused.value.hint
    assert runner.ran[-1] == name
    assert runner.now() <= budget_s


@pytest.mark.parametrize("start_up_s", [0.5, 5.0, 8.0])
@pytest.mark.parametrize("budget_s", [10.0, 20.0, 60.0])
def test_no_budget_is_overrun_by_more_than_the_end_of_a_trial(budget_s, start_up_s):
    runner = FakeRunner(Planted(by_workers_and_threads, start_up_s=start_up_s))
    search = search_of(runner, lambda base, free_s: plan_of(*PLANS), budget_s=budget_s)
    needed = None
    try:
        known = search.run()
        needed = known.needed_budget_s
    except CannotTune as refused:
        needed = float(re.search(r"--budget (\d+)s", refused.hint)[1])
    assert runner.now() <= budget_s + 0.1
    changed = [name for name in runner.ran if "=" in name]
    assert bool(changed) is (needed is None)
    # Two runs have to fit, of a start and 30 steps.
    assert changed or budget_s < 2.5 * (start_up_s + 0.4) + 2.0
    if needed is not None:
        assert budget_s < needed
        known, runner = searched(runner.planted, budget_s=needed)
        assert any("=" in name for name in runner.ran)


def test_the_first_run_counts_where_another_baseline_leaves_no_time_for_a_change():
    known, runner = searched(Planted(by_workers_and_threads, start_up_s=7.0), budget_s=22.0)
    assert runner.ran == [WARM_UP, "num_workers=2"]
    assert [run.trial.name for run in known.runs] == [BASELINE, "num_workers=2"]
    assert known.speedup(known.runs[1].trial).mid > 1.5
    assert known.first_counts


def test_runs_that_were_made_before_take_nothing_of_the_budget():
    """After 30 s it goes on for 20 s more."""
    begun, _ = searched(Planted(by_workers_and_threads), budget_s=30.0)
    assert begun.ended_by == BUDGET
    made = {(run.trial.name, run.number) for run in begun.runs}
    search = search_of(
        FakeRunner(Planted(by_workers_and_threads)),
        lambda base, free_s: plan_of(*PLANS),
        budget_s=20.0,
        is_known=lambda trial, number: (trial.name, number) in made,
    )
    known = search.run()
    later = [run for run in known.runs if (run.trial.name, run.number) not in made]
    assert 0 < sum(run.seconds for run in later) <= 20.0
    assert {run.trial.name for run in begun.runs} <= {run.trial.name for run in known.runs}


@pytest.mark.parametrize("at", range(1, 9))
def test_ctrl_c_ends_with_what_is_known(at):
    known, runner = searched(Planted(by_workers_and_threads, interrupted_at=at))
    assert known.ended_by == INTERRUPTED
    assert len(runner.ran) == at


def test_single_changes_are_measured_between_baselines():
    plan = plan_of(*(threads(n) for n in range(1, 9)))
    _, runner = searched(Planted(lambda _: 0.01), plan)
    gaps = [len(list(g)) for is_base, g in itertools.groupby(runner.ran, BASELINE.__eq__)]
    assert max(gaps) <= 4


def test_what_a_faster_setting_gives_is_measured_until_it_is_sure():
    known, runner = searched(
        Planted(lambda o: 0.0090 if o else 0.010, free_s=0.0090, spread=0.01), plan_of(workers(2))
    )
    assert runner.ran.count("num_workers=2") >= 2
    assert runner.ran.count(BASELINE) >= 3
    assert known.best is not None


def warm_up(*, steps, step_s, start_up_s=3.0, is_whole=False):
    training_s = steps * step_s
    seconds = start_up_s + training_s
    run = Measured(Trial(WARM_UP), 1, "w", "ok", None, seconds, steps=steps, training_s=training_s)
    return replace(run, run_s=seconds if is_whole else None)


@pytest.mark.parametrize(
    ("budget_s", "longest_s", "trained_s"),
    [(12.0, 1.2, 0.5), (60.0, 6.0, 2.5), (300.0, 30.0, 5.0), (3600.0, 60.0, 5.0)],
)
def test_the_run_that_does_not_count_leaves_the_budget_to_the_others(
    budget_s, longest_s, trained_s
):
    limits = limits_of_warm_up(budget_s, budget_s, None)
    assert limits.enough_s == pytest.approx((longest_s, trained_s))
    assert limits.killed_after_s == 2 * limits.seconds == budget_s
    assert limits.enough_steps == (30 if budget_s <= 60.0 else 1)
    asked = limits_of_warm_up(budget_s, budget_s, 60)
    assert asked.steps == 60
    assert asked.enough_s == pytest.approx((longest_s, max(budget_s / 24, 2.0)))


@pytest.mark.parametrize(("start_up_s", "steps"), [(3.0, 1000), (70.0, 200), (190.0, 200)])
def test_a_long_start_leaves_the_run_that_does_not_count_some_training(start_up_s, steps):
    """Steps of 10 ms: trials of 2 s behind a start of over a minute, not 60 of them."""
    planted = Planted(lambda overrides: 0.010, steps=10_000, start_up_s=start_up_s)
    known, _ = searched(planted, budget_s=600.0)
    assert known.runs[0].trial.name == WARM_UP
    assert known.runs[0].steps >= 490
    assert known.trial_steps == pytest.approx(steps, abs=20)


@pytest.mark.parametrize(
    ("made", "step_s", "steps"),
    [
        *((100, 0.1, 220), (100, 0.001, 1000), (20, 2.5, 60), (0, 0.1, 60)),
        *((20, 3.0, 58), (20, 9.0, 21), (20, 40.0, 12)),  # three of them fit
    ],
)
def test_trials_are_as_long_as_the_budget_lets_them(made, step_s, steps):
    assert steps_of_trials(warm_up(steps=made, step_s=step_s), 600.0) == steps
    assert steps_of_trials(warm_up(steps=100, step_s=0.1, is_whole=True), 600.0) is None


@pytest.mark.parametrize(
    ("of_a_pass", "steps"),
    [(10.0, 60), (50.0, 105), (300.0, 330), (400.5, 441), (800.0, 60)],  # 60 s hold 570 steps
)
def test_trials_see_later_passes_start_where_the_budget_lets_them(of_a_pass, steps):
    run = warm_up(steps=100, step_s=0.09, start_up_s=3.0)
    assert steps_beyond_epoch(60, of_a_pass, run, 600.0) == pytest.approx(steps, abs=1)


@pytest.mark.parametrize(("asked", "steps"), [(None, 771), (70, 70)])
def test_every_trial_goes_beyond_a_pass_whose_start_tells(asked, steps):
    plan = replace(plan_of(workers(4)), steps_of_epoch=700.0)
    planted = Planted(lambda overrides: 0.03, steps=10_000)
    known, runner = searched(planted, plan, trial_steps=asked)
    limits = zip(runner.ran, runner.limits, strict=True)
    of_baselines = [limit.steps for name, limit in limits if name == BASELINE]
    assert known.trial_steps == steps
    assert set(of_baselines) == {steps}
