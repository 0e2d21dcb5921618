"""Shows what a long command is doing: a bar on a terminal, elsewhere a line a minute."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from trainprof.report.text.layout import Page

_EVERY_S: Final = 60.0
_REFRESHES_PER_S: Final = 2.0
_BAR_CELLS: Final = 20


class TimedProgress:
    """Shows the current task and the time left of `total_s`, and a line for each that ended.

    `page`: a bar needs its colour; `duration` formats seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        page: Page,
        total_s: float,
        duration: Callable[[float], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_s, self._duration, self._clock = total_s, duration, clock
        self._running: tuple[str, float, float] | None = None  # label, time left, its start
        self._is_over = threading.Event()
        self._console = Console(
            file=stream,
            width=page.width,
            force_terminal=page.color,
            color_system="standard" if page.color else None,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
        )
        self._bar = Live(
            console=self._console,
            get_renderable=self.line,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._is_live = page.color

    def __enter__(self) -> TimedProgress:
        if self._is_live:
            self._bar.start()
        else:
            threading.Thread(target=self._tick, name="trainprof-progress", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running = None
        self._is_over.set()
        with contextlib.suppress(OSError, ValueError):  # the terminal is closed
            self._bar.stop()

    def begin(self, label: str, left_s: float) -> None:
        self._running = label, left_s, self._clock()

    def end(self, line: str) -> None:
        self._running = None
        self._bar.refresh()
        self.say(line)

    def say(self, line: str) -> None:
        """Writes a line, above the bar."""
        self._console.print(line)

    def line(self) -> Table:
        """Returns the bar with the current task and the time left."""
        grid = Table.grid(padding=(0, 1))
        for _ in range(3):
            grid.add_column(no_wrap=True, overflow="ellipsis")
        if self._running is not None:
            label, left_s = self._now(*self._running)
            bar = ProgressBar(self._total_s, max(self._total_s - left_s, 0.0), width=_BAR_CELLS)
            grid.add_row(bar, label, f"{self._duration(left_s)} left")
        return grid

    def _now(self, label: str, left_s: float, began_s: float) -> tuple[str, float]:
        return label, max(left_s - (self._clock() - began_s), 0.0)

    def _tick(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while not self._is_over.wait(_EVERY_S):
                if (running := self._running) is not None:
                    label, left_s = self._now(*running)
                    self.say(f"{label}: running, {self._duration(left_s)} left")
