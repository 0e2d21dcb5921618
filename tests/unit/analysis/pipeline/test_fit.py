"""From synthetic recordings, whose truth torch's own iterator made, to the model and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.events import LEARNS, MS, FakeRun
from support.torch_pipeline import PlayedIterator

from trainprof.analysis.loading.fetches import FetchTable, fetch_table
from trainprof.analysis.machine.processes import samples_by_pid, ticks_of
from trainprof.analysis.pipeline.bounds import PipelineInputs, measured_rates, predict
from trainprof.analysis.pipeline.fit import pipeline_inputs
from trainprof.analysis.pipeline.model import Pipeline, simulate
from trainprof.analysis.run.recording import read_recording
from trainprof.analysis.run.training_process import training_processes
from trainprof.analysis.timeline.timeline import build_timeline
from trainprof.record.names import EVENT_LOG_SUFFIX
from trainprof.record.schema import Kind

NS = 1_000_000_000
END_S = 0.03
RECEIVE_NS = 700_000


def planted(batches: int, *, workers: int, seed: int = 1, **more: object) -> Pipeline:
    """A pass of 3 to 10 ms a step, no two batches alike."""
    generator = np.random.default_rng(seed)
    plain = {"sampler_s": 0.0002, "turnaround_s": 0.0001}
    return Pipeline(
        asleep_s=generator.uniform(0.001, 0.004, batches),
        running_s=generator.uniform(0.002, 0.012, batches),
        compute_s=generator.uniform(0.002, 0.006, batches),
        receive_s=np.full(batches, RECEIVE_NS / NS),
        workers=workers,
        **{**plain, "spawn_s": 0.005, "boot_s": 0.02, **more},
    )


def recorded(tmp_path, passes, *, is_cut_off=False, are_left=False, **metadata) -> PipelineInputs:
    """Records epochs as torch would go through them, and reads the inputs back."""
    first = passes[0]
    run = FakeRun()
    plain = {"num_workers": first.workers, "prefetch_factor": first.prefetch}
    loader = run.loader(**plain, **metadata)
    logs = [run]
    for number, p in enumerate(passes):
        begin = run.now
        workers = [FakeRun(pid=5000 + 100 * number + k, role="child") for k in range(p.workers)]
        played = Recorder(run, loader, begin)
        played.is_resumed = bool(number and metadata.get("persistent_workers"))
        if p.workers:
            truth = PlayedIterator(p)
            truth.play()
            played.with_workers(truth, workers)
        else:
            played.without_workers(p)
        if not are_left and not (is_cut_off and number == len(passes) - 1):
            run.stop(loader, round(END_S * NS))
        logs += workers
    return inputs_of(tmp_path, logs, loader)


class Recorder:
    """Writes what a pass of torch's iterator did to the logs of its processes."""

    def __init__(self, run: FakeRun, loader: int, begin: int) -> None:
        self.run, self.loader, self.begin = run, loader, begin
        self.is_resumed = False

    def at(self, seconds: float) -> int:
        return self.begin + round(seconds * NS)

    def with_workers(self, truth: PlayedIterator, workers: list[FakeRun]) -> None:
        run, loader = self.run, self.loader
        begins = Kind.LOADER_RESET if self.is_resumed else Kind.LOADER_INIT
        run.record(begins, self.begin, self.at(truth.called[0]), site=loader)
        for began, ended in truth.drawn:
            run.record(Kind.SAMPLER, self.at(began), self.at(ended), site=loader, value=8)
        for number, (called, handed) in enumerate(zip(truth.called, truth.handed, strict=True)):
            start, end = self.at(called), self.at(handed)
            run.record(Kind.LOADER_NEXT, start, end, site=loader, value=number + 1)
            self.tell_receiving(truth, number)
            self.learn(end)
        run.now = self.at(truth.now)
        for worker, start, end in truth.fetches.values():
            span = (self.at(start), self.at(end))
            workers[worker].record(Kind.FETCH, *span, site=loader, value=8, flags=worker + 1)
            workers[worker].texts = run.texts

    def tell_receiving(self, truth: PlayedIterator, number: int) -> None:
        start, blocked = self.at(truth.called[number]), round(truth.blocked[number] * NS)
        received = round(truth.received[number] * NS)
        self.run.record(Kind.NEXT_PARTS, start, start + blocked, site=self.loader, value=received)

    def without_workers(self, p: Pipeline) -> None:
        run, loader, flow = self.run, self.loader, simulate(p)
        run.iterate(loader)
        self.begin = run.now
        fetch_s = (p.asleep_s + p.running_s).tolist()
        for number, (called, handed) in enumerate(
            zip(flow.called_s.tolist(), flow.handed_s.tolist(), strict=True)
        ):
            start, end = self.at(called), self.at(handed)
            run.record(Kind.LOADER_NEXT, start, end, site=loader, value=number + 1)
            run.record(Kind.FETCH, end - round(fetch_s[number] * NS), end, site=loader, value=8)
            self.learn(end)
        run.now = self.at(flow.ended_s)

    def learn(self, at: int) -> None:
        self.run.record(Kind.FORWARD, at, at + 1000, flags=LEARNS)
        self.run.record(Kind.OPTIMIZER_STEP, at + 1000, at + 2000)


def inputs_of(tmp_path: Path, logs: list[FakeRun], loader: int, cores: float = 8.0):
    run = logs[0]
    directory = run.write(tmp_path)
    for log in logs[1:]:
        path = directory.events / f"{log.pid}-1{EVENT_LOG_SUFFIX}"
        path.write_bytes(log.log_bytes())
    recording = read_recording(directory)
    process = training_processes(recording)[0]
    timeline = build_timeline(process, run.start, run.now)
    tables = [fetch_table(timeline.all_events, process.details, process.pid, 0)]
    tables += [fetch_table(x.events, x.details, x.pid or 0, loader) for x in process.workers]
    pid = process.pid or 0
    return pipeline_inputs(
        timeline,
        FetchTable.joined(tables),
        process.metadata,
        loader,
        cores=cores,
        details=process.details,
        samples=samples_by_pid(ticks_of(recording.process_lines), [pid])[pid],
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_series_and_what_workers_cost_are_found_again(tmp_path, workers):
    p = planted(60, workers=workers)
    inputs = recorded(tmp_path, [p])
    assert inputs.setting.workers == workers
    assert inputs.batches == 60
    assert inputs.fetch_s == pytest.approx(p.asleep_s + p.running_s, abs=1e-8)
    assert inputs.compute_s == pytest.approx(p.compute_s, abs=1e-8)
    assert inputs.sampler_s == pytest.approx(p.sampler_s * (60 - p.ahead) / 60, abs=1e-8)
    assert inputs.turnaround_s == pytest.approx(p.turnaround_s, abs=1e-5)
    assert inputs.receive_s.mid == pytest.approx(RECEIVE_NS / NS, rel=0.05)
    assert inputs.end_s == pytest.approx(END_S)
    assert inputs.spawn_s.mid == pytest.approx(p.spawn_s + p.ahead * p.sampler_s / workers)


def test_an_iterator_for_each_batch_is_told_as_one_pass(tmp_path):
    """Without what it takes to begin each: an order of samples is drawn for one batch of it."""
    run = FakeRun()
    loader = run.loader(num_workers=0)
    for number in range(40):
        run.iterate(loader, 3 * MS)
        start = run.now
        fetch_ns = (20 + number) * MS
        end = start + 5 * MS + fetch_ns
        run.record(Kind.SAMPLER, start, start + 5 * MS, site=loader, value=8)
        run.record(Kind.FETCH, end - fetch_ns, end, site=loader, value=8)
        run.record(Kind.LOADER_NEXT, start, end, site=loader, value=1)
        run.now = end
        run.forward(7 * MS)
        run.learn(run.optimizer())
    inputs = inputs_of(tmp_path, [run], loader)
    assert inputs.batches == 40
    assert inputs.fetch_s == pytest.approx([0.020 + number / 1e3 for number in range(40)])
    assert inputs.wait_s == pytest.approx(inputs.fetch_s)
    assert inputs.sampler_s == 0
    assert inputs.compute_s[1:] == pytest.approx([inputs.compute_s[1]] * 39)
    assert 0.007 <= inputs.compute_s[1] < 0.02


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_measured_wait_is_reproduced(tmp_path, workers):
    inputs = recorded(tmp_path, [planted(60, workers=workers, seed=k) for k in range(3)])
    measured, again = measured_rates(inputs), predict(inputs)
    assert again.step_s.mid == pytest.approx(measured.step_s, rel=0.02)
    assert again.wait_s.mid == pytest.approx(measured.wait_s, rel=0.05)
    assert again.wait_s.low <= measured.wait_s <= again.wait_s.high


@pytest.mark.parametrize(("recorded_with", "asked_for"), [(1, 2), (1, 4), (2, 4), (4, 1)])
def test_another_number_of_workers_is_predicted(tmp_path, recorded_with, asked_for):
    inputs = recorded(tmp_path, [planted(200, workers=recorded_with)])
    prediction = predict(inputs, replace(inputs.setting, workers=asked_for))
    truth = simulate(planted(200, workers=asked_for))
    step = float(truth.step_s[2 * asked_for :].mean())
    assert prediction.step_s.mid == pytest.approx(step, rel=0.02)
    assert prediction.step_s.low < step < prediction.step_s.high
    assert prediction.epoch_s.low < truth.ended_s + END_S < prediction.epoch_s.high


def test_from_a_run_without_workers_what_they_cost_is_guessed(tmp_path):
    p = planted(100, workers=0)
    inputs = recorded(tmp_path, [p])
    assert inputs.fetch_s == pytest.approx(p.asleep_s + p.running_s, abs=1e-8)
    assert inputs.sampler_s == pytest.approx(p.sampler_s, abs=1e-7)
    assert predict(inputs).step_s.mid == pytest.approx(measured_rates(inputs).step_s)
    prediction = predict(inputs, replace(inputs.setting, workers=2))
    truth = float(simulate(planted(100, workers=2)).step_s[4:].mean())
    assert prediction.step_s.low < truth < prediction.step_s.high


def test_how_many_workers_are_at_work_beside_each_batch(tmp_path: Path) -> None:
    passes = [planted(40, workers=3, seed=seed) for seed in (1, 2)]
    inputs = recorded(tmp_path, passes, persistent_workers=True)
    expected = []
    for planted_epoch in passes:
        truth = PlayedIterator(planted_epoch)
        truth.play()
        asks = [*truth.called[1:], truth.now]
        for number, (handed, asked) in enumerate(zip(truth.handed, asks, strict=True)):
            worked_s = sum(
                max(min(end, asked) - max(start, handed), 0.0)
                for _, start, end in truth.fetches.values()
            )
            expected.append(worked_s / (asked - handed))
            assert number < 39 or expected[-1] == 0.0  # all are made by then
    assert inputs.workers_busy == pytest.approx(np.array(expected), abs=0.02)


def test_persistent_workers_start_once(tmp_path):
    first = planted(40, workers=2)
    later = [planted(40, workers=2, spawn_s=0.001, boot_s=0.0, seed=k) for k in (2, 3)]
    inputs = recorded(tmp_path, [first, *later], persistent_workers=True)
    assert inputs.spawn_s.mid == pytest.approx(0.005 + 2 * 0.0002)
    assert inputs.boot_s.mid == pytest.approx(0.02 - 4 * 0.0002, abs=3e-4)
    assert inputs.reset_s == pytest.approx(2 * 0.001 + 4 * 0.0002)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_first_step_of_a_cut_off_run_pays_once_is_paid_once(tmp_path, workers):
    p = planted(60, workers=workers)
    p.compute_s[0] = 1.2  # as where the optimizer's first step imports a compiler
    inputs = recorded(tmp_path, [p], is_cut_off=True, length=150)
    assert (inputs.batches, len(inputs.fetch_s)) == (150, 60)
    step_s = measured_rates(inputs).step_s
    assert predict(inputs).step_s.mid == pytest.approx(step_s, rel=0.03)
    assert predict(inputs).epoch_s.mid == pytest.approx(150 * step_s, rel=0.1)


def test_evaluation_in_the_midst_of_a_pass_is_no_computing(tmp_path):
    run = FakeRun()
    loader, other, optimizer = run.loader(1), run.loader(2), run.optimizer()
    run.iterate(loader)
    for step in range(20):
        run.next(loader, 0, samples=4)
        run.learn(optimizer)
        if step == 9:
            run.evaluation_pass(other, 5, forward=400 * MS)
    run.stop(loader)
    inputs = inputs_of(tmp_path, [run], loader)
    assert inputs.compute_s == pytest.approx([550e-6] * 20)


def test_an_iterable_dataset_ends_with_fetches_that_give_no_batch(tmp_path):
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2, is_iterable=True), run.optimizer()
    begin = run.now
    run.train_pass(loader, optimizer, 5, wait=10 * MS)
    workers = [FakeRun(pid=5000 + k, role="child", now=begin) for k in range(2)]
    for number, (worker, batches) in enumerate(zip(workers, (3, 2), strict=True)):
        for batch in range(batches):
            worker.fetch((1 + number + 2 * batch) * MS, 8, site=loader, flags=number + 1)
        worker.fetch(0, 8, site=loader, flags=number + 1)
    inputs = inputs_of(tmp_path, [run, *workers], loader)
    assert inputs.fetch_s == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005])


@pytest.mark.parametrize(
    "metadata",
    [
        {"num_workers": 2},  # whose fetches are lost
        {"num_workers": 1 << 40},
        {"num_workers": -3},
        {"num_workers": "two"},
        {"in_order": False},
    ],
)
def test_without_fetches_or_order_and_with_damaged_metadata_there_is_no_model(tmp_path, metadata):
    run = FakeRun()
    loader = run.loader(**metadata)
    run.train_pass(loader, run.optimizer(), 30, samples=[4] * 30)
    assert inputs_of(tmp_path, [run], loader) is None


def measured_in_main(tmp_path: Path, *, running: int, delay_us: int, batch_bytes: int | None):
    """Inputs from a run without workers whose fetches of 10 ms were measured."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for number in range(30):
        with run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
            start = run.now
            run.fetch(10 * MS, 4)
            end = start + running
            run.record(Kind.FETCH_CPU, start, end, site=delay_us, value=running, flags=1)
            if batch_bytes is not None:
                run.record(Kind.FETCH_BATCH, start, start, site=1, value=batch_bytes, flags=1)
        run.learn(optimizer)
    run.stop(loader)
    return inputs_of(tmp_path, [run], loader)


@pytest.mark.parametrize(
    ("delay_us", "others"),
    [(0, 0), (5000, 15)],  # on 8 cores everything takes twice as long: 16 threads want one
)
def test_what_fetches_were_measured_to_do(tmp_path, delay_us, others):
    inputs = measured_in_main(tmp_path, running=5 * MS, delay_us=delay_us, batch_bytes=1000)
    assert inputs.running_s == pytest.approx([0.005] * 30)
    assert inputs.cpu_s == pytest.approx([0.005] * 30)
    assert inputs.batch_bytes == 1000
    assert inputs.others.mid == pytest.approx(others, rel=0.05)


def test_a_busy_interpreter_or_a_batch_of_objects_may_be_slow_to_take_over(tmp_path):
    idle = measured_in_main(tmp_path / "a", running=0, delay_us=0, batch_bytes=1000)
    busy = measured_in_main(tmp_path / "b", running=10 * MS, delay_us=0, batch_bytes=1000)
    objects = measured_in_main(tmp_path / "c", running=0, delay_us=0, batch_bytes=None)
    assert idle.receive_s.high == pytest.approx(0.002)
    assert busy.receive_s.high == pytest.approx(0.002 + 0.015)
    assert objects.receive_s.high == pytest.approx(0.020)
    assert idle.receive_s.mid == busy.receive_s.mid == objects.receive_s.mid


def test_of_short_passes_of_other_lengths_the_beginnings_are_told(tmp_path):
    passes = [planted(length, workers=0, seed=length) for length in (11, 9, 12, 10, 8)]
    inputs = recorded(tmp_path, passes)
    assert inputs.batches == 10
    assert len(inputs.fetch_s) == 30
    made = [(p.asleep_s + p.running_s)[:10] for p in (passes[0], passes[2], passes[3])]
    assert inputs.fetch_s == pytest.approx(np.concatenate(made), abs=1e-8)


@pytest.mark.parametrize(
    ("epochs", "how", "left"),
    [
        (3, {"are_left": True, "length": 100}, 60),
        (3, {"are_left": True, "length": 40}, 0),
        (3, {"are_left": True}, 1_000),
        (3, {"are_left": True, "length": 10**9}, 1_000),
        (2, {"length": 100}, 0),
        # The run ended in the last one, or in the only one.
        (2, {"is_cut_off": True, "length": 100}, 0),
        (1, {"is_cut_off": True, "length": 100}, 0),
    ],
)
def test_what_epochs_that_are_left_would_go_on_with(tmp_path, epochs, how, left):
    assert recorded(tmp_path, [planted(40, workers=2)] * epochs, **how).left == left
