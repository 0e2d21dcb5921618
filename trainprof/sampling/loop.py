"""A thread that appends samples to files at a steady pace without delaying the run."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from trainprof.sampling.clock import NS_PER_S, Clock

# A tick may take this share of its interval; above it the interval doubles.
MAX_TICK_SHARE: Final = 0.05
MAX_INTERVAL_S: Final = 10.0
# Slow ticks in a row until the interval grows: the first one loads code and opens files, and on a
# busy machine any tick may be slow.
SLOW_TICKS: Final = 2
# Fast ticks in a row until the interval is halved again.
CALM_TICKS: Final = 8
# Samples at full rate; after them the interval grows with the run's length to keep files small.
FULL_RATE_SAMPLES: Final = 7_200
# Failures in a row after which a source is no longer sampled.
MAX_FAILURES: Final = 5


class NothingToSample(Exception):
    """A source has no more samples; the text is the reason."""


class Pace:
    """Adapts the time between ticks: longer for slow ticks and long runs."""

    def __init__(self, interval_s: float, max_tick_share: float = MAX_TICK_SHARE) -> None:
        self._max_tick_share = max_tick_share
        self._base_ns = max(1, int(interval_s * NS_PER_S))
        self._limit_ns = max(self._base_ns, int(MAX_INTERVAL_S * NS_PER_S))
        self._interval_ns = self._base_ns
        self._first_ns: int | None = None
        self._calm = self._slow = 0

    @property
    def interval_s(self) -> float:
        return self._interval_ns / NS_PER_S

    def next_interval_ns(self, started_ns: int, ended_ns: int) -> int:
        """Returns the time from a tick's start to the next one's."""
        if self._first_ns is None:
            self._first_ns = started_ns
        floor_ns = (started_ns - self._first_ns) // FULL_RATE_SAMPLES
        floor_ns = min(max(self._base_ns, floor_ns), self._limit_ns)
        self._adapt(ended_ns - started_ns, floor_ns)
        self._interval_ns = max(self._interval_ns, floor_ns)
        return self._interval_ns

    def _adapt(self, took_ns: int, floor_ns: int) -> None:
        is_slow = took_ns > self._max_tick_share * self._interval_ns
        self._slow = self._slow + 1 if is_slow else 0
        if is_slow:
            if self._slow >= SLOW_TICKS:
                self._interval_ns = min(2 * self._interval_ns, self._limit_ns)
            self._calm = 0
        elif took_ns > self._max_tick_share * self._interval_ns / 2:
            self._calm = 0
        elif self._interval_ns > floor_ns:
            # Slow ticks on a busy machine must not make the rest of the run coarse.
            self._calm += 1
            if self._calm >= CALM_TICKS:
                self._interval_ns = max(self._interval_ns // 2, floor_ns)
                self._calm = 0


class SampleFile:
    """Appends JSON lines, each in one write, until one fails; `failure` is the reason."""

    def __init__(self, path: Path) -> None:
        self.failure: str | None = None
        self._path = path
        self._descriptor: int | None = None

    def append(self, line: dict[str, Any]) -> None:
        if self.failure is not None:
            return
        text = json.dumps(line, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        try:
            self._write(text.encode("ascii") + b"\n")
        except OSError as error:
            self.failure = f"{self._path.name}: {error.strerror or error}"
            self.close()

    def close(self) -> None:
        """Closes the file; call it on the thread that writes."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # A network file system may report only now that earlier writes failed.
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(self._path, flags, 0o600)
        if os.fstat(self._descriptor).st_nlink == 0:
            # Writes to a deleted file would succeed and be lost.
            raise FileNotFoundError(None, "removed while sampling")
        while line:
            line = line[os.write(self._descriptor, line) :]


class SampleStream:
    """One source and its file, whose stem is its name; `ended` is why sampling stopped.

    `take` returns a sample, or None to skip one.
    """

    def __init__(
        self,
        path: Path,
        take: Callable[[], dict[str, Any] | None],
        clock: Clock,
        close: Callable[[], None] | None = None,
    ) -> None:
        self.name = path.stem
        self.ended: str | None = None
        self._file = SampleFile(path)
        self._take = take
        self._clock = clock
        self._close = close
        self._is_first = True
        self._failures = 0

    def advance(self, is_wanted: Callable[[], bool]) -> None:
        """Takes a sample and appends it unless it is no longer wanted; never raises."""
        if self.ended is not None:
            return
        t_ns = self._clock.now_ns()
        try:
            sample = self._take()
            if sample is not None and is_wanted():
                self._append(t_ns, sample)
            self._failures = 0
            self.ended = self._file.failure
        except NothingToSample as reason:
            self.ended = str(reason)
        except Exception as error:  # never print a thread's traceback into the run
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                self.ended = f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Closes the source; call it on the thread that samples."""
        self._file.close()
        if self._close is not None:
            self._close()

    def _append(self, t_ns: int, sample: dict[str, Any]) -> None:
        line = {"t_ns": t_ns}
        if self._is_first:
            line["time_ns"] = self._clock.wall_ns()
        self._file.append({**line, **sample})
        self._is_first = False


class SampleLoop:
    """A daemon thread that samples streams, the first time at once, the last when stopped.

    A tick may take `max_tick_share` of the interval before that grows. `pause_ns` returns the time
    to the next tick from the pace's interval; `cpu_ns` is the thread's CPU time.
    """

    def __init__(
        self,
        streams: Sequence[SampleStream],
        interval_s: float,
        clock: Clock,
        *,
        max_tick_share: float = MAX_TICK_SHARE,
        pause_ns: Callable[[int], int] | None = None,
    ) -> None:
        self.cpu_ns = 0
        self.pace = Pace(interval_s, max_tick_share)
        self._streams = streams
        self._clock = clock
        self._pause_ns = pause_ns
        self._stopping = threading.Event()
        self._abandoned = False
        names = "-".join(stream.name for stream in streams)
        self._thread = threading.Thread(target=self._run, name=f"trainprof-{names}", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Asks the thread to take its last samples and end."""
        self._stopping.set()

    def wait(self, timeout_s: float) -> None:
        """Waits for the thread's end; results of calls that still hang are dropped."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        self._abandoned = True

    def tick(self) -> int:
        """Samples every stream; returns the time until the next tick in ns."""
        started_ns = self._clock.now_ns()
        for stream in self._streams:
            stream.advance(lambda: not self._abandoned)
        self.cpu_ns = self._clock.thread_cpu_ns()
        ended_ns = self._clock.now_ns()
        interval_ns = self.pace.next_interval_ns(started_ns, ended_ns)
        if self._pause_ns is not None:
            interval_ns = self._pause_ns(interval_ns)
        return max(0, interval_ns - (ended_ns - started_ns))

    def _run(self) -> None:
        try:
            while any(stream.ended is None for stream in self._streams):
                if self._stopping.wait(self.tick() / NS_PER_S):
                    self.tick()
                    break
        finally:
            for stream in self._streams:
                stream.close()
