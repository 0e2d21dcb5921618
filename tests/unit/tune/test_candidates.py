"""What is worth trying follows from the baseline; forecasts hold in the model's own world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of, on_device, with_run, with_summary
from support.planted_trials import FakeRunner, plan_of, search_of, threads, workers
from support.planted_trials import Planted as PlantedTrials

from trainprof.analysis.model.optimizer_builder import OptimizerCall
from trainprof.analysis.model.torch_settings import LoopedOptimizer, TorchSettings
from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.statistics.speedup import FASTER, SpeedUp
from trainprof.analysis.summary.code import Numerics, Operators
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.tune.candidate import Candidate, interval_without, learned, together
from trainprof.tune.candidates import Plan, plan
from trainprof.tune.loader_candidates import WORKERS

HEALTHY = Planted(workers=4, fetch_s=0.01, compute_s=0.02)
RESTARTING = {"workers": 2, "fetch_s": 0.005, "passes": 10, "start_s": 0.3}


def planted(changes: dict[str, Any] | None = None, **how: Any) -> RunContext:
    """A run of one loader, whose other fields are `changes`."""
    return case_of(Planted(**how).having(**(changes or {})))


def looped(context: RunContext, **spent: float) -> RunContext:
    adam = LoopedOptimizer("Adam", 9, "train.py:5", **spent)
    return replace(context, torch=TorchSettings(looped=[adam]))


def subjects(tried: Plan) -> list[str]:
    return [candidate.subject for candidate in tried.candidates]


def of_subject(tried: Plan, subject: str) -> list[Candidate]:
    return [candidate for candidate in tried.candidates if candidate.subject == subject]


def holds(interval: tuple[float, float] | None, *times: float) -> bool:
    return interval is not None and all(interval[0] < each < interval[1] for each in times)


# -- one loader


def test_more_workers_are_tried_where_batches_are_waited_for():
    tried = plan(planted(workers=0, fetch_s=0.03))
    first = tried.candidates[0]
    assert first.subject == "workers"
    assert first.overrides["persistent_workers"] is True
    # 30 ms and 10 ms in turn become 10 ms.
    assert holds(first.predicted, 4.0)
    assert holds(tried.ceiling, 4.0)
    assert tried.sites == ("train.py:41",)
    assert first.cautions


def test_none_are_tried_where_workers_cost_more_than_they_save():
    quick = planted(
        workers=2,
        is_persistent=True,
        fetch_s=0.0001,
        running=1.0,
        compute_s=0.0005,
        receive_s=Interval.exactly(0.001),
    )
    first = plan(quick).candidates[0]
    assert (first.subject, first.overrides) == ("workers", {"num_workers": 0})
    assert holds(first.predicted, 2.5)
    assert not {"workers", "prefetching"} & set(subjects(plan(case_of(HEALTHY))))


@pytest.mark.parametrize(
    ("compute_s", "torch_threads", "running", "is_foretold"),
    [
        (0.008, 2, 0.0, False),  # mostly waking up from the wait, it may be
        (0.008, 1, 0.0, True),
        (0.001, 1, 0.0, False),
        (0.013, 2, 0.0, True),
        (0.008, 2, 1.0, True),  # loading computes: nobody slept
    ],
)
def test_no_forecast_is_made_of_steps_that_may_be_nothing_but_waking_up(
    compute_s, torch_threads, running, is_foretold
):
    context = planted(workers=0, fetch_s=0.1, compute_s=compute_s, running=running)
    tried = plan(replace(context, torch=TorchSettings(threads=torch_threads)))
    assert tried.ceiling is not None
    assert tried.has_ceiling_forecast is is_foretold


def test_free_data_returns_what_workers_take_from_computing():
    # 20 ms concurrent with workers, 10 in those batches for which they are idle.
    run = Planted(workers=2, fetch_s=0.04, running=1.0, compute_s=0.02, is_persistent=True)
    alone = np.zeros(STEPS, dtype=bool)
    alone[[*range(80, 99), *range(180, 199)]] = True
    compute_s, busy = np.where(alone, 0.01, 0.02), np.where(alone, 0.0, 1.5)
    runnable = {"runnable_s": 0.4 * (run.loader.fetch.running_s or 0.0)}
    run.having(inputs={"compute_s": compute_s, "workers_busy": busy}, fetch=runnable)
    ceiling = plan(case_of(run)).ceiling
    assert holds(ceiling, 1.8)
    assert ceiling[0] > 1.4


def test_computing_that_gets_faster_without_waits_raises_the_forecast():
    """30 ms of loading, 10 of training, which takes 6 once nothing is waited for."""
    context = planted(workers=0, fetch_s=0.03)
    assert holds(plan(context).candidates[0].predicted, 4.0)
    assert holds(plan(context, free_step_s=0.006).candidates[0].predicted, 40 / 6)


def test_the_loader_alone_is_forecast_by_its_fetches():
    # Two workers prepare a batch each 15 ms, training takes one each 15 ms.
    assert holds(plan(planted(workers=2, fetch_s=0.03)).alone, 1.0)
    # A batch takes 0.5 ms between steps, and less where no step has had the caches.
    slow = plan(planted(workers=0, fetch_s=0.005, compute_s=0.01)).alone
    assert holds(slow, 3)
    assert slow[1] < 4
    assert holds(plan(planted(workers=0, fetch_s=0.0005, compute_s=0.001)).alone, 3, 9)
    # It has to get beyond what its workers prepared at once.
    many = planted({"prefetch_factor": 4, "num_workers": 16}, workers=16, fetch_s=0.03)
    assert plan(many).fewest_alone == 136


@pytest.mark.parametrize(
    ("how", "length", "steps"),
    [
        ({"passes": 1}, 500, None),  # what comes between passes was not seen
        ({"passes": 2}, 50_000, None),  # starts take nothing of so long a pass
        ({"passes": 2}, 100, 100),
        ({"passes": 2, "is_persistent": True}, 100, None),
        ({"passes": 3}, None, 100),
        ({"passes": 3, "workers": 0, "start_s": 0.0}, 500, None),
    ],
)
def test_trials_go_beyond_a_pass_whose_start_tells(how, length, steps):
    how = {"workers": 2, "fetch_s": 0.03, "start_s": 2.0, **how}
    of_a_pass = plan(planted({"length": length, "iterations": 200}, **how)).steps_of_epoch
    assert of_a_pass == (None if steps is None else pytest.approx(steps))


@pytest.mark.parametrize(
    ("length", "ended", "batches"),
    [
        (None, [300], 300),  # one pass, and the script was over
        (None, [100, 104], 102),  # a third had just begun, or not
        (None, [], None),  # the loop leaves its passes by itself
        (500, [500], None),
    ],
)
def test_free_data_of_a_stream_ends_where_its_passes_were_seen_to_end(length, ended, batches):
    seen = {"length": length, "ended": len(ended), "ended_batches": ended, "iterations": 310}
    assert plan(planted(seen, workers=0, fetch_s=0.03)).epoch_batches == batches


STREAM = {"is_iterable": True, "shares_samples": False}


@pytest.mark.parametrize(
    ("changes", "count", "is_tried", "notes"),
    [
        ({}, 0, True, []),
        # A stream that would be read several times.
        ({"is_iterable": True}, 0, False, ["get_worker_info"]),
        ({**STREAM, "shares_samples": True}, 0, True, []),
        (STREAM, 2, False, ["get_worker_info"]),
        # What would train on something else.
        ({"open_files": ["raw (BufferedReader)"]}, 0, False, ["train.py:41: "]),
        ({"touches_device": True}, 0, False, ["train.py:41: "]),
        ({"generators": ["rng"]}, 0, True, []),
    ],
)
def test_workers_are_tried_where_they_train_on_the_same(changes, count, is_tried, notes):
    tried = plan(planted(changes, workers=count, fetch_s=0.03))
    assert ("workers" in subjects(tried)) is is_tried
    assert is_tried or "pinned memory" not in subjects(tried)
    assert [word in note for word, note in zip(notes, tried.notes, strict=True)] == [True] * len(
        notes
    )
    if "generators" in changes:
        assert any("self.rng" in caution for caution in tried.candidates[0].cautions)


def test_no_more_workers_are_tried_than_a_stream_has_shards():
    asking = {"is_iterable": True, "has_asked_for_worker": True}
    tried = plan(planted(asking, workers=0, fetch_s=0.03, shards=2))
    assert [each.overrides["num_workers"] for each in of_subject(tried, WORKERS)] == [2]
    tried = plan(planted(asking, workers=1, fetch_s=0.03, shards=1))
    assert all(each.overrides.get("num_workers", 0) < 1 for each in tried.candidates)


def test_workers_that_start_again_in_each_pass_are_tried_persistent():
    context = planted(**RESTARTING)
    [restarts] = of_subject(plan(context), "restarts")
    assert restarts.overrides == {"persistent_workers": True}
    assert restarts.predicted[1] > 1.5
    # Not so where it was the first start alone that took long.
    loader = context.feeding[0]
    once = replace(loader.loader, first_start_s=loader.starts_s - 0.01)
    late = replace(context, feeding=[replace(loader, loader=once)])
    assert not of_subject(plan(late), "restarts")


@pytest.mark.parametrize("changes", [{"overlaps": True}, {"changed_between_passes": ["rate"]}])
def test_workers_that_would_train_otherwise_are_not_tried_persistent(changes):
    assert "restarts" not in subjects(plan(planted(changes, **RESTARTING)))
    context = planted(changes, fetch_s=0.03, compute_s=0.01, passes=10)
    changed = {name for each in plan(context).candidates for name in each.overrides}
    assert "num_workers" in changed
    assert "persistent_workers" not in changed


@pytest.mark.parametrize(("reason", "most"), [("limit", 6.0), ("completed", None)])
def test_persistent_workers_are_foretold_of_a_run_that_goes_on_where_its_trial_is_ended(
    reason, most
):
    context = planted(**{**RESTARTING, "passes": 2})
    context = with_run(context, exit=replace(context.summary.run.exit, reason=reason))
    without, with_starts = (
        of_subject(plan(context, starts=starts), "restarts")[0].predicted for starts in (0.0, 5.0)
    )
    # Starts of passes make a run that goes on six times as long; this one has its first as well.
    assert with_starts == pytest.approx(without if most is None else (without[0], most))


def test_spawned_workers_that_start_again_are_tried_forked():
    # Those of a loader that each pass builds again, too; they cannot persist.
    for built in (1, RESTARTING["passes"]):
        tried = plan(planted({"start_method": "spawn", "built": built}, **RESTARTING))
        changes = [each.overrides for each in tried.candidates]
        assert {"multiprocessing_context": "fork"} in changes
        assert ({"persistent_workers": True} in changes) is (built == 1)


# -- several loaders


def of_steps(context: RunContext, *, iterations: int, training_s: float) -> RunContext:
    """Returns a run of 200 steps."""
    training = replace(context.summary.training, iterations=iterations, steps=200)
    feeding = [replace(loader, training_s=training_s) for loader in context.feeding]
    context = with_summary(context, training=training)
    return replace(context, training_s=training_s, feeding=feeding)


def two(fetch_s, compute_s, **second: object):
    parts = second.pop("parts", {})
    first, other = (
        Planted(workers=0, fetch_s=fetch, compute_s=compute, **parts)
        for fetch, compute in zip(fetch_s, compute_s, strict=True)
    )
    return case_of(first, other.having(**{"id": 1, "site": "train.py:50"} | second))


def zipped(first_s: float, other_s: float, compute_s: float = 0.01, **second: object) -> RunContext:
    """Each step takes a batch of both, prepared one after the other without workers."""
    context = two((first_s, other_s), (compute_s + other_s, compute_s + first_s), **second)
    return of_steps(context, iterations=200, training_s=200 * (first_s + other_s + compute_s))


def test_all_loaders_that_are_waited_for_become_free():
    context = planted(workers=0, fetch_s=0.03)
    loader = context.feeding[0]
    second = replace(loader, loader=replace(loader.loader, id=9, site="train.py:50"))
    idle = replace(loader.loader, id=10, site="train.py:60", wait_s=None, wait_total_s=0.0)
    every = replace(context, feeding=[loader, second, replace(loader, loader=idle)])
    alone, both = plan(context), plan(every)
    assert alone.free_sites == both.sites == ("train.py:41",)
    assert both.free_sites == ("train.py:41", "train.py:50")
    assert both.ceiling[0] > alone.ceiling[0]


def test_of_two_loaders_in_every_step_each_gets_the_workers_that_it_needs():
    """30 ms and 15 ms of loading one after the other, 10 ms of training: 55 ms become 10."""
    tried = plan(zipped(0.03, 0.015))
    first = tried.candidates[0]
    assert first.sites == ("train.py:41", "train.py:50")
    count = first.overrides["num_workers"]
    assert list(count) == ["train.py:41", "train.py:50"]
    assert count["train.py:41"] > count["train.py:50"] >= 2
    assert first.name == "num_workers=3+2,persistent_workers=True"
    assert holds(first.predicted, 5.5)
    assert first.predicted[1] < 1.6 * first.predicted[0]
    # Computing of 10 ms takes 6 once nothing is waited for.
    assert holds(plan(zipped(0.03, 0.015), free_step_s=0.006).candidates[0].predicted, 55 / 6)


def test_loaders_that_take_turns_are_each_as_fast_as_they_are():
    """A pass of 40 ms steps, then one of 25 ms: both become 10 ms."""
    context = two((0.03, 0.015), (0.01, 0.01))
    first = plan(of_steps(context, iterations=400, training_s=200 * 0.065)).candidates[0]
    assert first.sites == ("train.py:41", "train.py:50")
    assert holds(first.predicted, 65 / 20)


def test_a_loader_that_is_not_waited_for_is_left_and_those_of_one_line_get_the_same():
    for context in (zipped(0.03, 0.0002), zipped(0.03, 0.015, site="train.py:41")):
        first = plan(context).candidates[0]
        assert first.sites == ("train.py:41",)
        assert isinstance(first.overrides["num_workers"], int)


def test_workers_of_several_loaders_share_the_cores():
    """Two loaders that compute, 30 ms a batch each: two cores carry one worker of each."""
    context = two((0.03, 0.03), (0.04, 0.04), parts={"running": 1.0, "cores": 2.0})
    tried = plan(of_steps(context, iterations=200, training_s=200 * 0.07))
    counts = [each.overrides["num_workers"] for each in of_subject(tried, WORKERS)]
    assert counts == [{"train.py:41": 1, "train.py:50": 1}]
    # 70 ms of work a step on two cores.
    first = tried.candidates[0]
    assert holds(first.predicted, 2.0)
    assert first.predicted[1] < 3.0


# -- threads, optimizers, precision


TF32, BFLOAT16 = {"float32_matmul_precision": "high"}, {"autocast": "bfloat16"}
FORMAT, SEARCH = {"channels_last": True}, {"cudnn_benchmark": True}
MATMULS = Operators(matmuls=9)
PICTURES = Operators(matmuls=1, convolutions=9, convolutions_2d=9)
MIXES = ["autocast", "GradScaler"]


@pytest.mark.parametrize(
    ("operators", "known", "tried"),
    [
        (MATMULS, {}, [TF32]),
        (MATMULS, {"products": "high"}, []),
        (MATMULS, {"capability": [7, 5]}, []),
        (MATMULS, {"capability": None}, []),
        (replace(MATMULS, mixes=MIXES), {}, [TF32, BFLOAT16]),
        (replace(MATMULS, mixes=MIXES), {"capability": [7, 5]}, [{"autocast": "float16"}]),
        (replace(MATMULS, mixes=MIXES[:1]), {"capability": [7, 5]}, []),
        (replace(MATMULS, mixes=MIXES), {"capability": [6, 1]}, []),
        (replace(MATMULS, mixes=MIXES, lower=9), {}, []),
        (PICTURES, {}, [TF32, FORMAT, SEARCH]),
        (replace(PICTURES, lower=9), {}, [FORMAT, SEARCH]),
        (PICTURES, {"capability": None}, [SEARCH]),
        (None, {}, [SEARCH]),
    ],
)
def test_precision_is_changed_if_it_may_be_as_the_device_supports_it(operators, known, tried):
    known = {"products": "highest", "capability": [8, 0], **known}
    numerics = Numerics("float32", operators=operators, **known)
    context = case_of(HEALTHY, device="cuda:0", torch=TorchSettings(numerics=numerics))
    of_numerics = ("matrix products", "mixed precision", "memory format", "convolutions")

    def overrides(tried: Plan) -> list[Any]:
        return [x.overrides for x in tried.candidates if x.subject in of_numerics]

    assert overrides(plan(context)) == []
    assert overrides(plan(context, allow_numerics=True)) == tried
    on_host = case_of(HEALTHY, torch=TorchSettings(numerics=numerics))
    assert overrides(plan(on_host, allow_numerics=True)) == []


def test_an_optimizer_that_takes_long_is_tried_fused():
    plain = case_of(HEALTHY, parts={"optimizer": 4.0})
    tried = plan(looped(plain))
    fused = of_subject(tried, "optimizer")[0]
    assert fused.overrides == {"fused": True}
    assert fused.predicted == pytest.approx((1 / 1.035, 2.0), rel=0.05)
    assert tried.optimizers == (OptimizerCall("Adam", "train.py:5"),)
    # One that takes all at once is left as it is.
    assert "optimizer" not in subjects(plan(plain))
    assert plan(plain).optimizers == ()


def test_threads_are_tried_by_what_they_may_save():
    context = replace(case_of(HEALTHY), torch=TorchSettings(threads=1))
    tried = of_subject(plan(context), "threads")
    assert tried
    assert {"torch_threads": 1} not in [each.overrides for each in tried]
    assert all(each.predicted is None for each in tried)


# -- several changes, and forecasts


def test_several_changes_together_promise_no_more_than_each_in_turn():
    tried = plan(looped(case_of(Planted(workers=0, fetch_s=0.03), parts={"optimizer": 4.0})))
    first, other = of_subject(tried, "workers")[0], of_subject(tried, "optimizer")[0]
    both = together([first, other])
    assert both.predicted[1] == pytest.approx(first.predicted[1] * other.predicted[1])
    assert both.name == f"{first.name},fused=True"
    assert both.trial().settings() == {"fused": True}
    assert "fused" not in both.trial().loader_arguments()


def test_changes_together_reach_no_loader_that_they_were_not_meant_for():
    """A stream at data.py:5 yields each sample once without workers, else several times."""
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


def test_forecasts_are_of_steps_without_saves():
    # Of 10 s save 2, and 8 are 4 of loading and 4 of training: what halves loading makes 8 to 6.
    assert interval_without((10 / 8, 10 / 6), 0.2) == pytest.approx((8 / 6, 8 / 4))
    assert interval_without((1.0, 1.25), 0.2) == pytest.approx((1.0, 8 / 6))
    hoped = Candidate("threads", {"torch_threads": 1}, None, hope=1.25).without_saves(0.2)
    assert (hoped.predicted, hoped.hope) == (None, pytest.approx(8 / 6))
    context = planted(workers=0, fetch_s=0.03)
    plain, without = plan(context), plan(context, saves=0.2)
    low, high = plain.ceiling
    assert plan(context, starts=0.5).ceiling == pytest.approx((1.5 * low, 1.5 * high))
    assert without.ceiling == interval_without(plain.ceiling, 0.2)
    assert without.alone == pytest.approx((plain.alone[0] * 0.8, plain.alone[1] * 0.8))
    assert [each.predicted for each in without.candidates] == [
        interval_without(each.predicted, 0.2) for each in plain.candidates
    ]


TWO, FOUR = workers(2, 1.0, 2.0), workers(4, 1.5, 3.0)


@pytest.mark.parametrize(
    ("candidate", "tried", "speed", "expected"),
    [
        (FOUR, TWO, (1.58, 1.6, 1.62), (2.4 / 1.1, 2.4 * 1.1)),
        # Where the model is unsure of it against the other, so is the forecast.
        (workers(4, 1.5, 2.0), TWO, (1.58, 1.6, 1.62), (1.5, 2.0)),
        (workers(4, 1.1, 2.0), TWO, (1.58, 1.6, 1.62), (1.6 / 1.1, 1.6 * 1.1 * 1.1)),
        (Candidate("workers", {"num_workers": 4}, None), TWO, (1.58, 1.6, 1.62), None),
        (FOUR, TWO, (0.8, 1.6, 3.2), (1.5, 3.0)),  # too noisy
        (FOUR, TWO, (None, 1.6, None), (1.5, 3.0)),  # too few steps
        (FOUR, threads(1), (1.58, 1.6, 1.62), (1.5, 3.0)),  # something else
    ],
)
def test_forecasts_learn_from_what_another_number_of_workers_gave(
    candidate, tried, speed, expected
):
    speeds = {tried.name: SpeedUp(*speed, FASTER)}
    forecast = learned(candidate, [tried, candidate], lambda other: speeds.get(other.name))
    assert forecast == (expected and pytest.approx(expected, rel=0.02))


def test_the_second_number_of_workers_is_foretold_from_the_first():
    """The model is too hopeful of both alike, as where threads and workers share cores."""
    step_s = {0: 0.010, 2: 0.008, 4: 0.005}
    trials = PlantedTrials(lambda changed: step_s[changed.get("num_workers", 0)], steps=2000)
    tried = plan_of(workers(2, 1.0, 2.0), workers(4, 1.6, 3.2))
    search = search_of(FakeRunner(trials), lambda base, free_s: tried, budget_s=600.0)
    predicted = search.run().predicted
    assert predicted["num_workers=2"] == (1.0, 2.0)
    assert holds(predicted["num_workers=4"], 2.0)
    assert predicted["num_workers=4"][1] < 1.4 * predicted["num_workers=4"][0]


# -- a finding says that tune measures its change only where that has a trial of it


def has_trial(context: RunContext, finding: Finding) -> bool:
    """Whether a candidate changes the first of a finding's arguments, of its loader.

    Workers that are there already are kept in a trial of its own.
    """
    name = next(iter(finding.change))
    changing = [each for each in plan(context).candidates if name in each.overrides]
    of_loader = name in ("num_workers", "persistent_workers", "prefetch_factor")
    return any(finding.site in each.sites or not of_loader for each in changing)


def streaming(**changes: Any) -> RunContext:
    stream = {"is_iterable": True, **changes}
    return planted(stream, fetch_s=0.03, running=0.6, compute_s=0.01)


def evaluated(evaluated_s: float, **how: Any) -> RunContext:
    """Training, and an evaluation that takes so much of it."""
    evaluation = Planted(**how, compute_s=0.002, role="evaluation").having(id=1, site="train.py:44")
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(training, evaluation, parts={"evaluation": evaluated_s})


def copying(**changes: Any) -> RunContext:
    """A device waits 0.6 s for copies of batches, and the host as long."""
    context = on_device(case_of(Planted(workers=2, fetch_s=0.002)), copy_s=0.6)
    devices = [replace(device, copy_wait_s=0.6) for device in context.summary.devices]
    rows = [replace(row, **changes) for row in context.summary.transfers]
    return with_summary(context, devices=devices, transfers=rows)


KEPT: dict[str, Any] = {"workers": 2, "fetch_s": 0.004, "passes": 10, "start_s": 0.1}


@pytest.mark.parametrize(
    ("context", "rule", "is_tried"),
    [
        (planted(fetch_s=0.03), "serial_loading", True),
        (streaming(shares_samples=True), "serial_loading", True),
        (planted(workers=1, fetch_s=0.03), "too_few_workers", True),
        (planted(**KEPT, compute_s=0.01), "worker_restart", True),
        # No loader of evaluation is ever changed.
        (evaluated(2.6, **KEPT), "worker_restart", False),
        (evaluated(4.0, fetch_s=0.02), "slow_validation", False),
        (copying(), "blocking_copies", True),
        (copying(pinned_share=1.0), "blocking_copies", False),
        (
            looped(
                case_of(Planted(workers=4, fetch_s=0.002), parts={"optimizer": 1.0}), spent_s=1.0
            ),
            "slow_optimizer",
            True,
        ),
        # These take more than arguments.
        (streaming(shares_samples=False), "serial_loading", None),
    ],
)
def test_tune_is_named_where_it_has_a_trial(context, rule, is_tried):
    finding = next(x for x in diagnose(context).findings if x.id == rule)
    assert (finding.change == {}) is (is_tried is None)
    assert finding.is_tried_by_tune is bool(is_tried)
    assert ("trainprof tune" in finding.verify) is bool(is_tried)
    assert ("trainprof compare" in finding.verify) is not is_tried
    assert not is_tried or has_trial(context, finding)
