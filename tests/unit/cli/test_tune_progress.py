"""What `tune` shows while it runs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.summary.tune import FAILED, OK, TOO_FEW_STEPS
from trainprof.cli.tune import TuneProgress
from trainprof.tune.measurements import Progress
from trainprof.tune.trial import WARM_UP, Measured, Trial

CHANGE = Trial("num_workers=4", {"num_workers": 4})
DONE = Measured(
    trial=CHANGE,
    number=1,
    directory="trials/x",
    outcome=OK,
    detail=None,
    seconds=9.0,
    pace=Pace(0.005, None),
    training_pace=Pace(0.008, None),
)


LINE = "trial 4 of about 9: num_workers=4: 125 steps/s (1m 00s left)\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def running(trial=CHANGE, left_s=90.0):
    return Progress(trial, None, 3, 9, left_s)


def ended(measured=DONE, left_s=60.0):
    return Progress(measured.trial, measured, 4, 9, left_s)


def test_on_a_terminal_the_time_that_is_left_goes_down(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    screen, clock = Terminal(), Clock()
    progress = TuneProgress(screen, clock=clock)
    progress(running(left_s=120.0))
    lines = [screen.getvalue()]
    for _ in range(2):
        clock.now_s += 30.0
        progress.draw()
        lines.append(screen.getvalue())
    shown = [line.rpartition("\r")[2] for line in lines]
    assert shown[0] == "trial 4 of about 9: num_workers=4 ... 2m 00s left"
    assert shown[1].endswith("1m 30s left")
    assert shown[2].endswith("1m 00s left")
    assert all(len(line) < 100 for line in shown)
    progress(ended())
    assert screen.getvalue().endswith("\rtrial 4 of about 9: num_workers=4: 125 steps/s\n")


def kept(*names):
    lines = []
    for name in names:
        run = replace(DONE, trial=Trial(name))
        lines += [replace(line, is_kept=True) for line in (running(run.trial), ended(run))]
    return lines


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([*kept(WARM_UP, "baseline"), running(), ended()], f"2 trials kept from before\n{LINE}"),
        (kept(WARM_UP), "1 trial kept from before, and none run anew\n"),
        ([running(), ended()], LINE),
    ],
)
def test_in_a_log_each_trial_has_a_line_and_those_from_before_have_one(steps, said):
    log = io.StringIO()
    with TuneProgress(log) as progress:
        for step in steps:
            progress(step)
            progress.draw()
    assert log.getvalue() == said


def test_a_line_that_is_under_way_is_taken_back_at_the_end():
    screen = Terminal()
    with TuneProgress(screen) as progress:
        progress(running())
    assert screen.getvalue().endswith("\r")
    assert screen.getvalue().rstrip("\r").endswith(" ")


@pytest.mark.parametrize(
    ("measured", "lines"),
    [
        (replace(DONE, training_pace=None), "200 steps/s"),
        (replace(DONE, trial=Trial(WARM_UP)), "125 steps/s"),
        (replace(DONE, trial=Trial(WARM_UP), outcome=TOO_FEW_STEPS), "done, not counted"),
        (
            replace(DONE, pace=None, training_pace=None, outcome=FAILED, detail="ValueError"),
            "failed: ValueError",
        ),
    ],
)
def test_a_trial_is_told_by_its_pace_or_what_became_of_it(measured, lines):
    log = io.StringIO()
    TuneProgress(log)(ended(measured))
    assert log.getvalue().endswith(f": {lines} (1m 00s left)\n")
