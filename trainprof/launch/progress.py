"""`--progress`: lines for a log file while the script runs, read from its event log."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from trainprof.record.last_stacks import main_place, read_last_stacks
from trainprof.record.log_reader import UnreadableLog, join_texts, log_paths, read_log
from trainprof.record.names import site_name
from trainprof.record.schema import HEADER_BYTES, RECORD, RECORD_BYTES, Kind, Topic
from trainprof.record.step_count import StepCount

_MAX_READ_BYTES: Final = 1 << 24
_STEPS: Final = (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)
# A process that has written one of these trains, or asks for batches.
_TRAINING: Final = frozenset((Kind.LOADER_NEXT, Kind.BACKWARD, *_STEPS))
_COMES_ON: Final = frozenset((Kind.FORWARD, *_TRAINING))

# kind, site, start ns, end ns, value
LiveRecord = tuple[int, int, int, int, int]


class LiveLog:
    """Yields the new records of the process that trains.

    `pid` is the script's, or under a launcher such as torchrun the first process that trains. One
    that re-executes itself has several logs.
    """

    def __init__(self, events: Path, pid: int) -> None:
        self._events = events
        self.pid = pid
        self._is_training = False
        self._offsets: dict[Path, int] = {}
        self._texts: list[bytes] = []

    def read(self) -> Iterator[LiveRecord]:
        """Yields the new records in the order in which they were written."""
        paths = log_paths(self._events)
        if not self._is_training:
            self._find_training(paths)
        for path in paths:
            if _pid_of(path) == self.pid:
                yield from self._read_file(path)

    def _find_training(self, paths: list[Path]) -> None:
        for path in sorted(paths, key=lambda path: (_pid_of(path) != self.pid, _pid_of(path))):
            with contextlib.suppress(UnreadableLog):
                if _TRAINING & read_log(path).kinds():
                    self.pid, self._is_training = _pid_of(path), True
                    return

    def text(self, number: int, topic: Topic) -> Any:
        """Returns a text's JSON value, None while it is not known."""
        known = join_texts(self._texts).get(number)
        if known is None or known[0] is not topic:
            return None
        try:
            return json.loads(known[1])
        except (ValueError, RecursionError):
            return None

    def main_place(self, cwd: str | None) -> str | None:
        """Returns where its main thread stood last, as `train.py:41`; None where unknown."""
        places = (
            main_place(sample, cwd)
            for sample in read_last_stacks(self._events)
            if sample.get("pid") == self.pid
        )
        return next(places, None)

    def _read_file(self, path: Path) -> Iterator[LiveRecord]:
        offset = self._offsets.get(path, HEADER_BYTES)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                data = file.read(_MAX_READ_BYTES)
        except OSError:
            return
        # The rest of the last chunk is allocated, and zero; the last record may not be whole yet.
        written = max(0, (len(data.rstrip(b"\0")) - 1) // RECORD_BYTES * RECORD_BYTES)
        self._offsets[path] = offset + written
        for place in range(0, written, RECORD_BYTES):
            kind, _flags, _thread, site, start, end, value = RECORD.unpack_from(data, place)
            if kind == Kind.TEXT:
                self._texts.append(data[place : place + RECORD_BYTES])
            elif kind:
                yield kind, site, start, end, value


def _pid_of(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


POLL_S: Final = 0.5
LINE_EVERY_NS: Final = 10_000_000_000
# As hi-ml caps them.
MAX_WARNINGS_PER_EPOCH: Final = 3
MAX_EPOCHS_WITH_WARNINGS: Final = 5


@dataclass(slots=True)
class LoaderProgress:
    """A loader and its epoch under way; times in ns."""

    number: int
    site: str
    length: int | None
    passes: int = 0
    batches: int = 0
    started_ns: int = 0
    waited_ns: int = 0
    trains: bool = False
    warnings: int = 0
    had_warnings: bool = False


@dataclass(slots=True)
class Progress:
    """Turns records into lines; a wait for a batch from `threshold_ns` on gives a warning."""

    log: LiveLog
    spawned_ns: int
    threshold_ns: int
    cwd: str
    utc: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    _loaders: dict[int, LoaderProgress] = field(default_factory=dict)
    _steps: StepCount = field(default_factory=StepCount)
    _updated_ns: int = -1
    _created_ns: dict[int, int] = field(default_factory=dict)
    _since_backward: dict[int, int] = field(default_factory=dict)
    _current: LoaderProgress | None = None
    _warned_epochs: int = 0
    _backwards: int = 0
    _now_ns: int = 0
    _last_line_ns: int = 0
    _came_on_ns: int = 0

    def lines(self, records: list[LiveRecord], *, now_ns: int) -> list[str]:
        """Returns the lines that are due after `records`, without line ends."""
        due: list[str] = []
        for record in records:
            line = self._take(record)
            due += [line] if line else []
            if record[0] in _COMES_ON:
                self._came_on_ns = record[3]
        self._now_ns = now_ns
        if now_ns - max(self._last_line_ns, self.spawned_ns) >= LINE_EVERY_NS:
            self._last_line_ns = now_ns
            due.append(self._stamp(self._where() + self._standstill()))
        return due

    def _take(self, record: LiveRecord) -> str | None:
        kind, site, start, end, value = record
        if kind in (Kind.LOADER_INIT, Kind.LOADER_RESET):
            # The reset that a creation contains is written first, and began later.
            self._created_ns[site] = start
        elif kind == Kind.LOADER_NEXT:
            return self._batch(site, start, end, value)
        elif kind == Kind.LOADER_END:
            return self._end(site, end)
        elif kind == Kind.BACKWARD:
            self._backwards += 1
            self._learnt()
        elif kind in _STEPS:
            self._updated(site, start)
        return None

    def _updated(self, optimizer: int, start: int) -> None:
        """Counts an update once, where a scaler's or a base class's step is inside another."""
        if start > self._updated_ns:
            self._updated_ns = start
            self._steps.add(optimizer)

    def _learnt(self) -> None:
        """Marks the loaders whose batches a backward used: of zipped ones, one batch each."""
        if self._current is not None:
            self._current.trains = True
        for number, batches in self._since_backward.items():
            self._loaders[number].trains |= batches == 1
        self._since_backward.clear()

    def _loader(self, number: int) -> LoaderProgress:
        loader = self._loaders.get(number)
        if loader is None:
            metadata: Any = self.log.text(number, Topic.LOADER)
            metadata = metadata if isinstance(metadata, dict) else {}
            place = self.log.text(metadata.get("site", 0), Topic.SITE)
            length = metadata.get("length")
            loader = self._loaders[number] = LoaderProgress(
                number, site_name(place, self.cwd), length if isinstance(length, int) else None
            )
        return loader

    def _begin(self, number: int, start: int) -> None:
        loader = self._loader(number)
        loader.passes += 1
        loader.batches = loader.waited_ns = loader.warnings = 0
        loader.had_warnings = False
        loader.started_ns = start

    def _batch(self, number: int, start: int, end: int, value: int) -> str | None:
        loader = self._loader(number)
        if value <= 1 or loader.passes == 0:
            self._begin(number, self._created_ns.pop(number, start))
        loader.batches += 1
        self._current = loader
        self._since_backward[number] = self._since_backward.get(number, 0) + 1
        if value <= 1:
            return None
        loader.waited_ns += end - start
        return self._warning(loader, end - start) if end - start >= self.threshold_ns else None

    def _warning(self, loader: LoaderProgress, waited_ns: int) -> str | None:
        if loader.warnings >= MAX_WARNINGS_PER_EPOCH:
            return None
        if not loader.had_warnings:
            if self._warned_epochs >= MAX_EPOCHS_WITH_WARNINGS:
                return None
            self._warned_epochs += 1
            loader.had_warnings = True
        loader.warnings += 1
        text = (
            f"slow batch: {loader.site} epoch {loader.passes} batch {loader.batches} "
            f"took {waited_ns / 1e9:.2f} s to arrive (threshold {self.threshold_ns / 1e9:g} s)"
        )
        if loader.warnings == MAX_WARNINGS_PER_EPOCH:
            text += ", no more warnings in this epoch"
        return self._stamp(text)

    def _end(self, number: int, end: int) -> str | None:
        loader = self._loader(number)
        self._since_backward.pop(number, None)
        if loader.batches == 0:
            return None
        seconds = (end - loader.started_ns) / 1e9
        waited = loader.waited_ns / 1e9
        share = waited / seconds if seconds > 0 else 0.0
        self._last_line_ns = max(self._last_line_ns, end)
        return self._stamp(
            f"{self._stage(loader)} epoch {loader.passes} took {seconds:.1f} s, "
            f"waiting for data {waited:.1f} s ({share:.0%}), {loader.batches} batches"
        )

    def _stage(self, loader: LoaderProgress) -> str:
        return "training" if loader.trains else "evaluation"

    @property
    def _step(self) -> int:
        """The number of steps so far, of backward passes where no optimizer steps."""
        return self._steps.steps or self._backwards

    def _where(self) -> str:
        elapsed = f"{_clock((self._now_ns - self.spawned_ns) / 1e9)} elapsed"
        loader = self._current
        if loader is None:
            return f"step {self._step}, {elapsed}" if self._step else f"no step yet, {elapsed}"
        count = f"{loader.batches}"
        elapsed_s = (self._now_ns - loader.started_ns) / 1e9
        left = ""
        if loader.length and loader.batches <= loader.length:
            count += f"/{loader.length} ({loader.batches / loader.length:.0%})"
            remaining = (loader.length - loader.batches) * elapsed_s / max(loader.batches, 1)
            left = f", about {_clock(remaining)} left in the epoch"
        return (
            f"{self._stage(loader)} epoch {loader.passes} batch {count}, "
            f"step {self._step}, {elapsed}{left}"
        )

    def _standstill(self) -> str:
        """Returns where the training thread is, while no batch and no step comes."""
        idle_ns = self._now_ns - max(self._came_on_ns, self.spawned_ns)
        place = self.log.main_place(self.cwd) if idle_ns >= LINE_EVERY_NS else None
        if place is None:
            return ""
        idle = f"no step for {_clock(idle_ns / 1e9)}, " if self._came_on_ns else ""
        return f"; {idle}training thread at {place}"

    def _stamp(self, text: str) -> str:
        return f"{self.utc():%Y-%m-%dT%H:%M:%SZ} trainprof: {text}"


class ProgressThread:
    """Polls a log and writes its lines; ends with the run, whatever the log is doing."""

    def __init__(self, progress: Progress, write: Callable[[str], None]) -> None:
        self._progress = progress
        self._write = write
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainprof-progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Writes what is still due; waits at most `timeout_s`."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stop.wait(POLL_S):
                self._poll()
            self._poll()
        except Exception as error:
            self._write(f"trainprof: no more progress lines: {type(error).__name__}: {error}")

    def _poll(self) -> None:
        records = list(self._progress.log.read())
        for line in self._progress.lines(records, now_ns=time.perf_counter_ns()):
            self._write(line)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
