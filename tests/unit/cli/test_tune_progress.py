"""What `tune` shows while it runs."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from trainprof.analysis.statistics.speedup import Pace
from trainprof.analysis.summary.tune import FAILED, OK, TOO_FEW_STEPS
from trainprof.cli.tune import Shown
from trainprof.report import progress as shown
from trainprof.report.progress import TimedProgress
from trainprof.report.text.layout import Page
from trainprof.tune.measurements import Progress
from trainprof.tune.trial import WARM_UP, Measured, Trial
from trainprof.tune.trial_limits import duration

CHANGE = Trial("num_workers=4", {"num_workers": 4})
PACES = {"pace": Pace(0.005, None), "training_pace": Pace(0.008, None)}
DONE = Measured(CHANGE, 1, "trials/x", outcome=OK, detail=None, seconds=9.0, **PACES)
LABEL = "trial 4: num_workers=4"


def running(left_s=90.0):
    return Progress(CHANGE, None, 3, left_s)


def ended(measured=DONE, left_s=60.0):
    return Progress(measured.trial, measured, 4, left_s)


def progress_on(stream, *, color=False, clock=lambda: 0.0):
    return TimedProgress(stream, Page(100, color=color), 240.0, duration, clock=clock)


def text_of(renderable):
    console = Console(file=io.StringIO(), width=100)
    console.print(renderable)
    return console.file.getvalue()


def test_on_a_terminal_a_bar_grows_and_the_time_left_goes_down():
    clock = SimpleNamespace(now_s=100.0)
    with progress_on(io.StringIO(), color=True, clock=lambda: clock.now_s) as bar:
        Shown(bar)(running(left_s=120.0))
        for left in ("2m 00s", "1m 30s", "1m 00s"):
            assert f"{LABEL} {left} left" in text_of(bar.line())
            clock.now_s += 30.0
        Shown(bar)(ended())
        assert text_of(bar.line()).strip() == ""


def test_a_terminal_shows_results_above_the_bar_and_the_cursor_again_at_the_end():
    screen = io.StringIO()
    with progress_on(screen, color=True) as bar:
        Shown(bar)(running())
        Shown(bar)(ended())
        bar.say("plan: x")
    written = screen.getvalue()
    assert written.index(f"{LABEL}: 125 steps/s\n") < written.index("plan: x\n")
    assert written.rstrip().endswith("\x1b[?25h") or written.count("\x1b[?25h")


def test_a_log_has_a_line_for_each_trial_and_each_minute(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(shown, "_EVERY_S", 0.001)
    with progress_on(log) as lines:
        Shown(lines)(running())
        while log.getvalue().count("\n") < 2:
            pass
        Shown(lines)(replace(ended(), is_kept=True))
        Shown(lines)(ended())
    *minutes, last = log.getvalue().splitlines()
    assert set(minutes) == {f"{LABEL}: running, 1m 30s left"}
    assert last == f"{LABEL}: 125 steps/s"


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({"training_pace": None}, "200 steps/s"),
        ({"trial": Trial(WARM_UP)}, "125 steps/s"),
        ({"trial": Trial(WARM_UP), "outcome": TOO_FEW_STEPS}, "done, not counted"),
        ({**dict.fromkeys(PACES), "outcome": FAILED, "detail": "KeyError"}, "failed: KeyError"),
    ],
)
def test_a_trial_shows_its_pace_or_how_it_failed(changes, result):
    log = io.StringIO()
    with progress_on(log) as lines:
        Shown(lines)(ended(replace(DONE, **changes)))
    assert log.getvalue().endswith(f": {result}\n")
