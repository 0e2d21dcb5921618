"""The machine as the tests share it: one that measures again has it to itself.

What runs beside a script takes its processor away between the script's clock and ours, and shares
its core. A first measurement mostly holds all the same; where it does not, the other processes of
pytest (xdist's, or another run's) end the test they are at and wait.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ATTEMPTS = 4


class Machine:
    """Locks of files that all processes of pytest see.

    Held by every test, shared; by one that measures again, alone. Who waits to be alone keeps the
    gate shut, else the others would share the machine among them for ever.
    """

    def __init__(self, directory: Path) -> None:
        self._gate, self._machine = (
            os.open(directory / f"trainprof-tests-{os.getuid()}.{name}", os.O_RDWR | os.O_CREAT)
            for name in ("gate", "machine")
        )
        self._is_alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others; ends what was begun by `alone`."""
        self._pass(fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._machine, fcntl.LOCK_UN)
            self._is_alone = False

    def alone(self) -> None:
        """Waits until no other test runs; until the end of this one none does."""
        if not self._is_alone:
            fcntl.flock(self._machine, fcntl.LOCK_UN)
            self._pass(fcntl.LOCK_EX)
            self._is_alone = True

    def _pass(self, how: int) -> None:
        with _held(self._gate):
            fcntl.flock(self._machine, how)


@contextmanager
def _held(file: int) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


MACHINE = Machine(Path(tempfile.gettempdir()))


def attempts() -> Iterator[int]:
    """Yields 0 to ATTEMPTS - 1, from 1 on with the machine to ourselves.

    What is measured wrong misses every time.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            MACHINE.alone()
        yield attempt
