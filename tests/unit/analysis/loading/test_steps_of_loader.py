"""Which share of training's steps a loader feeds, and what it gives where that is not all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import Planted, case_of
from support.events import MS, FakeRun

from trainprof.analysis.loading.loader_steps import are_all_fed, shares_of_steps
from trainprof.analysis.loading.recreated_loaders import BuiltLoaders
from trainprof.analysis.run.recording import read_recording
from trainprof.analysis.run.training_process import TrainingProcess, training_processes
from trainprof.analysis.summary.finding import LIKELY, Finding
from trainprof.analysis.timeline.ledger import attribute
from trainprof.analysis.timeline.step_table import step_table
from trainprof.analysis.timeline.timeline import Timeline, build_timeline
from trainprof.findings.combined_speedup import together
from trainprof.findings.diagnose import diagnose
from trainprof.findings.gain import of_python, times_without
from trainprof.findings.loading.loader_forecast import LoaderForecast, modelled
from trainprof.findings.run_context import RunContext
from trainprof.record.schema import Kind

Loop = Callable[[FakeRun, list[int], int], None]


def timeline_of(tmp_path: Any, loop: Loop) -> tuple[Timeline, TrainingProcess, list[int]]:
    """Returns the timeline of a loop over three loaders, and their ids."""
    run = FakeRun()
    loaders, optimizer = [run.loader(line) for line in (10, 20, 30)], run.optimizer()
    loop(run, loaders, optimizer)
    [process] = training_processes(read_recording(run.write(tmp_path)))
    timeline = build_timeline(
        process.events,
        process.metadata,
        BuiltLoaders.of(process.details),
        main_thread=process.main_thread,
        start=run.start,
        end=run.now,
    )
    return timeline, process, loaders


def shares(tmp_path: Any, loop: Loop) -> list[float | None]:
    timeline, process, loaders = timeline_of(tmp_path, loop)
    spent = attribute(timeline.events, timeline.nesting, timeline.segments, has_device=False)
    found = shares_of_steps(timeline, step_table(timeline, spent, process.metadata))
    return [found.get(one) for one in loaders]


def epochs(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    for _ in range(3):
        run.train_pass(loaders[0], optimizer, 20)
        run.evaluation_pass(loaders[1], 300)


def left_early(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    for _ in range(6):
        run.iterate(loaders[0])
        for _ in range(4):
            run.next(loaders[0])
            run.learn(optimizer)


def each_step(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    for _ in range(30):
        run.iterate(loaders[0])
        run.next(loaders[0])
        run.learn(optimizer)


def looking_ahead(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    for _ in range(4):
        run.iterate(loaders[0])
        run.next(loaders[0])
        for _ in range(4):
            run.next(loaders[0])
            run.learn(optimizer)
        run.stop(loaders[0])
        run.learn(optimizer)


def accumulating(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    for _ in range(3):
        run.iterate(loaders[0])
        for number in range(20):
            run.next(loaders[0])
            run.forward()
            run.backward()
            if number % 4 == 3:
                run.update(optimizer)
        run.stop(loaders[0])


def several_updates(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    run.iterate(loaders[0])
    for _ in range(10):
        run.next(loaders[0])
        for _ in range(5):
            run.learn(optimizer)
    run.stop(loaders[0])


def after_a_slow_first_step(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    """As torch.compile makes it."""
    run.iterate(loaders[0])
    for number in range(20):
        run.next(loaders[0])
        run.learn(optimizer, forward=900 * MS if number == 0 else MS)
    run.stop(loaders[0])


def saving_behind_passes(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    for _ in range(4):
        run.train_pass(loaders[0], optimizer, 10)
        run.leaf(Kind.CHECKPOINT_SAVE, 90 * MS)


@pytest.mark.parametrize(
    "loop",
    [
        epochs,
        left_early,
        each_step,
        looking_ahead,
        accumulating,
        several_updates,
        after_a_slow_first_step,
        saving_behind_passes,
    ],
)
def test_the_loader_of_all_passes_feeds_all_steps(tmp_path: Any, loop: Loop) -> None:
    assert shares(tmp_path, loop) == [1.0, None, None]
    assert are_all_fed(timeline_of(tmp_path, loop)[0])


def test_loaders_that_each_step_asks_feed_all_of_them(tmp_path: Any) -> None:
    def zipped(run: FakeRun, loaders: list[int], optimizer: int) -> None:
        one, other, rare = loaders
        for loader in loaders:
            run.iterate(loader)
        for number in range(40):
            run.next(one)
            if number and number % 8 == 0:  # the shorter one begins again
                run.stop(other)
                run.iterate(other)
            run.next(other)
            if number % 10 == 0:
                run.next(rare)
            run.learn(optimizer)
        run.stop(one)

    assert shares(tmp_path, zipped) == [1.0, 1.0, pytest.approx(31 / 40, abs=0.01)]


def test_phases_have_a_part_each(tmp_path: Any) -> None:
    def phases(run: FakeRun, loaders: list[int], optimizer: int) -> None:
        before, after, _ = loaders
        run.iterate(after)  # long ahead of its first batch
        run.train_pass(before, optimizer, 60, wait=450_000)
        for _ in range(20):
            run.next(after, 450_000)
            run.learn(optimizer)
        run.stop(after)

    assert shares(tmp_path, phases) == [
        pytest.approx(0.75, abs=0.001),
        pytest.approx(0.25, abs=0.001),
        None,
    ]


def by_turns(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    for _ in range(5):
        run.train_pass(loaders[0], optimizer, 6)
        run.train_pass(loaders[1], optimizer, 4)


def test_loaders_by_turns_have_a_part_each(tmp_path: Any) -> None:
    assert shares(tmp_path, by_turns) == [
        pytest.approx(0.6, abs=0.01),
        pytest.approx(0.4, abs=0.01),
        None,
    ]
    assert are_all_fed(timeline_of(tmp_path, by_turns)[0])


def kept_batches(run: FakeRun, loaders: list[int], optimizer: int) -> None:
    """itertools.cycle(loader)."""
    run.iterate(loaders[0])
    for _ in range(25):
        run.next(loaders[0], 450_000, samples=8)
        run.learn(optimizer)
    run.stop(loaders[0])
    for _ in range(150):
        run.learn(optimizer)


def test_kept_batches_are_fed_by_nobody(tmp_path: Any) -> None:
    fed_ms, others_ms = 25 * 1.0, 150 * 0.55
    share = fed_ms / (fed_ms + others_ms)
    assert shares(tmp_path, kept_batches) == [pytest.approx(share, abs=0.01), None, None]
    assert not are_all_fed(timeline_of(tmp_path, kept_batches)[0])


@pytest.mark.parametrize(
    ("loop", "samples"), [(kept_batches, None), (several_updates, 80), (accumulating, 480)]
)
def test_samples_of_kept_batches_are_not_counted(
    tmp_path: Any, loop: Loop, samples: int | None
) -> None:
    run = FakeRun()
    plain = run.next
    run.next = lambda loader, ns=0, **_: plain(loader, ns, samples=8)  # type: ignore[method-assign]
    loop(run, [run.loader(line) for line in (10, 20, 30)], run.optimizer())
    found = run.summary(tmp_path)
    assert found.training.samples == samples
    assert (found.training.samples_per_s is None) is (samples is None)
    why = found.not_observed.get("training.samples")
    assert (why is None) if samples else why.startswith("no loader feeds some of the steps")


def in_two_phases(one: Planted, share: float) -> RunContext:
    """Returns a run of which a loader feeds a share of the steps' time."""
    plain = case_of(one)
    # The others' steps, which wait for nothing.
    longer_s = plain.training_s / share
    run = replace(plain.summary.run, wall_s=1.1 * longer_s)
    [fed] = plain.feeding
    part = replace(fed, training_s=longer_s, steps_share=share)
    summary = replace(plain.summary, run=run)
    return replace(plain, summary=summary, training_s=longer_s, feeding=[part])


def only(case: RunContext) -> Finding:
    [finding] = diagnose(case).findings
    return finding


@pytest.mark.parametrize(
    "planted",
    [
        {"fetch_s": 0.05, "compute_s": 0.01},
        {"workers": 1, "fetch_s": 0.05, "compute_s": 0.01},
        {"workers": 2, "fetch_s": 0.01, "compute_s": 0.01, "slow_every": 8},
        {"fetch_s": 0.05, "running": 1.0, "compute_s": 0.01, "collate": 0.8},
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_steps_gain_no_more_than_those_take_that_are_fed(
    planted: dict[str, Any], share: float
) -> None:
    whole = only(case_of(Planted(**planted)))
    part = only(in_two_phases(Planted(**planted), share))
    assert (part.id, part.of_steps) == (whole.id, True)
    assert whole.predicted_speedup is not None
    assert part.predicted_speedup is not None
    for told, alone in zip(part.predicted_speedup, whole.predicted_speedup, strict=True):
        assert told <= times_without(share)
        assert told == pytest.approx(1 / (1 - share * (1 - 1 / alone)), rel=0.02)
    alone = whole.evidence[LIKELY]
    assert part.evidence[LIKELY] == pytest.approx(1 / (1 - share * (1 - 1 / alone)), rel=0.02)
    assert part.recoverable_s == pytest.approx(whole.recoverable_s, rel=0.15)


def test_all_of_these_together_gain_no_more_than_each_part_takes() -> None:
    case = in_two_phases(Planted(fetch_s=0.05, compute_s=0.01), 0.5)
    loading = only(case)
    assert loading.predicted_speedup is not None
    other = replace(loading, id="python_in_loop", evidence={}, change={}, of_steps=False)
    python = replace(other, recoverable_s=0.1 * case.training_s, predicted_speedup=[1.0, 1 / 0.9])
    both = together(case, [loading, python])
    assert both is not None
    assert loading.predicted_speedup[1] < both < 1 / (0.5 - 0.1)


def test_python_of_steps_that_others_feed_is_not_put_on_its_batches() -> None:
    case = in_two_phases(Planted(workers=1, fetch_s=0.05, compute_s=0.04), 0.25)
    gain = of_python(case, 0.4 * case.training_s)
    assert gain is not None
    assert gain.likely == pytest.approx(1 / 0.6)


@pytest.mark.parametrize(("one", "other", "all_of_them"), [(0.3, 0.2, 0.5), (0.6, 0.39, 1.0)])
def test_the_forecast_of_loaders_by_turns(one: float, other: float, all_of_them: float) -> None:
    both = [Planted(fetch_s=0.05, compute_s=0.01, passes=1) for _ in range(2)]
    both[1].loader = replace(both[1].loader, id=1, site="train.py:50")
    case = case_of(*both)
    training = replace(case.summary.training, iterations=400, steps=400)
    case = replace(case, summary=replace(case.summary, training=training))
    settings = [replace(x.inputs.setting, workers=4) for x in both]

    def forecast(*of_each: float) -> Any:
        feeding = [
            replace(fed, steps_share=x) for fed, x in zip(case.feeding, of_each, strict=True)
        ]
        return LoaderForecast(case, modelled(feeding)).speedup(settings)

    whole, part = forecast(1.0, 1.0), forecast(one, other)
    for end in ("low", "mid", "high"):
        expected = 1 / (1 - all_of_them * (1 - 1 / whole.at(end)))
        assert part.at(end) == pytest.approx(expected)
    assert np.isfinite(part.high)
