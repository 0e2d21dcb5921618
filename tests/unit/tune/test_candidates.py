"""What is worth trying follows from the baseline; forecasts hold in the model's own world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of

from trainprof.analysis.model.optimizer_builder import OptimizerCall
from trainprof.analysis.model.torch_settings import LoopedOptimizer, TorchSettings
from trainprof.analysis.pipeline.bounds import Interval
from trainprof.findings.run_context import RunContext
from trainprof.tune.candidate import Candidate, together
from trainprof.tune.candidates import Plan, plan
from trainprof.tune.loader_candidates import WORKERS

HEALTHY = Planted(workers=4, fetch_s=0.01, compute_s=0.02)


def looped(case: RunContext) -> RunContext:
    return replace(case, torch=TorchSettings(looped=[LoopedOptimizer("Adam", 9, "train.py:5")]))


def subjects(found: Plan) -> list[str]:
    return [one.subject for one in found.candidates]


def test_more_workers_are_tried_where_batches_are_waited_for() -> None:
    found = plan(case_of(Planted(workers=0, fetch_s=0.03)))
    first = found.candidates[0]
    assert first.subject == "workers"
    assert first.overrides["persistent_workers"] is True
    # 30 ms and 10 ms in turn become 10 ms.
    low, high = first.predicted
    assert low < 4.0 < high
    assert found.sites == ("train.py:41",)
    assert any("augment" in told for told in first.cautions)


def test_none_are_tried_where_workers_cost_more_than_they_save() -> None:
    quick = Planted(
        workers=2,
        is_persistent=True,
        fetch_s=0.0001,
        running=1.0,
        compute_s=0.0005,
        receive_s=Interval.exactly(0.001),
    )
    first = plan(case_of(quick)).candidates[0]
    assert (first.subject, first.overrides) == ("workers", {"num_workers": 0})
    assert first.predicted[0] <= 2.5 <= first.predicted[1]


def test_free_data_is_forecast_by_the_wait() -> None:
    found = plan(case_of(Planted(workers=0, fetch_s=0.03)))
    assert found.ceiling[0] < 4.0 < found.ceiling[1]


def test_free_data_saves_the_starts_of_passes_as_well() -> None:
    case = case_of(Planted(workers=0, fetch_s=0.03))
    without, found = plan(case).ceiling, plan(case, starts=0.5).ceiling
    assert found == pytest.approx((1.5 * without[0], 1.5 * without[1]))


@pytest.mark.parametrize(
    ("compute_s", "threads", "running", "is_told"),
    [
        (0.008, 2, 0.0, False),  # mostly waking up from the wait, it may be
        (0.008, 1, 0.0, True),
        (0.001, 1, 0.0, False),
        (0.013, 2, 0.0, True),
        (0.008, 2, 1.0, True),  # loading computes: nobody slept
    ],
)
def test_no_forecast_is_made_of_steps_that_may_be_nothing_but_waking_up(
    compute_s: float, threads: int, running: float, is_told: bool
) -> None:
    case = case_of(Planted(workers=0, fetch_s=0.1, compute_s=compute_s, running=running))
    found = plan(replace(case, torch=TorchSettings(threads=threads)))
    assert found.ceiling is not None
    assert found.foretells_ceiling is is_told


def test_free_data_gives_back_what_workers_take_from_computing() -> None:
    # 20 ms beside workers at work, 10 in those batches for which they have nothing to do.
    planted = Planted(workers=2, fetch_s=0.04, running=1.0, compute_s=0.02, is_persistent=True)
    alone = np.zeros(STEPS, dtype=bool)
    alone[[*range(80, 99), *range(180, 199)]] = True
    planted.inputs = replace(
        planted.inputs,
        compute_s=np.where(alone, 0.01, 0.02),
        workers_busy=np.where(alone, 0.0, 1.5),
    )
    fetch = planted.loader.fetch
    fetch = replace(fetch, runnable_s=0.4 * (fetch.running_s or 0.0))
    planted.loader = replace(planted.loader, fetch=fetch)
    found = plan(case_of(planted))
    assert found.ceiling[0] < 1.8 < found.ceiling[1]
    assert found.ceiling[0] > 1.4


def test_all_loaders_that_are_waited_for_become_free() -> None:
    case = case_of(Planted(workers=0, fetch_s=0.03))
    fed = case.feeding[0]
    second = replace(fed, loader=replace(fed.loader, id=9, site="train.py:50"))
    idle = replace(fed.loader, id=10, site="train.py:60", wait_s=None, wait_total_s=0.0)
    alone, both = plan(case), plan(replace(case, feeding=[fed, second, replace(fed, loader=idle)]))
    assert alone.free_sites == ("train.py:41",)
    assert both.free_sites == ("train.py:41", "train.py:50")
    assert both.sites == ("train.py:41",)
    assert both.ceiling[0] > alone.ceiling[0]


def with_steps(case: RunContext, *, iterations: int, training_s: float) -> RunContext:
    """Returns a case of 200 steps."""
    training = replace(case.summary.training, iterations=iterations, steps=200)
    return replace(
        case,
        summary=replace(case.summary, training=training),
        training_s=training_s,
        feeding=[replace(fed, training_s=training_s) for fed in case.feeding],
    )


def zipped(one_s: float, other_s: float, compute_s: float = 0.01, **second: object) -> RunContext:
    """Each step takes a batch of both, that are made one after the other without workers."""
    one = Planted(workers=0, fetch_s=one_s, compute_s=compute_s + other_s)
    other = Planted(workers=0, fetch_s=other_s, compute_s=compute_s + one_s)
    other.loader = replace(other.loader, id=1, **({"site": "train.py:50"} | second))
    step_s = one_s + other_s + compute_s
    return with_steps(case_of(one, other), iterations=200, training_s=200 * step_s)


def test_of_two_loaders_in_every_step_each_gets_the_workers_that_it_needs() -> None:
    """30 ms and 15 ms of loading one after the other, 10 ms of training: 55 ms become 10."""
    found = plan(zipped(0.03, 0.015))
    first = found.candidates[0]
    assert first.sites == ("train.py:41", "train.py:50")
    workers = first.overrides["num_workers"]
    assert list(workers) == ["train.py:41", "train.py:50"]
    assert workers["train.py:41"] > workers["train.py:50"] >= 2
    assert first.overrides["persistent_workers"] is True
    assert first.name == "num_workers=3+2,persistent_workers=True"
    low, high = first.predicted
    assert low < 5.5 < high < 1.6 * low
    trial = first.trial()
    assert trial.arguments_at("train.py:50") == {"num_workers": 2, "persistent_workers": True}
    assert len({one.name for one in found.candidates}) == len(found.candidates)


def test_steps_that_wait_for_neither_tell_how_fast_both_together_make_them() -> None:
    """Computing of 10 ms takes 6 once nothing is waited for."""
    first = plan(zipped(0.03, 0.015), free_step_s=0.006).candidates[0]
    assert first.predicted[0] < 55 / 6 < first.predicted[1]
    # One of them cannot be changed: it is waited for all the same.
    case = zipped(0.03, 0.015, is_iterable=True)
    one = plan(case, free_step_s=0.006).candidates[0]
    assert (one.sites, one.overrides["num_workers"]) == (("train.py:41",), 2)
    # Waits of 15 ms of 45 remain, and with them a third of what they slow computing by.
    assert one.predicted[0] < 55 / (15 + 6 + 4 / 3) < one.predicted[1]


def test_loaders_that_take_turns_are_each_as_fast_as_they_are() -> None:
    """A pass of 40 ms steps, then one of 25 ms: both become 10 ms."""
    one = Planted(workers=0, fetch_s=0.03, compute_s=0.01)
    other = Planted(workers=0, fetch_s=0.015, compute_s=0.01)
    other.loader = replace(other.loader, id=1, site="train.py:50")
    case = with_steps(case_of(one, other), iterations=400, training_s=200 * 0.065)
    first = plan(case).candidates[0]
    assert first.sites == ("train.py:41", "train.py:50")
    assert first.predicted[0] < 65 / 20 < first.predicted[1]


def test_a_loader_that_is_not_waited_for_is_left_as_it_is() -> None:
    first = plan(zipped(0.03, 0.0002)).candidates[0]
    assert first.sites == ("train.py:41",)
    assert isinstance(first.overrides["num_workers"], int)


def test_loaders_of_one_line_get_the_same() -> None:
    first = plan(zipped(0.03, 0.015, site="train.py:41")).candidates[0]
    assert first.sites == ("train.py:41",)
    assert first.overrides["num_workers"] == 3


def test_workers_of_several_loaders_share_the_cores() -> None:
    """Two loaders that compute, 30 ms a batch each: two cores carry one worker of each."""
    parts = {"running": 1.0, "cores": 2.0}
    one = Planted(workers=0, fetch_s=0.03, compute_s=0.04, **parts)
    other = Planted(workers=0, fetch_s=0.03, compute_s=0.04, **parts)
    other.loader = replace(other.loader, id=1, site="train.py:50")
    case = with_steps(case_of(one, other), iterations=200, training_s=200 * 0.07)
    workers = [
        one.overrides["num_workers"] for one in plan(case).candidates if one.subject == WORKERS
    ]
    assert workers == [{"train.py:41": 1, "train.py:50": 1}]
    first = plan(case).candidates[0]
    # 70 ms of work a step on two cores.
    assert first.predicted[0] < 2.0 < first.predicted[1] < 3.0


def test_the_loader_alone_is_forecast_by_its_fetches() -> None:
    # Two workers make a batch each 15 ms, training takes one each 15 ms.
    found = plan(case_of(Planted(workers=2, fetch_s=0.03)))
    assert found.alone[0] < 1.0 < found.alone[1]


def test_quick_batches_may_be_quicker_by_themselves() -> None:
    # A batch takes 0.5 ms between steps, and less where no step has had the caches meanwhile.
    quick = plan(case_of(Planted(workers=0, fetch_s=0.0005, compute_s=0.001))).alone
    slow = plan(case_of(Planted(workers=0, fetch_s=0.005, compute_s=0.01))).alone
    assert slow[0] < 3 < slow[1] < 4
    assert quick[0] < 3 < 3 * 3 < quick[1]


def test_a_healthy_loader_is_left_as_it_is() -> None:
    found = plan(case_of(Planted(workers=4, fetch_s=0.01, compute_s=0.02)))
    assert "workers" not in subjects(found)
    assert "prefetching" not in subjects(found)


@pytest.mark.parametrize(
    ("length", "passes", "is_persistent", "steps"),
    [
        (500, 1, False, None),  # what comes between passes was not seen
        (50_000, 2, False, None),  # starts take nothing of so long a pass
        (100, 2, False, 100),
        (100, 2, True, None),
        (None, 3, False, 100),
        (None, 1, False, None),  # nobody knows how many
        (None, 3, True, None),
    ],
)
def test_trials_go_beyond_a_pass_whose_start_tells(
    length: int | None, passes: int, is_persistent: bool, steps: int | None
) -> None:
    planted = Planted(
        workers=2, fetch_s=0.03, start_s=2.0, passes=passes, is_persistent=is_persistent
    )
    planted.loader = replace(planted.loader, length=length, iterations=200)
    found = plan(case_of(planted)).steps_of_a_pass
    assert found == (None if steps is None else pytest.approx(steps))


@pytest.mark.parametrize(("length", "steps"), [(None, 100), (500, None)])
def test_without_workers_a_pass_is_seen_end_where_its_length_is_not_known(
    length: int | None, steps: int | None
) -> None:
    planted = Planted(workers=0, fetch_s=0.03, passes=3)
    planted.loader = replace(planted.loader, length=length, iterations=200)
    found = plan(case_of(planted)).steps_of_a_pass
    assert found == (None if steps is None else pytest.approx(steps))


@pytest.mark.parametrize(
    ("length", "ended", "batches"),
    [
        (None, [300], 300),  # one pass, and the script was over
        (None, [100, 104], 102),  # a third had just begun, or not
        (None, [], None),  # the loop leaves its passes by itself
        (500, [500], None),
    ],
)
def test_free_data_of_a_stream_ends_where_its_passes_were_seen_to_end(
    length: int | None, ended: list[int], batches: int | None
) -> None:
    planted = Planted(workers=0, fetch_s=0.03)
    planted.loader = replace(
        planted.loader, length=length, ended=len(ended), ended_batches=ended, iterations=310
    )
    assert plan(case_of(planted)).pass_batches == batches


@pytest.mark.parametrize(
    ("count", "prefetch", "fewest"), [(0, None, 22), (2, None, 30), (16, 4, 150)]
)
def test_a_loader_alone_has_to_get_beyond_what_its_workers_made_at_once(
    count: int, prefetch: int | None, fewest: int
) -> None:
    planted = Planted(workers=count, fetch_s=0.03)
    planted.loader = replace(planted.loader, prefetch_factor=prefetch, num_workers=count)
    assert plan(case_of(planted)).fewest_alone == fewest


def test_no_workers_for_a_dataset_that_would_be_read_several_times() -> None:
    planted = Planted(workers=0, fetch_s=0.03)
    case = case_of(planted)
    feeding = case.feeding[0]
    iterable = replace(feeding, loader=replace(feeding.loader, is_iterable=True))
    found = plan(replace(case, feeding=[iterable]))
    assert "workers" not in subjects(found)
    assert any("get_worker_info" in note for note in found.notes)
    assert plan(case).notes == ()
    shared = replace(iterable, loader=replace(iterable.loader, shares_samples=True))
    assert "workers" in subjects(plan(replace(case, feeding=[shared])))
    busy = case_of(Planted(workers=2, fetch_s=0.03)).feeding[0]
    repeated = replace(busy.loader, is_iterable=True, shares_samples=False)
    found = plan(replace(case, feeding=[replace(busy, loader=repeated)]))
    assert "workers" not in subjects(found)


def test_no_more_workers_are_tried_than_a_stream_has_shards() -> None:
    planted = Planted(workers=0, fetch_s=0.03, shards=2)
    planted.loader = replace(planted.loader, is_iterable=True, has_asked_for_worker=True)
    found = plan(case_of(planted))
    tried = [one.overrides["num_workers"] for one in found.candidates if one.subject == WORKERS]
    assert tried == [2]
    planted = Planted(workers=1, fetch_s=0.03, shards=1)
    planted.loader = replace(planted.loader, is_iterable=True, has_asked_for_worker=True)
    found = plan(case_of(planted))
    assert all(one.overrides.get("num_workers", 0) < 1 for one in found.candidates)
    assert any("not tried: 1 shard" in note for note in found.notes)


def test_workers_are_tried_whatever_generators_a_dataset_has() -> None:
    planted = Planted(workers=0, fetch_s=0.03)
    planted.loader = replace(planted.loader, generators=["rng"])
    found = plan(case_of(planted))
    assert "workers" in subjects(found)
    assert any("self.rng" in told for told in found.candidates[0].cautions)
    assert found.notes == ()


def test_workers_that_start_again_in_each_pass_are_tried_without() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.005, passes=10, start_s=0.3))
    found = next(one for one in plan(case).candidates if one.subject == "restarts")
    assert found.overrides == {"persistent_workers": True}
    assert "shuffling draws other numbers" in found.cautions[0]
    assert found.predicted[1] > 1.5
    # Not so where it was the first start alone that took long.
    fed = case.feeding[0]
    once = replace(fed.loader, first_start_s=fed.starts_s - 0.01)
    late = replace(case, feeding=[replace(fed, loader=once)])
    assert not [one for one in plan(late).candidates if one.subject == "restarts"]


@pytest.mark.parametrize("facts", [{"overlaps": True}, {"changed_between_passes": ["rate"]}])
def test_workers_that_would_train_otherwise_are_not_tried_to_live_on(facts: dict[str, Any]) -> None:
    planted = Planted(workers=2, fetch_s=0.005, passes=10, start_s=0.3)
    planted.loader = replace(planted.loader, **facts)
    found = plan(case_of(planted))
    assert "restarts" not in subjects(found)
    planted = Planted(fetch_s=0.03, compute_s=0.01, passes=10)
    assert any("persistent_workers" in one.overrides for one in plan(case_of(planted)).candidates)
    planted.loader = replace(planted.loader, **facts)
    tried = plan(case_of(planted)).candidates
    assert [one for one in tried if "num_workers" in one.overrides]
    assert not [one for one in tried if "persistent_workers" in one.overrides]


@pytest.mark.parametrize(
    "facts",
    [
        {"open_files": ["raw (BufferedReader)"]},
        {"touches_device": True},
        {"is_iterable": True, "shares_samples": False},
    ],
)
def test_workers_that_would_train_on_something_else_are_not_tried(facts: dict[str, Any]) -> None:
    planted = Planted(workers=0, fetch_s=0.03)
    assert "workers" in subjects(plan(case_of(planted)))
    planted.loader = replace(planted.loader, **facts)
    found = plan(case_of(planted))
    assert not {"workers", "pinned memory"} & set(subjects(found))
    assert [note.partition(":")[0] for note in found.notes] == ["train.py"]


@pytest.mark.parametrize(("reason", "most"), [("limit", 6.0), ("completed", None)])
def test_what_lives_on_is_foretold_of_a_run_that_goes_on_where_its_trial_is_ended(
    reason: str, most: float | None
) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.005, passes=2, start_s=0.3))
    run = replace(case.summary.run, exit=replace(case.summary.run.exit, reason=reason))
    case = replace(case, summary=replace(case.summary, run=run))
    [of_steps, with_starts] = [
        next(one for one in plan(case, starts=starts).candidates if one.subject == "restarts")
        for starts in (0.0, 5.0)
    ]
    # Starts of passes make a run that goes on six times as long; this one has its first as well.
    assert with_starts.predicted == pytest.approx(
        of_steps.predicted if most is None else (of_steps.predicted[0], most)
    )


def test_precision_is_left_alone_unless_it_may_be_changed() -> None:
    case = case_of(Planted(workers=4, fetch_s=0.01, compute_s=0.02), device="cuda:0")
    assert not [name for name in subjects(plan(case)) if name in ("matrix products",)]
    assert "matrix products" in subjects(plan(case, allow_numerics=True))


def test_an_optimizer_that_takes_long_is_tried_fused() -> None:
    case = looped(case_of(HEALTHY, parts={"optimizer": 4.0}))
    found = next(one for one in plan(case).candidates if one.subject == "optimizer")
    assert found.overrides == {"fused": True}
    assert found.predicted == pytest.approx((1 / 1.035, 2.0), rel=0.05)
    assert plan(case).optimizers == (OptimizerCall("Adam", "train.py:5"),)
    assert plan(case_of(HEALTHY)).optimizers == ()


def test_several_changes_together_promise_no_more_than_each_in_turn() -> None:
    found = plan(looped(case_of(Planted(workers=0, fetch_s=0.03), parts={"optimizer": 4.0})))
    one = next(x for x in found.candidates if x.subject == "workers")
    other = next(x for x in found.candidates if x.subject == "optimizer")
    both = together([one, other])
    assert both.predicted[1] == pytest.approx(one.predicted[1] * other.predicted[1])
    assert both.name == f"{one.name},fused=True"
    assert both.trial().settings() == {"fused": True}
    assert "fused" not in both.trial().loader_arguments()


def test_changes_together_reach_no_loader_that_they_were_not_meant_for() -> None:
    """A stream at data.py:5 gives each sample once without workers, and with them several times."""
    kept: dict[str, Any] = {"num_workers": 4, "persistent_workers": True}
    mapped = Candidate("workers", kept, (1.5, 2.0), sites=("train.py:41",))
    both_lines = ("train.py:41", "data.py:5")
    pinned = Candidate("pinned memory", {"pin_memory": True}, (1.0, 1.2), sites=both_lines)
    fused = Candidate("optimizer", {"fused": True}, (1.0, 1.1))
    trial = together([mapped, pinned, fused]).trial()
    assert trial.arguments_at("train.py:41") == {**kept, "pin_memory": True}
    assert trial.arguments_at("data.py:5") == {"pin_memory": True}
    assert trial.overrides["pin_memory"] is True
    assert trial.settings() == {"fused": True}
    # Of one line it is as short as before.
    alone = replace(pinned, sites=("train.py:41",))
    assert together([mapped, alone]).overrides == {**kept, "pin_memory": True}
    # What each line has by itself stays with it.
    by_line = {"num_workers": {"train.py:41": 3, "data.py:5": 2}, "persistent_workers": True}
    several = Candidate("workers", by_line, (1.5, 2.0), sites=both_lines)
    assert together([several, pinned]).overrides == {**by_line, "pin_memory": True}


def test_an_optimizer_that_takes_all_at_once_is_left_as_it_is() -> None:
    case = case_of(HEALTHY, parts={"optimizer": 4.0})
    assert "optimizer" not in subjects(plan(case))


def test_the_threads_that_there_are_are_not_tried_again() -> None:
    case = replace(case_of(HEALTHY), torch=TorchSettings(threads=1))
    tried = [one.overrides for one in plan(case).candidates if one.subject == "threads"]
    assert tried
    assert {"torch_threads": 1} not in tried
    assert all(one.predicted is None for one in plan(case).candidates if one.subject == "threads")


def test_more_threads_come_before_what_can_save_less_and_fewer_threads_last() -> None:
    case = looped(case_of(HEALTHY, parts={"optimizer": 0.4}))
    case = replace(case, torch=replace(case.torch, threads=2))
    tried = [one.overrides for one in plan(case).candidates]
    assert tried.index({"torch_threads": 4}) < tried.index({"fused": True})
    assert tried.index({"fused": True}) < tried.index({"torch_threads": 1})


def test_spawned_workers_that_start_again_are_tried_forked() -> None:
    planted = Planted(workers=2, fetch_s=0.005, passes=10, start_s=0.3)
    planted.loader = replace(planted.loader, start_method="spawn")
    overrides = [one.overrides for one in plan(case_of(planted)).candidates]
    assert {"multiprocessing_context": "fork"} in overrides
    # Those of a loader that each pass builds anew, too; they cannot live on.
    planted.loader = replace(planted.loader, built=planted.loader.passes)
    overrides = [one.overrides for one in plan(case_of(planted)).candidates]
    assert {"multiprocessing_context": "fork"} in overrides
    assert {"persistent_workers": True} not in overrides


def test_computing_that_gets_faster_without_waits_raises_the_forecast() -> None:
    """30 ms of loading, 10 of training, which takes 6 once nothing is waited for."""
    case = case_of(Planted(workers=0, fetch_s=0.03))
    before = plan(case).candidates[0]
    after = plan(case, free_step_s=0.006).candidates[0]
    assert before.predicted[0] < 4.0 < before.predicted[1]
    assert after.predicted[0] < 40 / 6 < after.predicted[1]
