"""What bounds a loader, and what is predicted of another setting, from planted inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainprof.analysis.pipeline import (
    COMPUTE,
    CPU,
    LATENCY,
    RECEIVE,
    SAMPLER,
    STORAGE,
    Interval,
    PipelineInputs,
    Prediction,
    Setting,
    measured_rates,
    predict,
    with_contention,
)
from trainprof.analysis.pipeline_model import Pipeline, simulate

MS = 1e-3
BATCHES = 120


def planted(
    *, fetch: float, running: float | None, compute: float, workers: int = 0, **more: object
) -> PipelineInputs:
    """A loader in which every batch costs the same, in ms, on a machine with 8 cores."""
    return PipelineInputs(
        setting=Setting(workers),
        batches=BATCHES,
        fetch_s=np.full(BATCHES, fetch * MS),
        running_s=None if running is None else np.full(BATCHES, running * MS),
        compute_s=np.full(BATCHES, compute * MS),
        **{"cores": 8.0, **more},
    )


def shared_pipeline(workers: int) -> Pipeline:
    """A loader that wants more than the two cores there are."""
    return Pipeline(
        asleep_s=np.full(BATCHES, 5 * MS),
        running_s=np.full(BATCHES, 20 * MS),
        compute_s=np.full(BATCHES, 6 * MS),
        receive_s=np.zeros(BATCHES),
        workers=workers,
        cores=2.0,
    )


def recording_of(p: Pipeline, is_delay_told: bool) -> PipelineInputs:
    """Returns what a recording of a pass shows, all of it slowed by sharing cores."""
    flow = simulate(p)
    return PipelineInputs(
        setting=Setting(p.workers),
        batches=len(p),
        fetch_s=flow.fetch_s,
        running_s=p.running_s,
        runnable_s=flow.fetch_s - p.asleep_s - p.running_s if is_delay_told else None,
        compute_s=flow.step_s - flow.wait_s,
        wait_s=flow.wait_s,
        cores=p.cores,
    )


def with_workers(inputs: PipelineInputs, workers: int, **more: object) -> Prediction:
    return predict(inputs, replace(inputs.setting, workers=workers, **more))


def ms(interval: Interval) -> float:
    return interval.mid / MS


# What bounds it


def test_a_worker_that_sleeps_bounds_by_its_latency():
    bound = predict(planted(fetch=40, running=0, compute=5, workers=2)).bound
    assert bound.name == bound.wait_cause == LATENCY
    assert bound.limits_s[LATENCY] == pytest.approx(20 * MS)
    assert bound.margin == pytest.approx(1 - 5 / 20)
    assert bound.parts_s["blocked"] == pytest.approx(15 * MS)
    assert bound.parts_s[COMPUTE] == pytest.approx(5 * MS)


def test_workers_that_compute_on_all_cores_are_bound_by_the_cpu():
    inputs = planted(fetch=40, running=40, compute=5, workers=4, cores=4.0)
    bound = predict(inputs).bound
    assert bound.name == bound.wait_cause == CPU
    assert bound.limits_s[CPU] == pytest.approx((40 + 5) / 4 * MS)
    assert ms(with_workers(inputs, 8).step_s) == pytest.approx(ms(predict(inputs).step_s), rel=0.03)


def test_with_cores_to_spare_the_same_workers_are_bound_by_their_latency():
    inputs = planted(fetch=40, running=40, compute=5, workers=4, cores=16.0)
    assert predict(inputs).bound.name == LATENCY


def test_storage_is_said_only_where_bytes_were_read():
    waits = planted(fetch=40, running=2, compute=5, workers=2)
    reads = replace(waits, reading_s=np.full(BATCHES, 30 * MS))
    assert predict(reads).bound.name == LATENCY
    assert predict(replace(reads, read_bytes=0)).bound.name == LATENCY
    bound = predict(replace(reads, read_bytes=1 << 30)).bound
    assert bound.name == STORAGE
    assert STORAGE in bound.limits_s
    assert LATENCY not in bound.limits_s


def test_a_batch_that_is_there_but_slow_to_take_over_is_blamed_on_receiving():
    inputs = planted(fetch=10, running=5, compute=4, workers=4)
    inputs = replace(inputs, receive_s=Interval.exactly(12 * MS), delivery_s=12 * MS)
    bound = predict(inputs).bound
    assert bound.name == bound.wait_cause == RECEIVE
    assert bound.parts_s["blocked"] == pytest.approx(0, abs=1e-9)
    assert bound.parts_s[RECEIVE] == pytest.approx(12 * MS)


def test_where_computing_takes_longer_the_wait_is_still_blamed_on_receiving():
    inputs = planted(fetch=10, running=5, compute=20, workers=4)
    inputs = replace(inputs, receive_s=Interval.exactly(12 * MS), delivery_s=12 * MS)
    bound = predict(inputs).bound
    assert (bound.name, bound.wait_cause) == (COMPUTE, RECEIVE)


def test_a_slow_sampler_is_named():
    inputs = planted(fetch=10, running=5, compute=2, workers=4, sampler_s=9 * MS)
    bound = predict(inputs).bound
    assert bound.name == bound.wait_cause == SAMPLER


def test_a_loader_that_keeps_up_is_bound_by_computing():
    bound = predict(planted(fetch=10, running=5, compute=20, workers=2)).bound
    assert bound.name == COMPUTE
    assert bound.margin == pytest.approx(1 - 5 / 20)


def test_without_workers_fetching_is_blamed_where_workers_would_help():
    assert predict(planted(fetch=10, running=10, compute=10)).bound.name == LATENCY
    on_one_core = planted(fetch=10, running=10, compute=10, cores=1.0)
    assert predict(on_one_core).bound.name == CPU


# Other settings


@pytest.mark.parametrize(("workers", "step"), [(0, 48), (1, 40), (2, 20), (4, 10), (8, 8)])
def test_more_workers_help_until_computing_is_the_slowest(workers, step):
    inputs = planted(fetch=40, running=0, compute=8)
    prediction = with_workers(inputs, workers)
    assert ms(prediction.step_s) == pytest.approx(step)
    assert ms(prediction.wait_s) == pytest.approx(step - 8, abs=1e-6)
    assert prediction.speedup_over(48 * MS).mid == pytest.approx(48 / step)
    assert prediction.batches_per_s.mid == pytest.approx(1000 / step)


def test_two_workers_on_one_core_gain_nothing():
    inputs = planted(fetch=40, running=40, compute=0, workers=1, cores=1.0)
    assert ms(predict(inputs).step_s) == pytest.approx(40, rel=0.01)
    assert ms(with_workers(inputs, 2).step_s) == pytest.approx(40, rel=0.01)


def test_deeper_prefetch_hides_a_slow_batch_now_and_then():
    inputs = planted(fetch=12, running=0, compute=8, workers=2)
    inputs.fetch_s[::20] = 50 * MS
    shallow = with_workers(inputs, 2, prefetch=1)
    deep = with_workers(inputs, 2, prefetch=8)
    assert ms(deep.wait_s) < 0.5 * ms(shallow.wait_s)


def test_a_straggler_holds_up_less_out_of_order():
    inputs = planted(fetch=4, running=0, compute=3, workers=4)
    inputs.fetch_s[::4] = 30 * MS
    assert ms(with_workers(inputs, 4).step_s) == pytest.approx(30 / 4)
    assert ms(with_workers(inputs, 4, is_in_order=False).step_s) < 0.5 * 30 / 4


def test_persistent_workers_save_their_start_in_every_later_pass():
    inputs = planted(fetch=10, running=0, compute=0, workers=2)
    inputs = replace(
        inputs,
        spawn_s=Interval.exactly(0.1),
        boot_s=Interval.exactly(0.5),
        end_s=0.03,
        reset_s=0.002,
    )
    anew, kept = predict(inputs), with_workers(inputs, 2, is_persistent=True)
    # The first of them is ready while the second one starts.
    saved = 0.1 + 0.5 + 0.03 - 0.002 + 0.1
    assert anew.epoch_s.mid - kept.epoch_s.mid == pytest.approx(saved)
    assert anew.first_batch_s.mid == pytest.approx(0.1 + 0.5 + 0.01 - 2 * 0.1)
    assert kept.first_batch_s.mid == pytest.approx(0.01)
    assert anew.step_s.mid == pytest.approx(kept.step_s.mid)


def test_workers_that_live_on_have_opened_their_files():
    inputs = replace(planted(fetch=10, running=0, compute=0, workers=2), batches=BATCHES // 4)
    fetch_s = inputs.fetch_s.copy()
    first = np.arange(BATCHES) % inputs.batches < 2
    fetch_s[first] = 0.3  # each of the two opens a file in each pass
    inputs = replace(inputs, fetch_s=fetch_s)
    anew, kept = predict(inputs), with_workers(inputs, 2, is_persistent=True)
    assert anew.first_batch_s.mid == pytest.approx(0.3, rel=0.1)
    assert kept.first_batch_s.mid == pytest.approx(0.01, rel=0.1)
    assert kept.step_s.mid == pytest.approx(anew.step_s.mid, rel=0.1)


def test_a_pass_too_short_to_fill_the_pipeline_is_taken_whole():
    inputs = replace(planted(fetch=10, running=0, compute=1, workers=2), batches=4)
    assert not with_workers(inputs, 8).is_steady
    assert with_workers(inputs, 1).is_steady


def test_a_pass_longer_than_is_played_is_scaled():
    inputs = planted(fetch=1, running=0, compute=3, workers=2)
    prediction = predict(replace(inputs, batches=1_000_000))
    assert prediction.epoch_s.mid == pytest.approx(3000, rel=0.01)


def test_passes_are_played_one_by_one():
    inputs = planted(fetch=10, running=0, compute=20, workers=1)
    inputs = replace(inputs, batches=30)
    inputs.fetch_s[90:] = 70 * MS
    assert ms(predict(inputs).first_batch_s) == pytest.approx((3 * 10 + 70) / 4)


# Intervals


def width(interval: Interval) -> float:
    return interval.high / interval.low


def test_what_is_known_leaves_the_models_own_error():
    prediction = with_workers(planted(fetch=40, running=10, compute=5), 2)
    assert (prediction.step_s.low, prediction.step_s.high) == pytest.approx((0.019, 0.021))


def test_an_unknown_running_part_widens_where_cores_are_few():
    few = with_workers(planted(fetch=40, running=None, compute=5, cores=1.0), 4)
    many = with_workers(planted(fetch=40, running=None, compute=5, cores=8.0), 4)
    assert "running_s" in few.guessed
    assert width(few.step_s) > 3
    assert width(many.step_s) == pytest.approx(1.05 / 0.95)
    assert few.step_s.low < 0.011
    assert few.step_s.high > 0.044


def test_saturated_cores_widen():
    calm = with_workers(planted(fetch=40, running=40, compute=5, cores=8.0), 4)
    busy = with_workers(planted(fetch=40, running=40, compute=5, cores=2.0), 4)
    assert width(busy.step_s) > 1.2 > width(calm.step_s)


def test_cores_that_are_never_idle_widen_where_nobody_has_to_share_one():
    full = with_workers(planted(fetch=10, running=10, compute=10, cores=2.0), 1)
    spare = with_workers(planted(fetch=10, running=10, compute=10, cores=8.0), 1)
    assert width(full.step_s) > 1.2 > width(spare.step_s)
    assert full.step_s.low == spare.step_s.low
    # A worker that was there was there to be recorded.
    was_there = planted(fetch=10, running=10, compute=10, cores=2.0, workers=1)
    assert width(predict(was_there).step_s) < 1.2


def test_work_of_torchs_other_threads_may_all_fall_on_a_workers_one():
    inputs = planted(fetch=20, running=20, compute=1, cpu_s=np.full(BATCHES, 80 * MS))
    prediction = with_workers(inputs, 2)
    assert prediction.step_s.low == pytest.approx(0.95 * 10 * MS)
    assert prediction.step_s.high == pytest.approx(1.05 * 40 * MS)
    of_workers = replace(inputs, setting=Setting(1))
    assert ms(with_workers(of_workers, 2).step_s) == pytest.approx(10)


def test_large_batches_may_take_longer_to_collate_into_shared_memory():
    inputs = replace(planted(fetch=20, running=10, compute=1), batch_bytes=40e6)
    assert with_workers(inputs, 1).step_s.high == pytest.approx(1.05 * 100 * MS)
    assert predict(inputs).step_s.high == pytest.approx(1.05 * 21 * MS)


@pytest.mark.parametrize("workers", [2, 4, 6])
@pytest.mark.parametrize("is_delay_told", [True, False])
def test_what_a_recording_slowed_itself_is_not_taken_over(workers, is_delay_told):
    inputs = recording_of(shared_pipeline(workers), is_delay_told)
    inputs = with_contention(inputs)
    measured = measured_rates(inputs)
    assert measured is not None
    assert predict(inputs).step_s.mid == pytest.approx(measured.step_s, rel=0.03)
    assert ms(with_workers(inputs, 1).step_s) == pytest.approx(25, rel=0.1)


@pytest.mark.parametrize("recorded", [0, 1, 2, 4])
@pytest.mark.parametrize("asked_for", [0, 1, 2, 4])
def test_other_processes_keep_taking_their_part_of_the_cores(recorded, asked_for):
    p = replace(shared_pipeline(recorded), others=3.0)
    inputs = with_contention(recording_of(p, is_delay_told=True))
    assert inputs.others.mid == pytest.approx(3.0, rel=0.15)
    truth = simulate(replace(p, workers=asked_for))
    steps = truth.step_s[2 * asked_for : len(p) - 2 * asked_for]
    prediction = with_workers(inputs, asked_for)
    assert prediction.step_s.mid == pytest.approx(steps.mean(), rel=0.05)
    # They come and go.
    assert width(prediction.step_s) > 1.5


@pytest.mark.parametrize("workers", [0, 2])
def test_delay_at_waking_does_not_tell_of_other_processes(workers):
    inputs = planted(fetch=40, running=1, compute=5, workers=workers, cores=2.0)
    inputs = replace(
        inputs,
        runnable_s=np.full(BATCHES, 3 * MS),
        wait_s=np.full(BATCHES, 40 * MS),
    )
    assert with_contention(inputs) is inputs


def test_fetches_that_were_not_measured_are_like_those_that_were():
    running = np.full(BATCHES, np.nan)
    running[::8] = 10 * MS
    inputs = replace(planted(fetch=40, running=None, compute=5, cores=1.0), running_s=running)
    known = planted(fetch=40, running=10, compute=5, cores=1.0)
    assert with_workers(inputs, 4).step_s == with_workers(known, 4).step_s


def test_few_and_uneven_batches_widen():
    inputs = planted(fetch=40, running=0, compute=5, workers=2)
    uneven = replace(inputs, fetch_s=np.tile([10 * MS, 70 * MS], BATCHES // 2))
    assert width(predict(uneven).step_s) > width(predict(inputs).step_s)


@given(
    st.integers(0, 1 << 32),
    st.integers(0, 4),
    st.integers(0, 6),
    st.sampled_from([1.0, 2.0, 8.0]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_intervals_are_in_order_and_means_add_up(seed, recorded, asked_for, cores, is_known):
    generator = np.random.default_rng(seed)
    fetch = generator.exponential(0.01, 50)
    inputs = PipelineInputs(
        setting=Setting(recorded),
        batches=25,
        fetch_s=fetch,
        running_s=fetch * generator.random() if is_known else None,
        compute_s=generator.exponential(0.005, 50),
        receive_s=Interval(0.0, 0.0005, 0.002),
        delivery_s=0.002,
        cores=cores,
    )
    prediction = with_workers(inputs, asked_for)
    for name in ("step_s", "wait_s", "pass_wait_s", "first_batch_s", "epoch_s", "batches_per_s"):
        interval = getattr(prediction, name)
        assert 0 <= interval.low <= interval.mid <= interval.high, name
    assert sum(prediction.bound.parts_s.values()) == pytest.approx(prediction.step_s.mid)
    assert 0 <= prediction.bound.margin <= 1


def test_measured_rates_leave_out_how_the_pipeline_fills():
    waits = np.array([500.0, 0, 0, 0, 7, 5, 7, 5, 7] * 2) * MS
    inputs = PipelineInputs(
        setting=Setting(2),
        batches=9,
        fetch_s=np.full(18, 12 * MS),
        compute_s=np.full(18, 4 * MS),
        wait_s=waits,
        cores=8.0,
    )
    rates = measured_rates(inputs)
    assert rates is not None
    assert rates.wait_s == pytest.approx(6 * MS)
    assert rates.step_s == pytest.approx(10 * MS)
    assert rates.pass_wait_s == pytest.approx(31 / 8 * MS)
    assert measured_rates(replace(inputs, wait_s=None)) is None


# Ranks that have one core together


def two_on_a_core(*, fetch: float, running: float, compute: float, **more: object):
    plain = {"cores": 1.0, "others": Interval.exactly(1.0), "ranks": 2, "ranks_per_core": 2.0}
    return planted(fetch=fetch, running=running, compute=compute, **plain | more)


def test_workers_of_the_other_rank_want_the_core_too():
    inputs = two_on_a_core(fetch=20, running=20, compute=20)
    alone = replace(inputs, ranks_per_core=1.0)
    assert ms(predict(inputs).step_s) == ms(predict(alone).step_s) == pytest.approx(80)
    # Four that want the core, where there would be three.
    assert ms(with_workers(inputs, 1).step_s) == pytest.approx(80, rel=0.02)
    assert ms(with_workers(alone, 1).step_s) == pytest.approx(60, rel=0.02)
    # Each rank needs no more than one at a time.
    assert ms(with_workers(inputs, 4).step_s) <= 80 * 1.1


def test_workers_of_the_other_rank_that_sleep_want_no_core():
    inputs = two_on_a_core(fetch=20, running=0, compute=20, others=Interval.exactly(0.0))
    assert ms(with_workers(inputs, 1).step_s) == pytest.approx(20, rel=0.1)
    at_once = replace(inputs, compute_s=np.zeros(BATCHES))
    assert ms(with_workers(at_once, 1).step_s) == pytest.approx(20, rel=0.1)


def test_a_rank_that_has_workers_is_played_as_it_was():
    inputs = two_on_a_core(fetch=20, running=20, compute=20, workers=2)
    alone = replace(inputs, ranks_per_core=1.0)
    assert predict(inputs) == predict(alone)
    assert with_workers(inputs, 1).step_s == with_workers(alone, 1).step_s


# Passes that are left before their end


def resumed(inputs: PipelineInputs, **setting: object) -> float:
    """Returns what workers that live on take to be resumed, in ms."""
    kept = replace(inputs.setting, is_persistent=True, **setting)
    return ms(predict(inputs, kept).reset_s)


def test_workers_that_live_on_first_make_what_a_pass_that_was_left_asked_for():
    behind = planted(fetch=60, running=0, compute=5, workers=2, left=1000)
    # Each has two batches to make; of the first of them it has made some.
    assert 60 <= resumed(behind) <= 2 * 60
    assert 3 * 60 <= resumed(behind, prefetch=4) <= 4 * 60
    assert resumed(replace(behind, left=1)) <= 60
    assert resumed(replace(behind, left=0)) == 0
    ended, left = (
        predict(replace(behind, left=n), replace(behind.setting, is_persistent=True))
        for n in (0, 1000)
    )
    assert left.epoch_s.mid == pytest.approx(ended.epoch_s.mid + left.reset_s.mid)
    assert left.step_s == ended.step_s


def test_of_batches_that_are_there_only_the_taking_over_is_left():
    ahead = planted(fetch=5, running=0, compute=60, workers=2, left=1000)
    taking = replace(ahead, receive_s=Interval.exactly(1 * MS), delivery_s=1 * MS)
    # Four are taken in; the last was asked for before the batch was computed with.
    assert resumed(taking) == pytest.approx(4, abs=1e-6)


def test_workers_that_are_started_anew_are_not_resumed():
    anew = planted(fetch=60, running=0, compute=5, workers=2, left=1000)
    assert predict(anew).reset_s.mid == 0
    assert predict(anew, Setting(0)).reset_s.mid == 0
    assert predict(anew) == predict(replace(anew, left=0))


def test_what_resuming_took_in_the_run_is_told_as_it_was():
    inputs = planted(fetch=60, running=0, compute=5, left=1000, reset_s=150 * MS)
    inputs = replace(inputs, setting=Setting(2, is_persistent=True))
    assert resumed(inputs) == pytest.approx(150)
    more = resumed(inputs, prefetch=3)
    assert more == pytest.approx(150 + 60, abs=10)
