"""The machine as the tests share it: one that measures again has it to itself.

What runs beside a script takes its processor away between the script's clock and ours, and shares
its core. A first measurement mostly holds all the same; where it does not, the other processes of
pytest (xdist's, or another run's) end the test they are at and wait.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Attempts alone that count, and attempts in all.
ATTEMPTS = 4
MOST_ATTEMPTS = 12
# Of another run that is waited for.
LONGEST_TEST_S = 60.0
# Of the processors' time: more than that costs a tolerance of some percent.
STOLEN_SHARE = 0.01
# A property of integration tests: how many summaries of their runs were checked.
SUMMARIES = "summaries"
# Field of /proc/stat's first line: user, nice, system, idle, iowait, irq, softirq, steal.
_STEAL = 7


class Machine:
    """Locks of files that all processes of pytest see.

    Held by every test, shared; by one that measures again, alone. Who waits to be alone keeps the
    gate shut, else the others would share the machine among them for ever.

    Attributes:
        times_alone: How often this process measured again.
    """

    def __init__(self, directory: Path) -> None:
        self._gate, self._machine = (
            os.open(directory / f"trainprof-tests-{os.getuid()}.{name}", os.O_RDWR | os.O_CREAT)
            for name in ("gate", "machine")
        )
        self._is_alone = False
        self.times_alone = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others; ends what was begun by `alone`."""
        with _held(self._gate):
            fcntl.flock(self._machine, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._machine, fcntl.LOCK_UN)
            self._is_alone = False

    def alone(self) -> None:
        """Waits until no other test runs; until the end of this one none does.

        A test of another run may hang. After `LONGEST_TEST_S` this one goes on beside it.
        """
        self.times_alone += 1
        if not self._is_alone:
            fcntl.flock(self._machine, fcntl.LOCK_UN)
            with _held(self._gate):
                _lock_in_time(self._machine)
            self._is_alone = True


def _lock_in_time(file: int) -> None:
    """Locks the file for this process alone, unless others keep it for too long."""
    deadline = time.monotonic() + LONGEST_TEST_S
    while time.monotonic() < deadline:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)  # flock itself has no deadline


@contextmanager
def _held(file: int) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


MACHINE = Machine(Path(tempfile.gettempdir()))


def attempts() -> Iterator[int]:
    """Yields 0, 1, ...: attempts to measure, from 1 on with the machine to ourselves.

    What is measured wrong misses every time. An attempt while the machine was not there (a virtual
    one, whose processors others were given) is none of those that count. What each met is printed.
    """
    counted = 0
    for attempt in range(MOST_ATTEMPTS):
        if attempt:
            MACHINE.alone()
        before = _Disturbed.so_far()
        yield attempt
        met = _Disturbed.so_far().since(before)
        print(f"attempt {attempt}: {met}")
        counted += attempt > 0 and met.stolen_share < STOLEN_SHARE
        if counted == ATTEMPTS:
            return


@dataclass(frozen=True)
class _Disturbed:
    """What the kernel counts of time that was taken, and of memory that had to be read again."""

    stolen: int
    ticks: int
    pages_read: int

    @classmethod
    def so_far(cls) -> _Disturbed:
        """Returns the counts since the machine began."""
        _, *ticks = Path("/proc/stat").read_text().splitlines()[0].split()
        counts = [int(count) for count in ticks]
        events = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return cls(counts[_STEAL], sum(counts[: _STEAL + 1]), int(events["pgmajfault"]))

    def since(self, before: _Disturbed) -> _Disturbed:
        return _Disturbed(
            self.stolen - before.stolen,
            self.ticks - before.ticks,
            self.pages_read - before.pages_read,
        )

    @property
    def stolen_share(self) -> float:
        return self.stolen / max(self.ticks, 1)

    def __str__(self) -> str:
        return f"{self.stolen_share:.1%} of the time stolen, {self.pages_read} faults for a disk"
