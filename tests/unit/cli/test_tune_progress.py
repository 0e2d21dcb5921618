"""What `tune` shows while it runs."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.summary.tune import FAILED, OK, TOO_FEW_STEPS
from trainprof.cli.tune import TuneProgress
from trainprof.tune.measurements import Progress
from trainprof.tune.trial import WARM_UP, Measured, Trial

CHANGE = Trial("num_workers=4", {"num_workers": 4})
PACES = {"pace": Pace(0.005, None), "training_pace": Pace(0.008, None)}
DONE = Measured(CHANGE, 1, "trials/x", outcome=OK, detail=None, seconds=9.0, **PACES)

LINE = "trial 4 of about 9: num_workers=4: 125 steps/s (1m 00s left)\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def running(trial=CHANGE, left_s=90.0):
    return Progress(trial, None, 3, 9, left_s)


def ended(measured=DONE, left_s=60.0):
    return Progress(measured.trial, measured, 4, 9, left_s)


def test_on_a_terminal_the_time_that_is_left_goes_down(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    screen, clock = Terminal(), SimpleNamespace(now_s=100.0)
    progress = TuneProgress(screen, clock=lambda: clock.now_s)
    progress(running(left_s=120.0))
    for left in ("2m 00s", "1m 30s", "1m 00s"):
        line = screen.getvalue().rpartition("\r")[2]
        assert line == f"trial 4 of about 9: num_workers=4 ... {left} left"
        clock.now_s += 30.0
        progress.draw()
    progress(ended())
    assert screen.getvalue().endswith("\rtrial 4 of about 9: num_workers=4: 125 steps/s\n")
    with TuneProgress(screen) as progress:
        progress(running())
    assert screen.getvalue().endswith(" \r")  # taken back at the end


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


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"training_pace": None}, "200 steps/s"),
        ({"trial": Trial(WARM_UP)}, "125 steps/s"),
        ({"trial": Trial(WARM_UP), "outcome": TOO_FEW_STEPS}, "done, not counted"),
        ({**dict.fromkeys(PACES), "outcome": FAILED, "detail": "KeyError"}, "failed: KeyError"),
    ],
)
def test_a_trial_is_told_by_its_pace_or_what_became_of_it(changes, lines):
    log = io.StringIO()
    TuneProgress(log)(ended(replace(DONE, **changes)))
    assert log.getvalue().endswith(f": {lines} (1m 00s left)\n")
