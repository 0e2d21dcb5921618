"""How long a device works for a slow host, by looks at what had piled up; every moment is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from support.device_run import DeviceRun
from support.events import LEARNS, MS, US

from trainprof.analysis.device_figures import Device
from trainprof.analysis.step_series import read_step_series
from trainprof.analysis.summarize import summarize
from trainprof.analysis.summary import RunSummary
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import DeviceMarkFlag, Kind, Topic
from trainprof.report import terminal

STEPS = 400
LOOKS = range(40, STEPS, 60)
# The host takes 6.1 ms to give out what the device does in 0.7.
WORK = (200 * US, 400 * US, 100 * US)
PAUSE = 8 * MS
WIDEST = 0.25
Step = Callable[[DeviceRun, int], None]


def tiny(run: DeviceRun, _: int) -> None:
    run.learn(*WORK, launch=2 * MS, pieces=20)


def trained(step: Step, looks: range = LOOKS, *, pause: int = PAUSE) -> DeviceRun:
    """Makes the device wait before some of the steps; before some more, to try how long."""
    run = DeviceRun()
    run.start()
    for number in range(STEPS):
        run.next(50 * US)
        if number + 1 in looks:
            run.pause(200 * US, is_try=True)
        if number in looks:
            run.pause(pause)
        step(run, number)
    run.stop()
    return run


def of(run: DeviceRun, directory: Path) -> tuple[RunSummary, Device]:
    summary = run.run.summary(directory)
    (device,) = summary.devices or ()
    return summary, device


def is_inside(run: DeviceRun, device: Device) -> bool:
    low, high = device.busy_share
    return low <= run.busy_share() <= high


def test_looks_tell_how_long_it_works_between_a_slow_hosts_launches(tmp_path: Path) -> None:
    run = trained(tiny)
    summary, device = of(run, tmp_path)
    low, high = device.busy_share
    assert run.busy_share() == pytest.approx(0.115, abs=0.01)
    assert is_inside(run, device)
    assert high - low < 0.05
    because, whole_s = device.idle_because, summary.phases.training_s
    assert because["launch_s"] / whole_s == pytest.approx(5.3 / 6.1, abs=0.03)
    assert sum(because.values()) + low * whole_s == pytest.approx(whole_s, rel=1e-9)
    assert low + because["unknown_s"] / whole_s == pytest.approx(high)
    assert device.looks == len(LOOKS)
    assert device.paused_s == pytest.approx(len(LOOKS) * 8.2e-3, rel=0.01)
    assert device.looked_share > 0.9


def test_without_looks_it_stays_open(tmp_path: Path) -> None:
    run = trained(tiny, range(0))
    summary, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert device.busy_share[1] - device.busy_share[0] > 0.8
    assert (device.looks, device.looked_share, device.idle_because["launch_s"]) == (0, 0.0, 0.0)
    assert summary.not_observed["devices.busy_share"].startswith("known within wide bounds only:")


def test_phases_take_what_they_take_without_gaps(tmp_path: Path) -> None:
    told = of(trained(tiny), tmp_path / "looks")[1].per_step_s
    assert told["forward"] == pytest.approx(200e-6, rel=0.05)
    assert told["backward"] == pytest.approx(400e-6, rel=0.05)
    assert told["optimizer"] == pytest.approx(100e-6, rel=0.05)
    gaps = of(trained(tiny, range(0)), tmp_path / "none")[1].per_step_s
    assert gaps["backward"] == pytest.approx(2e-3, rel=0.05)


def test_work_that_differs_from_step_to_step_widens_the_bounds(tmp_path: Path) -> None:
    random = Random(0)

    def step(run: DeviceRun, _: int) -> None:
        much = random.choice((1, 4))
        run.learn(*(ns * much for ns in WORK), launch=2 * MS, pieces=20)

    run = trained(step, range(20, STEPS, 25), pause=8 * MS)
    _, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert 0.05 < device.busy_share[1] - device.busy_share[0] < WIDEST


def test_two_looks_are_too_few(tmp_path: Path) -> None:
    run = trained(tiny, range(100, 300, 100))
    summary, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert device.busy_share[1] - device.busy_share[0] > 0.8
    assert "2 looks" in summary.not_observed["devices.busy_share"]


def test_a_pause_too_short_for_work_to_pile_up_tells_nothing(tmp_path: Path) -> None:
    run = trained(tiny, pause=MS)
    _, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert device.looks == len(LOOKS)
    assert device.busy_share[1] - device.busy_share[0] > 0.7


def test_after_a_sync_nothing_has_piled_up(tmp_path: Path) -> None:
    """Only what the host gave out before it is known; a second pause tells the rest."""

    def step(run: DeviceRun, number: int, *, twice: bool) -> None:
        run.phase(Kind.FORWARD, 2 * MS, WORK[0], pieces=20)
        run.item()
        if twice and number in LOOKS:
            run.pause(PAUSE)
        run.phase(Kind.BACKWARD, 2 * MS, WORK[1], pieces=20)
        run.phase(Kind.OPTIMIZER_STEP, 2 * MS, WORK[2], pieces=20)

    once = trained(lambda run, number: step(run, number, twice=False))
    _, device = of(once, tmp_path / "once")
    assert is_inside(once, device)
    assert 0.5 < device.busy_share[1] - device.busy_share[0] < 0.75
    both = trained(lambda run, number: step(run, number, twice=True))
    _, device = of(both, tmp_path / "twice")
    assert is_inside(both, device)
    assert device.busy_share[1] - device.busy_share[0] < 0.08


def test_steps_unlike_those_that_were_looked_at_stay_open(tmp_path: Path) -> None:
    """All looks fall into the first half; in the second the device has more to do than then."""

    def step(run: DeviceRun, number: int) -> None:
        much = 1 if number < STEPS // 2 else 12
        run.learn(*(ns * much for ns in WORK), launch=2 * MS, pieces=20)

    run = trained(step, range(20, STEPS // 2, 25))
    _, device = of(run, tmp_path)
    assert is_inside(run, device)


def test_looks_that_were_all_early_do_not_speak_for_a_long_rest(tmp_path: Path) -> None:
    run = trained(tiny, range(20, 80, 10))
    _, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert device.looked_share == pytest.approx(3 * 70 / STEPS, abs=0.05)


def test_parts_of_a_step_are_told_apart(tmp_path: Path) -> None:
    """Two forwards a step, of which the second has ten times the work."""

    def step(run: DeviceRun, _: int) -> None:
        run.phase(Kind.FORWARD, MS, 50 * US, pieces=20)
        run.python(50 * US)
        run.phase(Kind.FORWARD, MS, 500 * US, pieces=20)
        run.phase(Kind.BACKWARD, MS, 500 * US, pieces=20)
        run.phase(Kind.OPTIMIZER_STEP, MS, 50 * US, pieces=20)

    run = trained(step)
    _, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert device.busy_share[1] - device.busy_share[0] < 0.08


def test_work_given_out_between_phases_counts(tmp_path: Path) -> None:
    """Such as a loss written by hand; nobody sees who gives it out."""

    def step(run: DeviceRun, _: int) -> None:
        run.phase(Kind.FORWARD, MS, 50 * US, pieces=20)
        for _ in range(10):
            run.python(200 * US)
            run.stream.gets(100 * US)
        run.phase(Kind.BACKWARD, MS, 50 * US, pieces=20)
        run.phase(Kind.OPTIMIZER_STEP, MS, 50 * US, pieces=20)

    run = trained(step)
    summary, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert run.busy_share() > 0.2
    because, whole_s = device.idle_because, summary.phases.training_s
    assert because["host_s"] / whole_s == pytest.approx(0.2, abs=0.03)  # of 2 ms half was worked
    assert because["launch_s"] / whole_s == pytest.approx(0.55, abs=0.05)


def test_work_in_an_evaluation_is_left_as_it_is(tmp_path: Path) -> None:
    def step(run: DeviceRun, number: int) -> None:
        tiny(run, number)
        if number in (100, 200, 300):
            run.evaluate(20, wait=MS, work=500 * US)

    run = trained(step)
    _, device = of(run, tmp_path)
    assert is_inside(run, device)
    assert device.busy_share[1] - device.busy_share[0] < 0.08


def test_a_device_that_has_work_queued_anyway_is_told_as_ever(tmp_path: Path) -> None:
    def step(run: DeviceRun, _: int) -> None:
        run.learn(4 * MS, 8 * MS, 2 * MS)

    plain, paused = trained(step, range(0)), trained(step)
    (_, before), (_, after) = of(plain, tmp_path / "plain"), of(paused, tmp_path / "paused")
    assert is_inside(paused, after)
    assert after.busy_share[0] > 0.98
    assert after.busy_share == pytest.approx(before.busy_share, abs=0.015)
    assert after.idle_because["launch_s"] < 1e-3


def test_steps_held_up_are_neither_steady_nor_outliers(tmp_path: Path) -> None:
    """A value is waited for in each, and with it the pause."""

    def step(run: DeviceRun, number: int) -> None:
        tiny(run, number)
        run.item()

    run = trained(step, pause=60 * MS)
    summary, device = of(run, tmp_path)
    assert summary.outliers == []
    step_s = summary.training.step_s
    assert step_s is not None
    assert step_s.max < 10e-3
    assert summary.training.steady_steps >= STEPS - 4 * len(LOOKS)
    assert device.queue_delay_s is not None
    assert device.queue_delay_s[1] < 100e-6
    assert is_inside(run, device)


def test_what_piles_up_by_itself_after_a_pause_is_not_held_up(tmp_path: Path) -> None:
    """The device keeps up at first; from the last pause on it has more to do than it can."""

    def step(run: DeviceRun, number: int) -> None:
        if number < 100:
            tiny(run, number)
        else:
            run.learn(4 * MS, 8 * MS, 2 * MS, launch=MS)

    run = trained(step, range(20, 101, 20))
    summary, device = of(run, tmp_path)
    # The first part counts as warm-up, and shares are of the rest.
    whole_s, warmup_s = summary.phases.training_s, device.idle_because["warmup_s"]
    worked_s = run.busy_share() * whole_s
    low_s, high_s = (share * (whole_s - warmup_s) for share in device.busy_share)
    assert 0 < low_s <= worked_s <= high_s + warmup_s
    assert high_s - low_s < 0.05 * whole_s
    # Of the 300 of the second part, its own warm-up left out.
    assert summary.training.steady_steps > 280


def test_the_verdict_names_the_small_pieces(tmp_path: Path) -> None:
    summary, _ = of(trained(tiny), tmp_path)
    assert summary.verdict.bottleneck == "host"
    assert summary.verdict.headline.startswith("HOST-BOUND: the device was at work in 1")
    assert summary.verdict.headline.endswith("small pieces of work, given out too slowly")


def test_the_page_says_what_was_done_to_the_device(tmp_path: Path) -> None:
    summary, _ = of(trained(tiny), tmp_path / "looks")
    page = " ".join(terminal.render(summary, width=100, color=False, verbose=True).split())
    assert "slow launches" in page
    assert "(at work at least)" in page
    assert "made to wait 6 times, 49." in page
    assert "(so much was added at most)" in page
    summary, _ = of(trained(tiny, range(0)), tmp_path / "none")
    page = terminal.render(summary, width=100, color=False)
    assert "slow launches" not in page
    assert "(surely at work)" in page
    assert "made to wait" not in page


@pytest.mark.parametrize(
    ("options", "note", "reason"),
    [
        ({"backlog": False}, {}, "--no-backlog was asked for"),
        ({"backlog": True, "lines": {"functions": []}}, {}, "while lines are timed"),
        ({"backlog": True}, {"no_backlog": "torch cannot make mps wait"}, "cannot make mps wait"),
        ({"backlog": True}, {}, "the run was too short"),
    ],
)
def test_why_there_were_no_looks_is_said(
    tmp_path: Path, options: dict[str, object], note: dict[str, str], reason: str
) -> None:
    run = trained(tiny, range(0))
    run.run.text(Topic.ENVIRONMENT, note)
    summary = summarize(run.run.write(tmp_path, options=options))
    assert reason in summary.not_observed["devices.busy_share"]
    assert reason in " ".join(
        terminal.render(summary, width=100, color=False, verbose=True).split()
    )


@pytest.mark.filterwarnings("ignore:overflow")
def test_damaged_marks_do_no_harm(tmp_path: Path) -> None:
    random = Random(0)
    for attempt in range(10):
        run = trained(tiny)
        marks = [n for n, record in enumerate(run.run.records) if record[0] == Kind.DEVICE_MARK]
        for number in random.sample(marks, 40):
            torn = bytearray(run.run.records[number])
            if random.random() < 0.5:
                torn[1] = random.choice((DeviceMarkFlag.HELD_UP, 7, 255))
            else:
                torn[random.choice((12, 20, 28)) + random.randrange(4)] ^= 1 << random.randrange(8)
            run.run.records[number] = bytes(torn)
        summary = run.run.summary(tmp_path / str(attempt))
        for device in summary.devices or ():
            assert all(0 <= share <= 1 + 1e-9 for share in device.busy_share)
            assert min(device.idle_because.values()) >= 0
        terminal.render(summary, width=80, color=False)


def test_marks_alone_say_nothing_of_work(tmp_path: Path) -> None:
    """A process that put marks and recorded no event."""
    run = DeviceRun()
    for _ in range(30):
        run.pause(MS)
        run.run.passes_time(5 * MS)
    run.run.record(Kind.FORWARD, run.run.now, run.run.now + MS, flags=LEARNS)
    assert run.run.summary(tmp_path) is not None


def test_a_comparison_has_the_same_steps(tmp_path: Path) -> None:
    """Those held up are no steady ones there either, and waits for the device stand apart."""

    def step(run: DeviceRun, number: int) -> None:
        run.learn(2 * MS, 4 * MS, MS)
        run.item()

    run = trained(step)
    summary, device = of(run, tmp_path)
    assert device.looks > 0
    series = read_step_series(RunDirectory(tmp_path / "run"))
    assert series is not None
    assert len(series.steady_s) == summary.training.steady_steps
    per_step_s = summary.training.per_step_s or {}
    assert per_step_s["device_wait"] > 1e-3
    for key, part_s in series.parts_s.items():
        assert part_s.mean() == pytest.approx(per_step_s.get(key, 0.0)), key
