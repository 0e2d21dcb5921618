"""Syncs and emptied caches: what the device idles for them, and what --find-syncs finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.device_run import DeviceRun, trained
from support.events import MS, US, FakeRun

from trainprof.analysis.run.run_part import TOO_FEW_STEPS
from trainprof.analysis.summary.device import FoundSync, FoundSyncs
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.schema import FoundSyncFlag, Kind, SyncFlag, Topic

STEPS = 120
Step = Callable[[DeviceRun, bool], None]


def goes_on_in_python(run: DeviceRun, waits: bool) -> None:
    run.next(50 * US)
    run.learn(1 * MS, 2 * MS, 1 * MS)
    if waits:
        run.item()
    run.python(2 * MS)


def reads_several(run: DeviceRun, waits: bool) -> None:
    """Only the first has something to wait for: what it takes is what the others cost."""
    run.next(50 * US)
    run.learn(1 * MS, 2 * MS, 1 * MS)
    for line in range(60, 70):
        run.python(100 * US)
        if waits:
            run.item(line=line)


def is_slower_than_the_device(run: DeviceRun, waits: bool) -> None:
    run.next(50 * US)
    run.learn(50 * US, 50 * US, 100 * US)
    if waits:
        run.item()
    run.python(5 * MS)


def has_work_left(run: DeviceRun, waits: bool) -> None:
    """The device is slower, and the value is of work that it does first: nothing is lost."""
    run.next(50 * US)
    run.learn(1 * MS, 2 * MS, 1 * MS)
    if waits:
        run.item()


LOOPS: list[Step] = [
    goes_on_in_python,
    reads_several,
    is_slower_than_the_device,
    has_work_left,
]


@pytest.mark.parametrize("step", LOOPS, ids=lambda step: step.__name__)
def test_what_a_sync_leaves_idle_is_what_training_takes_longer(step: Step, tmp_path: Path) -> None:
    run, free = (
        trained(lambda run, _, waits=waits: step(run, waits), STEPS) for waits in (True, False)
    )
    summary = run.run.summary(tmp_path)
    whole_s = summary.phases.training_s
    longer = (run.run.now - free.run.now) / 1e9 / whole_s
    (device,) = summary.devices or ()
    after = [point.held_back_s or [0.0, 0.0] for point in summary.sync_points]
    least, most = (
        (device.exposed_s["sync"][bound] + sum(held_s[bound] for held_s in after)) / whole_s
        for bound in (0, 1)
    )
    assert least - 0.02 <= longer <= most + 0.02
    findings = [finding for finding in summary.findings if finding.id == "exposed_syncs"]
    assert len(findings) == (longer > 0.1)
    for finding in findings:
        assert finding.predicted_speedup[1] >= 1 / (1 - longer) - 0.03


def test_the_line_after_which_the_device_idles_most_is_named(tmp_path: Path) -> None:
    def step(run: DeviceRun, _: int) -> None:
        run.next(50 * US)
        run.learn(1 * MS, 2 * MS, 1 * MS)
        run.item(line=60)
        run.python(100 * US)
        run.item(line=61)
        run.python(2 * MS)

    findings = trained(step, STEPS).run.summary(tmp_path).findings
    [finding] = [finding for finding in findings if finding.id == "exposed_syncs"]
    assert finding.site == "train.py:61"
    assert finding.evidence["idle_after_here_s"] == pytest.approx(STEPS * 2e-3, rel=0.05)


@pytest.mark.parametrize(
    ("pauses", "most_share"),
    [
        # What comes while it warms up is not counted.
        pytest.param(dict.fromkeys(range(3), 200 * MS), 0.05, id="warm-up"),
        # A host is ahead by two steps at most, however often it has waited before.
        pytest.param(dict.fromkeys((39, 79, 119), 500 * MS), 3 * 2.2 / STEPS + 0.02, id="rare"),
    ],
)
def test_what_no_lead_would_fill_is_not_counted(
    tmp_path: Path, pauses: dict[int, int], most_share: float
) -> None:
    def step(run: DeviceRun, number: int) -> None:
        run.next(50 * US)
        run.learn(1 * MS, 2 * MS, 1 * MS)
        run.item()
        run.python(pauses.get(number, 0))

    summary = trained(step, STEPS).run.summary(tmp_path)
    (point,) = summary.sync_points
    assert point.held_back_s[0] < most_share * summary.phases.training_s
    if 0 in pauses:
        assert summary.findings == []


def test_idle_time_of_two_findings_is_gained_once(tmp_path: Path) -> None:
    summary = trained(lambda run, _: goes_on_in_python(run, True), STEPS).run.summary(tmp_path)
    assert {finding.id for finding in summary.findings} == {"exposed_syncs", "python_in_loop"}
    (device,) = summary.devices
    assert summary.together <= 1 / device.busy_share[0] + 0.01


def test_a_gradient_scalers_own_reads_are_none_of_the_scripts(tmp_path: Path) -> None:
    def step(run: DeviceRun, _: int) -> None:
        run.next(50 * US)
        run.learn(1 * MS, 2 * MS, kinds=(Kind.FORWARD, Kind.BACKWARD))
        start = run.run.now
        run.item()
        run.phase(Kind.OPTIMIZER_STEP, 200 * US, 1 * MS)
        run.run.record(Kind.SCALER_STEP, start, run.run.now, site=run.optimizer)
        run.python(2 * MS)

    (point,) = trained(step, STEPS).run.summary(tmp_path).sync_points
    assert point.held_back_s == [0.0, 0.0]


@pytest.mark.parametrize(
    ("flags", "is_needed"),
    [(SyncFlag.BY_TORCH, True), (0, False), (SyncFlag.BY_LIBRARY, False)],
)
def test_what_torchs_optimizers_ask_for_in_their_step_is_none_of_the_scripts(
    tmp_path: Path, flags: int, is_needed: bool
) -> None:
    """As LBFGS does, between calls of its closure: by the code that asks, not by the line."""

    def step(run: DeviceRun, _: int) -> None:
        run.next(50 * US)
        start = run.run.now
        for _ in range(2):
            run.learn(1 * MS, 2 * MS, kinds=(Kind.FORWARD, Kind.BACKWARD))
            run.item(1 * MS, flags=flags)
        run.stream.gets(100 * US)
        run.run.record(Kind.OPTIMIZER_STEP, start, run.run.now, site=run.optimizer)

    summary = trained(step, STEPS).run.summary(tmp_path)
    (point,) = summary.sync_points
    assert (point.kind, point.count) == ("item", 2 * STEPS)
    assert point.library_share == (1.0 if flags == SyncFlag.BY_LIBRARY else 0.0)
    assert point.exposed_in_training_s > 0.1 * summary.phases.training_s
    assert point.needed_s == (point.exposed_in_training_s if is_needed else 0.0)
    assert (point.held_back_s == [0.0, 0.0]) is is_needed
    ids = [finding.id for finding in summary.findings]
    assert ("exposed_syncs" in ids) is not is_needed


def emptying(directory: Path, *, every: int, takes: int, again: int) -> RunSummary:
    """A training that empties the cache every few steps, after which the forward is slower."""
    run = DeviceRun()
    run.start()
    here = run.run.site(80)
    for number in range(STEPS):
        run.next(50 * US)
        is_after = number > 0 and number % every == 0
        launch = 2 * MS + again * is_after
        run.phase(Kind.FORWARD, launch, 500 * US, pieces=20)
        run.phase(Kind.BACKWARD, 2 * MS, 500 * US, pieces=20)
        run.phase(Kind.OPTIMIZER_STEP, 200 * US, 10 * US)
        if number % every == every - 1:
            with run.doing("host_s"):
                run.stream.waits()
                run.run.leaf(Kind.CACHE_EMPTIED, takes, site=here)
    run.stop()
    run.run.leaf(Kind.CACHE_EMPTIED, 900 * MS, site=run.run.site(99))
    return run.run.summary(directory)


def test_calls_in_each_step_are_found_and_explain_slow_launches(tmp_path: Path) -> None:
    summary = emptying(tmp_path, every=1, takes=2 * MS, again=3 * MS)
    assert summary.emptied_caches[0].site == "train.py:80"
    assert summary.emptied_caches[0].count == STEPS
    assert summary.emptied_caches[0].seconds == pytest.approx(STEPS * 2e-3)
    assert summary.emptied_caches[0].idle_s == pytest.approx(STEPS * 2e-3, rel=0.05)
    first = summary.findings[0]
    assert (first.id, first.site) == ("exposed_syncs", "train.py:80")
    # Without the calls, and what they make later: 4.25 of 9.25 ms.
    assert first.predicted_speedup[1] >= 9.25 / 4.25
    assert first.also
    assert {finding.id for finding in summary.findings}.isdisjoint(
        {"launch_bound", "python_in_loop"}
    )
    assert [
        finding.root for finding in summary.passed_over if finding.finding.id == "launch_bound"
    ] == ["exposed_syncs"]


def test_what_a_call_waits_for_the_device_costs_nothing(tmp_path: Path) -> None:
    """The host is ahead by several steps: the device works on meanwhile."""
    run = DeviceRun()
    run.start()
    here = run.run.site(80)
    for number in range(STEPS):
        run.next(50 * US)
        run.learn(1 * MS, 2 * MS, 1 * MS)
        if number % 5 == 4:
            waits_ns = max(run.stream.idle_from - run.run.now, 0)
            with run.doing("host_s"):
                run.run.leaf(Kind.CACHE_EMPTIED, waits_ns + 50 * US, site=here)
                run.stream.look()
    run.stop()
    summary = run.run.summary(tmp_path)
    (line,) = summary.emptied_caches
    assert line.seconds > 0.5 * summary.phases.training_s
    assert line.idle_s < 0.02 * summary.phases.training_s
    assert summary.findings == []


def planted(run: FakeRun) -> None:
    """A window after 20 steps: line 50 waits twice in each of 3 steps, line 60 once in all."""
    fifty, sixty, item = run.site(50), run.site(60), run.site(70)
    optimizer = run.optimizer()
    began = run.now
    run.record(Kind.SYNC_WINDOW, began, began, site=20)
    for step in range(3):
        lines = [fifty, fifty] + [sixty] * (step == 0)
        for site in lines:
            run.record(Kind.FOUND_SYNC, run.now, run.now, site=site)
        run.record(Kind.FOUND_SYNC, run.now, run.now, site=item, flags=FoundSyncFlag.KNOWN)
        run.learn(optimizer)
    run.record(Kind.SYNC_WINDOW, began, run.now, site=20, value=3)


def summary_of(run: FakeRun, directory: Path) -> RunSummary:
    return summarize(run.write(directory, options={"find_syncs": True}))


def test_calls_are_counted_by_line(tmp_path: Path) -> None:
    run = FakeRun()
    planted(run)
    summary = summary_of(run, tmp_path)
    calls = [FoundSync("train.py:50", 6), FoundSync("train.py:60", 1)]
    assert summary.found_syncs == FoundSyncs(20, 3, calls, known_calls=3)
    assert "found_syncs" not in summary.not_observed
    run.records.pop()  # a window that was never closed still tells
    cut = summary_of(run, tmp_path).found_syncs
    assert (cut.steps, len(cut.calls)) == (0, 2)


def test_why_nothing_was_looked_for(tmp_path: Path) -> None:
    run = FakeRun()
    run.learn(run.optimizer())
    assert summary_of(run, tmp_path).not_observed["found_syncs"] == TOO_FEW_STEPS
    assert "found_syncs" not in run.summary(tmp_path).not_observed
    run.text(Topic.ENVIRONMENT, {"no_found_syncs": "this torch knows no device but the CPU"})
    summary = summary_of(run, tmp_path)
    assert summary.found_syncs is None
    assert summary.not_observed["found_syncs"] == "this torch knows no device but the CPU"
