"""What bounds a loader, and what is predicted of another setting, from planted inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainprof.analysis.pipeline.bounds import (
    Interval,
    PipelineInputs,
    Prediction,
    Setting,
    bound_of,
    measured_rates,
    predict,
)
from trainprof.analysis.pipeline.fit import with_contention
from trainprof.analysis.pipeline.model import Pipeline, simulate
from trainprof.analysis.summary.loader import (
    COMPUTE,
    CPU,
    LATENCY,
    MAIN_PROCESS,
    RECEIVE,
    SAMPLER,
    STORAGE,
)

MS = 1e-3
BATCHES = 120


def planted(*, fetch, running, compute, workers=0, **more) -> PipelineInputs:
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


def recording_of(p: Pipeline) -> PipelineInputs:
    """Returns what a recording of a pass shows, all of it slowed by sharing cores."""
    flow = simulate(p)
    return PipelineInputs(
        setting=Setting(p.workers),
        batches=len(p),
        fetch_s=flow.fetch_s,
        running_s=p.running_s,
        runnable_s=flow.fetch_s - p.asleep_s - p.running_s,
        compute_s=flow.step_s - flow.wait_s,
        wait_s=flow.wait_s,
        cores=p.cores,
    )


def with_workers(inputs: PipelineInputs, workers: int, **more: object) -> Prediction:
    return predict(inputs, replace(inputs.setting, workers=workers, **more))


def ms(interval: Interval) -> float:
    return interval.mid / MS


# What bounds it


READS = {"reading_s": np.full(BATCHES, 30 * MS)}
TAKEN = {"receive_s": Interval.exactly(12 * MS)}


@pytest.mark.parametrize(
    ("fetch", "running", "compute", "more", "name", "wait_cause", "limits"),
    [
        (40, 0, 5, {"workers": 2}, LATENCY, LATENCY, {LATENCY: 20, MAIN_PROCESS: 5}),
        (40, 40, 5, {"workers": 4, "cores": 4.0}, CPU, CPU, {CPU: 45 / 4}),
        (40, 40, 5, {"workers": 4, "cores": 16.0}, LATENCY, LATENCY, {CPU: 45 / 16}),
        # Storage is said only where bytes were read.
        (40, 2, 5, {"workers": 2, **READS}, LATENCY, LATENCY, {LATENCY: 20}),
        (40, 2, 5, {"workers": 2, "read_bytes": 1, **READS}, STORAGE, STORAGE, {STORAGE: 20}),
        # Batches that are there and slow to take over, be computing longer or not.
        (10, 5, 4, {"workers": 4, **TAKEN}, RECEIVE, RECEIVE, {MAIN_PROCESS: 16}),
        (10, 5, 20, {"workers": 4, **TAKEN}, COMPUTE, RECEIVE, {MAIN_PROCESS: 32}),
        (10, 5, 2, {"workers": 4, "sampler_s": 9 * MS}, SAMPLER, SAMPLER, {MAIN_PROCESS: 11}),
        (10, 5, 20, {"workers": 2}, COMPUTE, LATENCY, {LATENCY: 5}),
        # Without workers fetching is blamed where workers would help.
        (10, 10, 10, {}, LATENCY, LATENCY, {}),
        (10, 10, 10, {"cores": 1.0}, CPU, CPU, {}),
    ],
)
def test_what_bounds_it(fetch, running, compute, more, name, wait_cause, limits):
    inputs = planted(fetch=fetch, running=running, compute=compute, **more)
    prediction = predict(inputs)
    bound = bound_of(inputs, prediction.pipeline, prediction.parts_s)
    assert (bound.name, bound.wait_cause) == (name, wait_cause)
    assert {k: bound.limits_s[k] / MS for k in limits} == pytest.approx(limits)


# Other settings


@pytest.mark.parametrize(("workers", "step"), [(0, 48), (1, 40), (2, 20), (4, 10), (8, 8)])
def test_more_workers_help_until_computing_is_the_slowest(workers, step):
    inputs = planted(fetch=40, running=0, compute=8)
    prediction = with_workers(inputs, workers)
    assert ms(prediction.step_s) == pytest.approx(step)
    assert ms(prediction.wait_s) == pytest.approx(step - 8, abs=1e-6)
    assert prediction.speedup_over(48 * MS).mid == pytest.approx(48 / step)


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


# Intervals


def width(interval: Interval) -> float:
    return interval.high / interval.low


CPU_OF_THREADS = np.full(BATCHES, 80 * MS)


@pytest.mark.parametrize(
    ("inputs", "workers", "least", "most"),
    [
        # What is known leaves the model's own error.
        (planted(fetch=40, running=10, compute=5), 2, 20, 20),
        # An unknown running part widens where cores are few: they sleep, or run in turn.
        (planted(fetch=40, running=None, compute=5), 4, 10, 10),
        (planted(fetch=40, running=None, compute=5, cores=1.0), 4, 10, 1.25 * 45),
        # So do saturated cores.
        (planted(fetch=40, running=40, compute=5), 4, 10, 10),
        (planted(fetch=40, running=40, compute=5, cores=2.0), 4, 22.5, 1.25 * 22.5),
        # Work of torch's other threads may all fall on a worker's one, which has its own.
        (planted(fetch=20, running=20, compute=1, cpu_s=CPU_OF_THREADS), 2, 10, 40),
        (planted(fetch=20, running=20, compute=1, cpu_s=CPU_OF_THREADS, workers=1), 2, 10, 10),
        # To collate into shared memory may take longer.
        (planted(fetch=20, running=10, compute=1, batch_bytes=40e6), 1, 20, 100),
        (planted(fetch=20, running=10, compute=1, batch_bytes=40e6), 0, 21, 21),
    ],
)
def test_how_far_steps_may_differ_from_the_prediction(inputs, workers, least, most):
    step_s = with_workers(inputs, workers).step_s
    assert step_s.low == pytest.approx(0.95 * least * MS, rel=0.03)
    assert step_s.high == pytest.approx(1.05 * most * MS, rel=0.03)


@pytest.mark.parametrize("workers", [2, 4, 6])
def test_what_a_recording_slowed_itself_is_not_taken_over(workers):
    inputs = with_contention(recording_of(shared_pipeline(workers)))
    assert predict(inputs).step_s.mid == pytest.approx(measured_rates(inputs).step_s, rel=0.03)
    assert ms(with_workers(inputs, 1).step_s) == pytest.approx(25, rel=0.1)


@pytest.mark.parametrize("recorded", [0, 1, 2, 4])
@pytest.mark.parametrize("asked_for", [0, 1, 2, 4])
def test_other_processes_keep_taking_their_part_of_the_cores(recorded, asked_for):
    p = replace(shared_pipeline(recorded), others=3.0)
    inputs = with_contention(recording_of(p))
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
    inputs = replace(inputs, runnable_s=np.full(BATCHES, 3 * MS), wait_s=np.full(BATCHES, 40 * MS))
    assert with_contention(inputs) is inputs


def test_fetches_that_were_not_measured_are_like_those_that_were():
    running = np.full(BATCHES, np.nan)
    running[::8] = 10 * MS
    inputs = replace(planted(fetch=40, running=None, compute=5, cores=1.0), running_s=running)
    known = planted(fetch=40, running=10, compute=5, cores=1.0)
    assert with_workers(inputs, 4).step_s == with_workers(known, 4).step_s


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
        cores=cores,
    )
    prediction = with_workers(inputs, asked_for)
    for name in ("step_s", "wait_s", "first_batch_s", "epoch_s"):
        interval = getattr(prediction, name)
        assert 0 <= interval.low <= interval.mid <= interval.high, name
    assert sum(prediction.parts_s.values()) == pytest.approx(prediction.step_s.mid)


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
    assert rates.wait_s == pytest.approx(6 * MS)
    assert rates.step_s == pytest.approx(10 * MS)
    assert measured_rates(replace(inputs, wait_s=None)) is None


@pytest.mark.parametrize(
    ("fetch", "receive", "more", "expected"),
    [
        (60, 0, {}, 2 * 60),
        (60, 0, {"left": 1}, 30),
        (60, 0, {"left": 0}, 0),
        (5, 4, {}, 4 * 4),  # they are there, and taken in
        (60, 0, {"setting": Setting(2, is_persistent=True), "reset_s": 0.15}, 150),
    ],
)
def test_workers_that_live_on_first_make_what_a_pass_that_was_left_asked_for(
    fetch, receive, more, expected
):
    plain = {"left": 1000, "receive_s": Interval.exactly(receive * MS)}
    inputs = replace(planted(fetch=fetch, running=0, compute=5, workers=2), **plain | more)
    kept = predict(inputs, replace(inputs.setting, is_persistent=True))
    assert ms(kept.reset_s) == pytest.approx(expected)
    ended = predict(replace(inputs, left=0), replace(inputs.setting, is_persistent=True))
    assert kept.epoch_s.mid - kept.reset_s.mid == pytest.approx(
        ended.epoch_s.mid - ended.reset_s.mid
    )
    assert predict(replace(inputs, setting=Setting(2))).reset_s.mid == 0
