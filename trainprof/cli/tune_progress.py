"""What `tune` shows on stderr while it runs: a line for each trial, and the time that is left."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TextIO

from trainprof.cli.output import is_terminal, style_of, write
from trainprof.report.text.units import counted, three_digits

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainprof.tune.measurements import Progress

_EVERY_S: Final = 1.0


class TuneProgress:
    """Called before and after each run of a trial; on a terminal the trial's line counts down.

    Trials of an earlier start that are not run again are told together, in one line.
    """

    def __init__(
        self, stream: TextIO | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream, clock
        self._is_live = is_terminal(stream)
        self._style = style_of(stream)
        self._lock = threading.Lock()
        self._running: tuple[Progress, float] | None = None
        self._kept = 0  # and not told of yet
        self._has_run = False
        self._over = threading.Event()

    def __enter__(self) -> TuneProgress:
        if self._is_live:
            threading.Thread(target=self._tick, name="trainprof-progress", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        with self._lock:
            if self._running is not None and self._is_live:
                write(self._stream, self._cleared())
            self._running = None
            self._tell_kept(", and none run anew" if not self._has_run else "")

    def __call__(self, progress: Progress) -> None:
        if progress.is_kept:
            self._kept += progress.measured is not None
            return
        with self._lock:
            self._has_run = True
            self._tell_kept()
            if progress.measured is None:
                self._running = progress, self._clock()
            else:
                self._running = None
                clear = self._cleared() if self._is_live else ""
                left = "" if self._is_live else f" ({_left(progress.left_s)} left)"
                line = f"{_at(progress)}: {progress.trial.name}: {_result(progress)}{left}"
                write(self._stream, f"{clear}{line}\n")
        self.draw()

    def announce(self, sentence: str) -> None:
        """Writes a sentence between the lines of two trials."""
        with self._lock:
            clear = self._cleared() if self._is_live and self._running is not None else ""
            write(self._stream, f"{clear}trainprof: {sentence}\n")

    def _tell_kept(self, more: str = "") -> None:
        if self._kept:
            write(self._stream, f"{counted(self._kept, 'trial')} kept from before{more}\n")
        self._kept = 0

    def draw(self) -> None:
        """Writes the line of the trial that runs anew, with the time that is left by now."""
        with self._lock:
            if self._running is None or not self._is_live:
                return
            progress, began_s = self._running
            left_s = max(progress.left_s - (self._clock() - began_s), 0.0)
            line = f"{_at(progress)}: {progress.trial.name} ... {_left(left_s)} left"
            write(self._stream, f"{self._cleared()}{line[: self._style.width - 1]}")

    def _cleared(self) -> str:
        return f"\r{' ' * (self._style.width - 1)}\r"

    def _tick(self) -> None:
        try:
            while not self._over.wait(_EVERY_S):
                self.draw()
        except (OSError, ValueError):  # the terminal is gone
            return


def _at(progress: Progress) -> str:
    at = f"trial {progress.done + (progress.measured is None)}"
    return at if progress.expected is None else f"{at} of about {progress.expected}"


def _result(progress: Progress) -> str:
    """Returns the pace that the table will have: with starts of passes, where training has some."""
    from trainprof.analysis.summary.tune import TOO_FEW_STEPS
    from trainprof.tune.trial import WARM_UP

    run = progress.measured
    assert run is not None
    if run.trial.name == WARM_UP and run.outcome == TOO_FEW_STEPS:
        return "done, not counted"
    pace = run.training_pace or run.pace
    if pace is None or pace.mean_s <= 0:
        return run.outcome if run.detail is None else f"{run.outcome}: {run.detail}"
    unit = "batches" if run.trial.data == "alone" else "steps"
    return f"{three_digits(1 / pace.mean_s)} {unit}/s"


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
