"""The search finds what was planted to be faster, and nothing where nothing is."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.planted_trials import (
    FakeRunner,
    Planted,
    plan_of,
    search_of,
    threads,
    workers,
)

from trainprof.analysis.statistics.speedup import FASTER, SLOWER
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
from trainprof.tune.trial_limits import (
    limits_of_warm_up,
    steps_beyond_a_pass,
    steps_of_trials,
)

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
    found, runner = searched(Planted(by_workers_and_threads, spread=0.003))
    assert found.ended_by == FINISHED
    assert found.best.overrides == {"num_workers": 4, "torch_threads": 1}
    times = found.speedup(next(r.trial for r in found.runs if r.trial.name == found.best.name))
    assert times.low < 0.012 / 0.003 < times.high * 1.02
    assert runner.ran[0] == WARM_UP
    assert runner.ran[1] == runner.ran[-1] == BASELINE
    assert {CEILING, LOADER_ALONE} < set(runner.ran)


FUSED = Candidate("optimizer", {"fused": True}, (0.97, 1.2))


def by_workers_and_optimizer(overrides):
    loading_s = 0.0006 if overrides.get("num_workers") else 0.006
    return 0.006 + loading_s + (0.0012 if overrides.get("fused") else 0.002)


@pytest.mark.parametrize("budget_s", [36.0, 60.0, 600.0])
def test_changes_that_help_alone_are_tried_together_or_named_as_not_tried(budget_s):
    plan = plan_of(workers(4), FUSED, threads(1))
    found, runner = searched(Planted(by_workers_and_optimizer), plan, budget_s=budget_s)
    both = "num_workers=4,fused=True"
    assert {"num_workers=4", "fused=True"} < set(runner.ran)
    assert (both in runner.ran) != (both in found.unfinished)
    assert (both in runner.ran) is (budget_s > 36.0)
    if budget_s == 600.0:
        assert found.best.name == both


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
    found, runner = searched(Planted(by_workers_and_optimizer), plan, budget_s=budget_s)
    assert "num_workers=4" in runner.ran
    assert {CEILING, LOADER_ALONE} & set(found.unfinished) == left_out
    assert not left_out & set(runner.ran)
    assert found.spent_s() <= budget_s + 0.1


KEPT = Candidate(
    "restarts", {"persistent_workers": True}, (0.97, 1.05), ("a copy",), ("train.py:9",)
)


def workers_that_start_anew(overrides):
    is_kept = overrides.get("persistent_workers") is True
    return 0.002 if overrides.get("num_workers") and not is_kept else 0.0


def planned_from_either(base, free_s):
    """The script as it is has no workers, and is stopped within its first pass."""
    return plan_of(KEPT) if base.trial.overrides else plan_of(workers(2), workers(4))


def test_workers_that_a_trial_sees_start_anew_are_tried_as_such_that_live_on():
    planted = Planted(by_workers_and_threads, starts_s=workers_that_start_anew)
    runner = FakeRunner(planted)
    found = search_of(runner, planned_from_either, budget_s=600.0).run()
    kept = "num_workers=2,persistent_workers=True"
    assert found.best.overrides == {"num_workers": 2, "persistent_workers": True}
    assert found.best.sites == ("train.py:9",)
    assert found.cautions[kept] == ("a copy",)
    assert "num_workers=4,persistent_workers=True" not in runner.ran
    low, high = found.predicted[kept]
    times = found.speedup(found.best)
    assert low < times.mid < high


@pytest.mark.parametrize("why", ["none start anew", "they may not live on"])
def test_workers_are_not_kept_where_nothing_is_to_be_had_by_it(why):
    planted = Planted(by_workers_and_threads)
    if why == "they may not live on":
        planted.starts_s = workers_that_start_anew
        plan = plan_of(workers(2), workers(4))
        _, runner = searched(planted, plan)
    else:
        runner = FakeRunner(planted)
        search_of(runner, planned_from_either, budget_s=600.0).run()
    assert not any("persistent" in name for name in runner.ran)


@pytest.mark.parametrize("seed", range(12))
def test_what_was_found_faster_only_when_repeated_is_tried_together_or_named(seed):
    planted = Planted(by_workers_and_optimizer, spread=0.02, seed=seed)
    found, runner = searched(planted, plan_of(workers(4), FUSED))
    speed = found.speedup(FUSED.trial())
    if speed.verdict == FASTER and speed.mid >= 1.03:
        # The last baseline may tell what no run before it could.
        assert "num_workers=4,fused=True" in (*runner.ran, *found.unfinished)


def test_no_combination_is_named_where_one_change_alone_helps():
    planted = Planted(lambda o: 0.004 if o.get("num_workers") else 0.010)
    found, _ = searched(planted, plan_of(workers(2), FUSED, threads(1)), budget_s=30.0)
    assert found.ended_by == BUDGET
    assert not any("," in name for name in found.unfinished)


def test_a_baseline_that_no_model_meets_is_not_planned_from():
    planned = []

    def plan_from(base, free_s):
        planned.append((base.trial.name, base.number))
        if planned[-1] == (BASELINE, 1):
            return replace(plan_of(threads(1)), ceiling=None, alone=None)
        return plan_of(*PLANS)

    runner = FakeRunner(Planted(by_workers_and_threads))
    found = search_of(runner, plan_from, budget_s=600.0).run()
    assert planned == [(WARM_UP, 1), (BASELINE, 1), (BASELINE, 2), (BASELINE, 2)]
    assert runner.ran[:3] == [WARM_UP, BASELINE, BASELINE]
    assert found.best.overrides["num_workers"] == 4
    assert found.predicted[CEILING] == plan_of().ceiling


def test_a_ceiling_that_cannot_be_foretold_is_measured_without_a_forecast():
    plan = replace(plan_of(*PLANS), foretells_ceiling=False)
    found, runner = searched(Planted(by_workers_and_threads), plan)
    assert CEILING in runner.ran
    assert found.predicted[CEILING] is None


def test_where_no_model_meets_any_baseline_the_rest_is_tried():
    plan = replace(plan_of(threads(1)), ceiling=None, alone=None)
    found, runner = searched(Planted(by_workers_and_threads), plan)
    assert runner.ran[:4] == [WARM_UP, BASELINE, BASELINE, CEILING]
    assert "torch_threads=1" in runner.ran
    assert found.ended_by == FINISHED


def test_of_settings_that_are_as_fast_the_smaller_one_is_taken():
    found, _ = searched(
        Planted(lambda o: 0.004 if o.get("num_workers") else 0.010), plan_of(workers(2), workers(8))
    )
    assert found.best.overrides == {"num_workers": 2}


@pytest.mark.parametrize("seed", range(20))
def test_where_nothing_helps_nothing_is_recommended(seed):
    planted = Planted(lambda _: 0.010, free_s=0.010, spread=0.01, seed=seed)
    found, _ = searched(planted)
    assert found.best is None


def test_where_free_data_is_no_faster_no_change_of_loading_is_tried():
    found, runner = searched(Planted(lambda _: 0.010, free_s=0.010))
    assert not any("workers" in name for name in runner.ran)
    assert "torch_threads=1" in runner.ran
    assert any("free data" in note for note in found.plan.notes)


def test_where_noise_may_hide_what_loading_costs_its_changes_are_tried():
    planted = Planted(by_workers_and_threads, free_s=0.012, spread=0.4, seed=7)
    found, runner = searched(planted)
    ceiling = found.speedup(next(r.trial for r in found.runs if r.trial.name == CEILING))
    assert ceiling.high > 1.1
    assert any("workers" in name for name in runner.ran)


def test_less_than_is_worth_a_change_is_not_recommended():
    found, _ = searched(Planted(lambda o: 0.0098 if o else 0.010, free_s=0.0098, steps=1000))
    assert found.best is None


def test_quicker_trials_make_more_steps_unless_their_number_was_asked_for():
    found, runner = searched(Planted(by_workers_and_threads, steps=10_000))
    at = runner.ran.index("num_workers=4")
    low, high = found.predicted["num_workers=4"]
    assert runner.limits[at].steps == math.ceil(found.trial_steps * math.sqrt(low * high))
    assert runner.limits[runner.ran.index("torch_threads=1")].steps == found.trial_steps

    _, runner = searched(Planted(by_workers_and_threads, steps=10_000), trial_steps=60)
    assert runner.limits[runner.ran.index("num_workers=4")].steps == 60


def test_free_data_has_enough_steps_after_the_batches_that_are_kept():
    plan = replace(plan_of(*PLANS), steps_per_batch=2.0, free_sites=("train.py:9", "train.py:12"))
    found, runner = searched(Planted(by_workers_and_threads), plan, trial_steps=60)
    at = runner.ran.index(CEILING)
    times = math.sqrt(plan.ceiling[0] * plan.ceiling[1])
    assert times > 1
    assert runner.limits[at].steps == math.ceil(60 * times) + 160
    assert runner.limits[at - 1].steps == 60
    assert found.of(CEILING)[0].trial.sites == ("train.py:9", "train.py:12")
    assert found.of(LOADER_ALONE)[0].trial.sites == ("train.py:9",)


def test_a_long_warm_up_does_not_eat_the_budget_of_later_trials():
    """24 s of warm-up, then trials of 2.4 s: what is left of 40 s is worth several."""
    planted = Planted(by_workers_and_threads, steps=2000)
    found, runner = searched(planted, budget_s=40.0)
    assert runner.ran[0] == WARM_UP
    assert found.spent_s() > 40.0 - 2 * max(one.seconds for one in found.runs[1:])
    assert found.spent_s() <= 40.0


def test_a_trial_that_fails_is_a_result_and_the_others_go_on():
    outcomes = {"num_workers=2": OUT_OF_MEMORY, "torch_threads=1": TIMED_OUT}
    found, _ = searched(Planted(by_workers_and_threads, failing=outcomes))
    assert found.best.overrides == {"num_workers": 4}
    assert {r.outcome for r in found.of("num_workers=2")} == {OUT_OF_MEMORY}


@pytest.mark.parametrize("name", [WARM_UP, BASELINE])
def test_a_script_that_fails_by_itself_cannot_be_tuned(name):
    with pytest.raises(CannotTune, match="failed: ValueError") as told:
        searched(Planted(by_workers_and_threads, failing={name: FAILED}), directory=Path("runs/t"))
    assert told.value.hint.endswith(f"runs/t/trials/{name}.1/console")


def test_the_budget_is_kept_and_what_is_known_by_then_is_told():
    found, _ = searched(Planted(by_workers_and_threads, steps=2000), budget_s=60.0)
    assert found.ended_by == BUDGET
    assert found.spent_s() <= 60.0
    assert found.runs[-1].trial.name == BASELINE


def one_that_is_slow(overrides):
    """Of 10 ms steps one setting makes such of 4 s."""
    return 4.0 if "torch_threads" in overrides else 0.010


@pytest.mark.parametrize("budget_s", [40.0, 55.0, 70.0])
def test_one_slow_trial_does_not_overrun_the_budget(budget_s):
    """200 steps would take 800 s; of those made by then too few tell anything."""
    found, _ = searched(Planted(one_that_is_slow), plan_of(threads(1)), budget_s=budget_s)
    # Beyond it: the step in which the time was over, and an end behind it.
    assert found.spent_s() <= budget_s + 5.0
    (slow,) = found.of("torch_threads=1")
    assert slow.was_cut
    assert slow.outcome == CUT_SHORT
    assert "the budget was over after" in slow.detail
    assert found.ended_by == BUDGET


def test_what_a_slow_trial_did_until_the_budget_was_over_counts():
    planted = Planted(lambda o: 1.0 if "torch_threads" in o else 0.010)
    found, runner = searched(planted, plan_of(threads(1)), budget_s=60.0)
    assert found.spent_s() <= 60.0 + 2.0
    (slow,) = found.of("torch_threads=1")
    assert (slow.was_cut, slow.outcome) == (True, OK)
    assert 20 <= slow.steps < 200
    assert found.speedup(slow.trial).verdict == SLOWER
    assert runner.ran[-1] == BASELINE


def test_a_slow_trial_does_not_eat_a_long_budget():
    """A minute at most of an hour, for trials that take 4 s."""
    planted = Planted(lambda o: 1.0 if "torch_threads" in o else 0.010)
    found, _ = searched(planted, plan_of(threads(1), workers(2)), budget_s=3600.0)
    slow = found.of("torch_threads=1")[0]
    assert slow.was_cut
    assert 55 < slow.seconds < 65
    assert found.ended_by == FINISHED


@pytest.mark.parametrize("budget_s", [60.0, 3600.0])
def test_a_change_that_hangs_is_killed_within_the_budget(budget_s):
    planted = Planted(lambda o: 0.010, slow_starts={"torch_threads=1": 1e6})
    found, _ = searched(planted, plan_of(threads(1)), budget_s=budget_s)
    (hung,) = found.of("torch_threads=1")
    assert hung.outcome == HUNG
    assert found.spent_s() <= budget_s


@pytest.mark.parametrize("name", [WARM_UP, BASELINE])
@pytest.mark.parametrize("budget_s", [10.0, 20.0, 600.0])
def test_a_script_that_hangs_is_killed_within_the_budget(name, budget_s):
    runner = FakeRunner(Planted(lambda o: 0.010, slow_starts={name: 1e6}))
    search = search_of(runner, lambda base, free_s: plan_of(*PLANS), budget_s=budget_s)
    with pytest.raises(CannotTune, match="the script hangs, or starts slowly") as refused:
        search.run()
    assert "longer --budget" in refused.value.hint
    assert runner.ran[-1] == name
    assert runner.now() <= budget_s


@pytest.mark.parametrize("start_up_s", [0.5, 3.0, 5.0, 8.0])
@pytest.mark.parametrize("budget_s", [10.0, 20.0, 45.0, 60.0])
def test_no_budget_is_overrun_by_more_than_the_end_of_a_trial(budget_s, start_up_s):
    runner = FakeRunner(Planted(by_workers_and_threads, start_up_s=start_up_s))
    search = search_of(runner, lambda base, free_s: plan_of(*PLANS), budget_s=budget_s)
    needed = None
    try:
        found = search.run()
        needed = found.needed_budget_s
    except CannotTune as refused:
        needed = float(re.search(r"--budget (\d+)s", refused.hint)[1])
    assert runner.now() <= budget_s + 0.1
    changed = [name for name in runner.ran if "=" in name]
    assert bool(changed) is (needed is None)
    # Two runs have to fit, of a start and 30 steps.
    assert changed or budget_s < 2.5 * (start_up_s + 0.4) + 2.0
    if needed is not None:
        assert budget_s < needed
        found, runner = searched(runner.planted, budget_s=needed)
        assert any("=" in name for name in runner.ran)


def test_the_first_run_counts_where_another_baseline_leaves_no_time_for_a_change():
    found, runner = searched(Planted(by_workers_and_threads, start_up_s=7.0), budget_s=22.0)
    assert runner.ran == [WARM_UP, "num_workers=2"]
    assert [one.trial.name for one in found.runs] == [BASELINE, "num_workers=2"]
    assert found.speedup(found.runs[1].trial).mid > 1.5
    assert found.first_counts


def test_where_no_time_is_left_for_a_change_the_budget_that_has_it_is_known():
    class SlowToEnd(FakeRunner):
        def run(self, trial, number, limits):
            self.clock_s += 5.0 if trial.name == BASELINE else 0.0
            return super().run(trial, number, limits)

    runner = SlowToEnd(Planted(by_workers_and_threads, start_up_s=3.0))
    found = search_of(runner, lambda base, free_s: plan_of(*PLANS), budget_s=14.0).run()
    assert not any("=" in name for name in runner.ran)
    assert found.ended_by == BUDGET
    assert found.needed_budget_s == 15.0
    assert found.unfinished[0] == "num_workers=2"


def test_what_is_to_be_tried_is_said_after_the_baseline():
    told = []
    searched(Planted(lambda o: 0.010), plan_of(threads(1), threads(2)), announce=told.append)
    assert len(told) == 2
    assert told[1].endswith(": torch_threads=1, torch_threads=2")


def test_runs_that_were_made_before_take_nothing_of_the_budget():
    """After 30 s it goes on for 20 s more."""
    begun, _ = searched(Planted(by_workers_and_threads), budget_s=30.0)
    assert begun.ended_by == BUDGET
    known = {(one.trial.name, one.number) for one in begun.runs}
    search = search_of(
        FakeRunner(Planted(by_workers_and_threads)),
        lambda base, free_s: plan_of(*PLANS),
        budget_s=20.0,
        is_known=lambda trial, number: (trial.name, number) in known,
    )
    found = search.run()
    later = [one for one in found.runs if (one.trial.name, one.number) not in known]
    assert 0 < sum(one.seconds for one in later) <= 20.0
    assert {one.trial.name for one in begun.runs} <= {one.trial.name for one in found.runs}


def test_trials_that_are_as_they_should_be_are_not_cut():
    found, _ = searched(Planted(by_workers_and_threads))
    assert not [one.trial.name for one in found.runs if one.was_cut]


@pytest.mark.parametrize("at", range(1, 9))
def test_ctrl_c_ends_with_what_is_known(at):
    found, runner = searched(Planted(by_workers_and_threads, interrupted_at=at))
    assert found.ended_by == INTERRUPTED
    assert len(runner.ran) == at


def test_single_changes_are_measured_between_baselines():
    plan = plan_of(*(threads(n) for n in range(1, 9)))
    _, runner = searched(Planted(lambda _: 0.01), plan)
    gaps = [len(list(g)) for is_base, g in itertools.groupby(runner.ran, BASELINE.__eq__)]
    assert max(gaps) <= 4


def test_what_a_faster_setting_gives_is_measured_until_it_is_sure():
    found, runner = searched(
        Planted(lambda o: 0.0090 if o else 0.010, free_s=0.0090, spread=0.01), plan_of(workers(2))
    )
    assert runner.ran.count("num_workers=2") >= 2
    assert runner.ran.count(BASELINE) >= 3
    assert found.best is not None


def warm_up(*, steps, step_s, start_up_s=3.0, is_whole=False):
    training_s = steps * step_s
    return Measured(
        Trial(WARM_UP),
        1,
        "trials/warm_up",
        "ok",
        None,
        start_up_s + training_s,
        run_s=start_up_s + training_s if is_whole else None,
        steps=steps,
        training_s=training_s,
    )


@pytest.mark.parametrize(
    ("budget_s", "longest_s", "trained_s"),
    [
        (12.0, 1.2, 0.5),
        (30.0, 3.0, 1.25),
        (60.0, 6.0, 2.5),
        (300.0, 30.0, 5.0),
        (3600.0, 60.0, 5.0),
    ],
)
def test_the_run_that_does_not_count_leaves_the_budget_to_the_others(
    budget_s, longest_s, trained_s
):
    limits = limits_of_warm_up(budget_s, budget_s, None)
    assert limits.enough_s == pytest.approx((longest_s, trained_s))
    assert limits.killed_after_s == 2 * limits.seconds == budget_s
    assert limits.enough_steps == (30 if budget_s <= 60.0 else 1)
    asked = limits_of_warm_up(budget_s, budget_s, 60)
    # Of as long trials as may be asked for it is one: they read more than it would.
    assert asked.steps == 60
    assert asked.enough_s == pytest.approx((longest_s, max(budget_s / 24, 2.0)))
    assert (asked.seconds, asked.killed_after_s) == (limits.seconds, limits.killed_after_s)


@pytest.mark.parametrize(("start_up_s", "steps"), [(3.0, 1000), (70.0, 200), (190.0, 200)])
def test_a_long_start_leaves_the_run_that_does_not_count_some_training(start_up_s, steps):
    """Steps of 10 ms: trials of 2 s behind a start of over a minute, not 60 of them."""
    planted = Planted(lambda overrides: 0.010, steps=10_000, start_up_s=start_up_s)
    found, _ = searched(planted, budget_s=600.0)
    assert found.runs[0].trial.name == WARM_UP
    assert found.runs[0].steps >= 490
    assert found.trial_steps == pytest.approx(steps, abs=20)


def test_trials_are_as_long_as_the_budget_lets_them():
    assert steps_of_trials(warm_up(steps=100, step_s=0.1), 600.0) == 220
    assert steps_of_trials(warm_up(steps=100, step_s=0.001), 600.0) == 1000
    assert steps_of_trials(warm_up(steps=20, step_s=2.5), 600.0) == 60
    # Three of them fit.
    assert steps_of_trials(warm_up(steps=20, step_s=3.0), 600.0) == 58
    assert steps_of_trials(warm_up(steps=20, step_s=9.0), 600.0) == 30
    assert steps_of_trials(warm_up(steps=100, step_s=0.1, is_whole=True), 600.0) is None
    assert steps_of_trials(warm_up(steps=0, step_s=0.1), 600.0) == 60


@pytest.mark.parametrize(
    ("of_a_pass", "steps"),
    [(10.0, 60), (50.0, 105), (300.0, 330), (400.5, 441), (800.0, 60)],  # 60 s hold 570 steps
)
def test_trials_see_later_passes_start_where_the_budget_lets_them(of_a_pass, steps):
    run = warm_up(steps=100, step_s=0.09, start_up_s=3.0)
    assert steps_beyond_a_pass(60, of_a_pass, run, 600.0) == pytest.approx(steps, abs=1)


@pytest.mark.parametrize(("asked", "steps"), [(None, 771), (70, 70)])
def test_every_trial_goes_beyond_a_pass_whose_start_tells(asked, steps):
    plan = replace(plan_of(workers(4)), steps_of_a_pass=700.0)
    planted = Planted(lambda overrides: 0.03, steps=10_000)
    found, runner = searched(planted, plan, trial_steps=asked)
    limits = zip(runner.ran, runner.limits, strict=True)
    of_baselines = [limit.steps for name, limit in limits if name == BASELINE]
    assert found.trial_steps == steps
    assert set(of_baselines) == {steps}


def test_a_run_that_tells_nothing_makes_trials_no_longer():
    plan = replace(plan_of(workers(4)), steps_of_a_pass=300.0)
    planted = Planted(lambda overrides: 2.5, steps=10_000)
    found, _ = searched(planted, plan)
    assert found.trial_steps == 60
