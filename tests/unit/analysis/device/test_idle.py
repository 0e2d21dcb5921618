"""Why a device was idle, against trainings in which every moment of it is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.device_run import DeviceRun, trained
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.device.idle import IDLE_CAUSES
from trainprof.analysis.run.evidence import DeviceEvidence
from trainprof.analysis.run.run_part import (
    EVENT_US,
    EVICTED_US,
    MARK_COST_US,
    TIMES_REPEATED,
)
from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.run import Overhead
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.schema import CompileFlag, Kind, Topic
from trainprof.report.page import page as terminal
from trainprof.report.text.layout import Page

STEPS = 60
POINTS = 0.03
WORK = (4 * MS, 8 * MS, 2 * MS)
TINY = (200 * US, 400 * US, 100 * US)
Step = Callable[[DeviceRun, int], None]


def starved(run: DeviceRun, _: int) -> None:
    run.next(60 * MS)
    run.copy(1 * MS)
    run.learn(*WORK)


def half_starved(run: DeviceRun, _: int) -> None:
    run.next(16 * MS)
    run.copy(1 * MS)
    run.learn(*WORK)


def steady(run: DeviceRun, _: int) -> None:
    run.next(100 * US)
    run.copy(100 * US)
    run.learn(*WORK)
    run.item()


def drained(run: DeviceRun, _: int) -> None:
    """Values take long to come, and come often."""
    run.next(100 * US)
    run.learn(*TINY, launch=20 * US)
    for _ in range(5):
        run.item(value=400 * US)


def copying(run: DeviceRun, _: int) -> None:
    run.next(100 * US)
    for _ in range(2):
        run.copy(6 * MS, blocks=True)
    run.learn(MS, 2 * MS, MS)


def python(run: DeviceRun, _: int) -> None:
    run.next(100 * US)
    run.learn(*WORK)
    run.python(40 * MS)


def saving(run: DeviceRun, step: int) -> None:
    run.next(100 * US)
    run.learn(*WORK)
    run.item()
    if step % 5 == 4:
        run.save(60 * MS)


def evaluating(run: DeviceRun, step: int) -> None:
    run.next(100 * US)
    run.learn(*WORK)
    run.item()
    if step % 20 == 10:
        run.evaluate(20, wait=20 * MS, work=2 * MS)


def tiny(run: DeviceRun, _: int) -> None:
    """Small kernels, and a host that gives them out slowly."""
    run.next(50 * US)
    run.learn(*TINY, launch=2 * MS, pieces=20)


def hidden_sync(run: DeviceRun, _: int) -> None:
    """The host waits inside the forward, in a way that nothing sees."""
    run.next(50 * US)
    run.phase(Kind.FORWARD, 500 * US, 40 * MS, pieces=4, waits_inside=True)
    run.phase(Kind.BACKWARD, 500 * US, 8 * MS)
    run.phase(Kind.OPTIMIZER_STEP, 200 * US, 2 * MS)
    run.item()


TRAININGS = {
    starved: "data",
    half_starved: "compute",
    steady: "compute",
    drained: "sync",
    copying: "transfer",
    python: "host",
    saving: "checkpoint",
    evaluating: "evaluation",
    tiny: "host",
    hidden_sync: "unknown",
}


def of(run: DeviceRun, directory: Path) -> tuple[RunSummary, Device, float]:
    """Returns the summary, its one device, and the length of the training phase, s."""
    summary = run.run.summary(directory)
    (device,) = summary.devices
    return summary, device, summary.phases.training_s


@pytest.mark.parametrize("step", TRAININGS, ids=lambda step: step.__name__)
def test_idle_time_goes_to_what_the_host_was_doing(step: Step, tmp_path: Path) -> None:
    run = trained(step, STEPS)
    summary, device, whole_s = of(run, tmp_path)
    truth, because = run.idle_shares(), device.idle_because
    assert tuple(because) == IDLE_CAUSES
    assert min(because.values()) >= 0
    low, high = device.busy_share
    settled_s = whole_s - because["warmup_s"]
    assert sum(because.values()) + low * settled_s == pytest.approx(whole_s, rel=1e-9)
    assert low + because["unknown_s"] / settled_s == pytest.approx(high)
    assert low - POINTS <= run.busy_share() <= high + POINTS
    for cause in IDLE_CAUSES[:-1]:
        assert because[cause] / whole_s == pytest.approx(truth.get(cause, 0.0), abs=POINTS), cause
    assert summary.verdict.bottleneck == TRAININGS[step]
    assert (high - low < 0.25) is (step not in (tiny, hidden_sync))
    ledger, steps = summary.ledger, summary.training
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_s, rel=1e-9)
    assert min(ledger.seconds.values()) >= 0
    assert sum(steps.per_step_s.values()) == pytest.approx(steps.step_s.mean, rel=1e-9)
    launch_bound = [finding for finding in summary.findings if finding.id == "launch_bound"]
    assert len(launch_bound) == (step is tiny)
    for finding in launch_bound:
        assert finding.is_at_most
        assert min(device.ran_dry.values()) > 0.9
        assert device.queue_delay_s[0] < 20e-6
        least, most = device.launch_bound_share
        assert least <= 1 - run.busy_share() <= most + POINTS
        assert 0.5 * whole_s < finding.recoverable_s < whole_s
        # Some of that time it works: how much is unknown.
        assert finding.predicted_speedup[1] >= 1 / max(run.busy_share(), 0.01)


def with_driver(
    run: DeviceRun, directory: Path, percent: float, processes: list[dict[str, Any]] | None = None
) -> tuple[RunSummary, Device, float]:
    """Returns the same as `of`, where by NVIDIA's driver a kernel ran in `percent` of the time."""
    written = run.run.write(directory)
    device: dict[str, Any] = {"index": 0, "uuid": "GPU-1", "logical_index": 0, "is_visible": True}
    device |= {"is_number_assumed": False, "processes": processes or []}
    begins = run.stream.worked[0][0]
    samples = [
        {
            "t_ns": at,
            "gpus": [
                device | {"t_ns": at, "utilization_gpu_percent": percent if at >= begins else 0.0}
            ],
        }
        for at in range(run.run.start, run.run.now, 100 * MS)
    ]
    written.samples.mkdir(exist_ok=True)
    lines = "".join(json.dumps(sample) + "\n" for sample in samples)
    (written.samples / "gpus.jsonl").write_text(lines)
    summary = summarize(written)
    (shown,) = summary.devices
    return summary, shown, summary.phases.training_s


def test_the_driver_bounds_what_a_device_works_between_launches(tmp_path: Path) -> None:
    run = trained(tiny, steps=1200)
    plain, before, _ = of(run, tmp_path / "plain")
    assert before.busy_share[1] > 0.9
    _, device, whole_s = with_driver(run, tmp_path / "idle", 100 * run.busy_share() + 5)
    low, high = device.busy_share
    assert low <= run.busy_share() <= high < 0.3
    assert device.kernel_share == pytest.approx(run.busy_share() + 0.05)
    because = device.idle_because
    assert because["launch_s"] > 0.6 * whole_s
    assert sum(because.values()) + low * whole_s == pytest.approx(whole_s, rel=1e-9)
    # Small kernels one by one count for more than they take.
    _, full, _ = with_driver(run, tmp_path / "full", 100.0)
    assert full.busy_share[0] < 0.6
    others = [{"pid": 7, "is_here": True, "bytes": 1}]
    shared, device, _ = with_driver(run, tmp_path / "shared", 100.0, processes=others)
    assert device.busy_share == pytest.approx(before.busy_share, abs=0.001)
    assert shared.verdict == plain.verdict


def test_a_sync_that_costs_nothing_is_no_finding(tmp_path: Path) -> None:
    summary, device, whole_s = of(trained(steady, STEPS), tmp_path)
    (point,) = summary.sync_points
    assert point.seconds > 0.9 * whole_s
    assert point.exposed_s < 0.01 * whole_s
    assert device.exposed_s["sync"][1] < POINTS * whole_s
    assert summary.ledger.seconds["device_wait"] == pytest.approx(point.seconds, rel=0.01)
    assert summary.verdict.bottleneck == "compute"


def test_a_sync_that_costs_names_its_line(tmp_path: Path) -> None:
    summary, _, _ = of(trained(drained, STEPS), tmp_path)
    (point,) = summary.sync_points
    assert point.exposed_s == pytest.approx(STEPS * 5 * 400e-6, rel=0.05)
    assert summary.verdict.site == "train.py:60"
    assert (point.site, point.kind, point.count) == ("train.py:60", "item", 300)
    assert summary.ledger.seconds["sync"] == pytest.approx(STEPS * 5 * 400e-6, rel=0.1)


def test_a_blocking_copy_waits_for_the_work_before_it(tmp_path: Path) -> None:
    def step(run: DeviceRun, _: int) -> None:
        run.next(100 * US)
        run.learn(*WORK)
        run.copy(3 * MS, blocks=True, to_host=True)

    summary, device, _ = of(trained(step, STEPS), tmp_path)
    assert summary.ledger.seconds["device_wait"] == pytest.approx(STEPS * 13.4e-3, rel=0.03)
    assert summary.ledger.seconds["transfer"] == pytest.approx(STEPS * 3e-3, rel=0.03)
    (copies,) = summary.transfers
    assert (copies.direction, copies.timed) == ("d2h", STEPS)
    assert copies.device_s == pytest.approx(STEPS * 3e-3, rel=0.03)
    assert copies.exposed_s == pytest.approx(STEPS * 3e-3, rel=0.03)
    assert copies.gb_per_s == pytest.approx(4.0, rel=0.03)
    assert device.seconds["transfer"] == pytest.approx(STEPS * 3e-3, rel=0.03)


def test_the_line_that_copies_most_in_training_is_named(tmp_path: Path) -> None:
    run = DeviceRun()
    run.stream.mark()
    for _ in range(20):  # the data goes to the device once, ahead of training
        run.run.passes_time(MS)
        run.copy(60 * MS, blocks=True, line=45)

    def step(run: DeviceRun, number: int) -> None:
        copying(run, number)
        run.copy(MS, blocks=True, line=52)

    summary, _, _ = of(trained(step, STEPS, run), tmp_path)
    by_line = {copies.site: copies for copies in summary.transfers}
    once, most = by_line["train.py:45"], by_line["train.py:50"]
    assert once.exposed_s == pytest.approx(1.2, rel=0.05)
    assert (once.exposed_in_training_s, once.in_training) == (0.0, 0)
    assert (most.exposed_in_training_s, most.in_training) == (most.exposed_s, 2 * STEPS)
    assert once.exposed_s > most.exposed_s
    [finding] = [finding for finding in summary.findings if finding.id == "blocking_copies"]
    assert finding.site == "train.py:50"


def test_a_copy_on_a_stream_of_its_own_costs_nothing(tmp_path: Path) -> None:
    def step(run: DeviceRun, _: int) -> None:
        run.next(100 * US)
        run.learn(*WORK)
        run.copy(1 * MS, beside=True)
        run.item()

    summary, device, whole_s = of(trained(step, STEPS), tmp_path)
    (copies,) = summary.transfers
    assert copies.beside_share == 1
    assert (copies.device_s, copies.gb_per_s) == (None, None)
    assert copies.exposed_s < 0.01 * whole_s
    assert device.idle_because["copy_s"] < 0.01 * whole_s


def test_marks_that_were_never_seen_leave_the_end_open(tmp_path: Path) -> None:
    run = DeviceRun()
    run.start()
    for number in range(STEPS):
        starved(run, number)
    run.stream.pending.clear()
    run.stream.mark = lambda: run.run.passes_time(3 * US)
    for number in range(STEPS // 2):
        starved(run, number)
    run.stop()
    _, device, whole_s = of(run, tmp_path)
    assert device.idle_because["unknown_s"] == pytest.approx(whole_s / 3, rel=0.05)


def test_before_the_first_mark_it_is_start_up(tmp_path: Path) -> None:
    run = DeviceRun()
    run.begins = run.run.now
    run.run.iterate(run.loader)
    run.run.yielded[run.loader] = 1
    start = run.run.now
    run.run.passes_time(500 * MS)
    run.run.record(Kind.LOADER_NEXT, start, run.run.now, site=run.loader, value=1)
    for number in range(STEPS):
        starved(run, number)
    run.stop()
    _, device, _ = of(run, tmp_path)
    assert device.idle_because["startup_s"] == pytest.approx(0.5, abs=0.001)


def overhead_of_reads(directory: Path, reads: int) -> Overhead:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    if reads:
        run.text(Topic.ENVIRONMENT, {"looked_ns": 12_000_000})
    run.iterate(loader)
    for _ in range(30):
        run.next(loader)
        for _ in range(reads):
            run.mark(Kind.SYNC)
        run.learn(optimizer)
    run.stop(loader)
    return run.summary(directory).overhead


def test_what_recording_costs(tmp_path: Path) -> None:
    run = trained(steady, STEPS)
    marks = sum(record[0] == Kind.DEVICE_MARK for record in run.run.records) / STEPS
    known = {None: (EVENT_US, 0), False: (0.5, 0), True: (0.1, 1)}
    for in_c, (event_us, which) in known.items():
        if in_c is not None:
            run.run.header.update(in_c=in_c, event_ns=1000 * event_us)
        overhead = run.run.summary(tmp_path).overhead
        assert overhead.in_c is in_c
        assert overhead.per_step_us == pytest.approx(
            6 * (event_us + EVICTED_US[which]) + marks * MARK_COST_US, rel=0.03
        )
    # Reading value after value costs less.
    none, first, many = (overhead_of_reads(tmp_path / str(n), n) for n in (0, 1, 101))
    assert first.per_step_us - none.per_step_us == pytest.approx(EVENT_US + EVICTED_US[0], rel=0.1)
    assert many.per_step_us - first.per_step_us == pytest.approx(
        100 * TIMES_REPEATED[0] * EVENT_US, rel=0.1
    )
    assert (none.looks_s, many.looks_s) == (None, 0.012)


@pytest.mark.filterwarnings("ignore:overflow")
def test_marks_that_a_crash_has_torn_do_no_harm(tmp_path: Path) -> None:
    random = Random(0)
    for attempt in range(20):
        run = trained(copying, 30)
        marks = [n for n, record in enumerate(run.run.records) if record[0] == Kind.DEVICE_MARK]
        for number in random.sample(marks, 20):
            torn = bytearray(run.run.records[number])
            torn[random.choice((12, 20, 28)) + random.randrange(4)] ^= 1 << random.randrange(8)
            run.run.records[number] = bytes(torn)
        summary = run.run.summary(tmp_path / str(attempt))
        assert sum(summary.ledger.seconds.values()) == pytest.approx(summary.ledger.wall_s)
        assert min(summary.ledger.seconds.values()) >= 0
        for device in summary.devices or ():
            assert all(0 <= share <= 1 + 1e-9 for share in device.busy_share)
            assert min(device.idle_because.values()) >= 0
        terminal.render(summary, Page(80))


def compiles(run: DeviceRun, ns: int, version: int) -> None:
    """A forward that torch compiles first: the device has nothing to do but what it had before."""
    start = run.run.now
    run.stream.mark()
    flags = CompileFlag.COUNT_KNOWN
    run.run.leaf(Kind.COMPILE, ns, site=run.run.site(50), value=version, flags=flags)
    run.run.passes_time(2 * MS)
    run.stream.gets(200 * US)
    end = run.run.now
    run.stream.mark()
    run.run.record(Kind.FORWARD, start, end, flags=LEARNS)


def small_steps(compiled: dict[int, int], before: int = 0, first: int = 2 * MS) -> DeviceRun:
    """120 steps of small kernels, some of which compile (ns by step) with work left before."""

    def step(run: DeviceRun, number: int) -> None:
        run.next(50 * US)
        if number in compiled:
            run.stream.gets(before)
            compiles(run, compiled[number], number)
            kinds = (Kind.BACKWARD, Kind.OPTIMIZER_STEP)
            run.learn(*TINY[1:], launch=2 * MS, pieces=20, kinds=kinds)
        else:
            run.learn(*TINY, launch=2 * MS if number else first, pieces=20)

    return trained(step, 120)


def launching_s(summary: RunSummary) -> float:
    findings = [finding for finding in summary.findings if finding.id == "launch_bound"]
    return sum(finding.evidence["launching_s"] for finding in findings)


def test_what_is_compiled_again_is_no_launching(tmp_path: Path) -> None:
    plain, _, _ = of(small_steps({}), tmp_path / "plain")
    compiled = dict.fromkeys((40, 60, 80, 100), 400 * MS)
    summary, device, _ = of(small_steps(compiled), tmp_path / "compiled")
    recompiling, launch_bound = summary.findings
    assert (recompiling.id, launch_bound.id) == ("recompiling", "launch_bound")
    assert recompiling.recoverable_s == pytest.approx(1.6, rel=0.01)
    assert launching_s(summary) == pytest.approx(launching_s(plain), rel=0.05)
    assert device.idle_because["compile_s"] == pytest.approx(1.6, rel=0.01)
    # While the device works it costs nothing.
    hidden, _, _ = of(small_steps(compiled, before=500 * MS), tmp_path / "hidden")
    [compilation] = hidden.compilations
    assert compilation.again_s == pytest.approx(1.6)
    assert compilation.again_idle_s == pytest.approx(0.0, abs=0.01)
    assert "recompiling" not in [finding.id for finding in hidden.findings]


def test_a_long_warm_up_is_no_launching(tmp_path: Path) -> None:
    plain, _, _ = of(small_steps({}), tmp_path / "plain")
    run = small_steps({}, first=2000 * MS)  # loads the device's libraries
    summary, device, whole_s = of(run, tmp_path / "late")
    assert device.idle_because["warmup_s"] == pytest.approx(6.0, rel=0.01)
    assert device.idle_because["compile_s"] == 0
    settled_s = whole_s - device.idle_because["warmup_s"]
    launching = DeviceEvidence.of(device, whole_s).launching * settled_s
    assert launching == pytest.approx(launching_s(plain), rel=0.05)
    assert launching_s(summary) == pytest.approx(launching_s(plain), rel=0.05)
    assert summary.verdict.share == pytest.approx(plain.verdict.share, abs=0.02)
    assert device.busy_share == pytest.approx(plain.devices[0].busy_share, abs=0.02)


def small_work(run: DeviceRun, *kinds: Kind) -> None:
    work = dict(zip((Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP), TINY, strict=True))
    for kind in kinds:
        run.phase(kind, 2 * MS, work[kind], pieces=20)


def plainly(run: DeviceRun) -> None:
    small_work(run, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER_STEP)


def by_scaler(run: DeviceRun) -> None:
    small_work(run, Kind.FORWARD, Kind.BACKWARD)
    with run.run.span(Kind.SCALER_STEP):
        small_work(run, Kind.OPTIMIZER_STEP)


def in_closure(run: DeviceRun) -> None:
    """As Lightning does: the optimizer calls for all of a step."""
    start = run.run.now
    run.stream.mark()
    with run.run.span(Kind.CLOSURE):
        small_work(run, Kind.FORWARD, Kind.BACKWARD)
    run.run.passes_time(2 * MS)
    run.stream.gets(TINY[2])
    end = run.run.now
    run.stream.mark()
    run.run.record(Kind.OPTIMIZER_STEP, start, end, site=run.run.optimizer())


@pytest.mark.parametrize("step", [plainly, by_scaler, in_closure])
def test_who_calls_the_optimizer_changes_nothing(step, tmp_path: Path) -> None:
    def whole(run: DeviceRun, _: int) -> None:
        run.next(50 * US)
        step(run)

    summary, device, _ = of(trained(whole, STEPS), tmp_path)
    assert set(device.ran_dry) == {"forward", "backward", "optimizer"}
    assert min(device.ran_dry.values()) > 0.9
    assert [finding.id for finding in summary.findings] == ["launch_bound"]


@pytest.mark.parametrize("work", [0, 2 * US, 18 * US], ids=["nothing", "little", "all the while"])
def test_reads_in_a_chain_leave_what_the_device_did_within_its_bounds(
    tmp_path: Path, work: int
) -> None:
    def step(run: DeviceRun, _: int) -> None:
        run.next(100 * US)
        run.learn(1 * MS, 2 * MS, MS)
        run.item()
        for _ in range(200):
            run.python(15 * US)
            run.stream.gets(work)
            run.item(in_chain=True)

    run = trained(step, STEPS)
    _, device, whole_s = of(run, tmp_path)
    low, high = device.busy_share
    assert low - 0.01 <= run.busy_share() <= high + 0.01
    host_share = device.idle_because["host_s"] / whole_s
    assert host_share == pytest.approx(run.idle_shares()["host_s"], abs=0.02)
