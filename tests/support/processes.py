"""Runs the same script under plain python and under trainprof, as a parent process sees both."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEADLINE_S: Final = 60.0

PYTHON: Final = (sys.executable,)
TRAINPROF: Final = (sys.executable, "-m", "trainprof", "run", "-q")

# Becomes the leader of a session on the terminal at its stdin, then the command behind it.
_ON_TERMINAL: Final = """
import os, sys
os.setsid()
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.argv[1], sys.argv[1:])
"""


def path_with_scripts() -> str:
    """Returns PATH with the commands of this Python's packages first, as an activated one has."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


@dataclass(frozen=True)
class Ended:
    """A process that has ended; `status` is negative when a signal ended it."""

    stdout: bytes
    stderr: bytes
    status: int


def write_script(directory: Path, text: str, name: str = "script.py") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def run(
    launcher: Sequence[str],
    *words: str | Path,
    cwd: Path,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
) -> Ended:
    """Runs `launcher words` to its end."""
    done = subprocess.run(
        [*launcher, *map(str, words)],
        cwd=cwd,
        input=stdin,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Ended(done.stdout, done.stderr, done.returncode)


class Running:
    """A process on pipes, in a process group of its own."""

    def __init__(self, launcher: Sequence[str], *words: str | Path, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [*launcher, *map(str, words)],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0 if sys.version_info >= (3, 11) else None,
            preexec_fn=None if sys.version_info >= (3, 11) else os.setpgrp,
        )
        self.pid = self.process.pid

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):  # its children hold the pipes, too
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self) -> str:
        """Returns the next line of its stdout; "" at its end."""
        assert self.process.stdout is not None
        _await_readable(self.process.stdout.fileno())
        return self.process.stdout.readline().decode().strip()

    def end(self) -> Ended:
        """Closes its stdin, and waits."""
        stdout, stderr = self.process.communicate(timeout=DEADLINE_S)
        return Ended(stdout, stderr, self.process.returncode)


class OnTerminal:
    """A process that leads the foreground group of a terminal."""

    def __init__(self, launcher: Sequence[str], *words: str | Path, cwd: Path) -> None:
        self._terminal, child_side = pty.openpty()
        command = [*launcher, *map(str, words)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *command],
            cwd=cwd,
            stdin=child_side,
            stdout=child_side,
            stderr=child_side,
        )
        os.close(child_side)
        self.shown = b""

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def await_text(self, text: bytes) -> None:
        while text not in self.shown:
            assert self._read_more(), f"ended without {text!r}: {self.shown!r}"

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def hang_up(self) -> None:
        """Closes the terminal under it; a second call does nothing."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def end(self) -> int:
        """Waits, and returns its status; `shown` then holds all of its output."""
        while self._read_more():
            pass
        return self.process.wait(DEADLINE_S)

    def _read_more(self) -> bool:
        _await_readable(self._terminal)
        try:
            read = os.read(self._terminal, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        self.shown += read
        return bool(read)


def _await_readable(descriptor: int) -> None:
    assert can_be_read(descriptor, DEADLINE_S), "nothing came"


def can_be_read(descriptor: int, seconds: float) -> bool:
    """Waits for so long at most. Not by select, which knows no descriptor from 1024 on."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
