"""Starts the script, waits for its end, and forwards signals to it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from trainprof.launch import signals
from trainprof.launch.outcome import Outcome, outcome_of
from trainprof.launch.signals import GroupWitness
from trainprof.launch.target import ScriptNotRunnable, Target

# CPython ignores these, and exec would pass that on; `subprocess` restores them too.
RESTORED_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ") if hasattr(signal, name)
)


_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _into(console: Path) -> list[tuple[int, int, str, int, int]]:
    opened = os.POSIX_SPAWN_OPEN
    return [
        (opened, 0, os.devnull, os.O_RDONLY, 0),
        (opened, 1, str(console / "stdout"), _NEW_FILE, 0o600),
        (opened, 2, str(console / "stderr"), _NEW_FILE, 0o600),
    ]


class Supervisor:
    """Runs one target: `with Supervisor(target) as supervisor: spawn(...); wait()`.

    Inside the block the watched signals are blocked in this thread, and in threads started there.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._mask: set[int] = set()
        self._ignored_children = False
        self._witness: GroupWitness | None = None
        self._pid = 0
        self._received: list[int] = []

    def __enter__(self) -> Supervisor:
        self._mask = signals.block()
        # Where SIGCHLD is ignored the kernel reaps children, and the script's status is lost.
        previous = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._ignored_children = previous is signal.SIG_IGN
        # Without a witness every signal that was not typed is passed on.
        with contextlib.suppress(OSError):
            self._witness = GroupWitness.start(self._target.argv)
        return self

    @property
    def helpers(self) -> tuple[int, ...]:
        """Process ids that it has in addition to the script's."""
        return () if self._witness is None else (self._witness.pid,)

    def spawn(
        self,
        environment: Mapping[str, str],
        console: Path | None = None,
        *,
        before: tuple[str, ...] = (),
    ) -> int:
        """Starts the script and returns its pid; ScriptNotRunnable if the system refuses.

        `console` is a directory for its output; `before` as RunOptions has it.
        """
        executable, argv = self._target.executable, self._target.argv
        if before:
            executable, argv = before[0], (*before, executable, *argv)
        files = _into(console) if console is not None else []
        try:
            if self._ignored_children:
                self._pid = self._forked(executable, argv, environment, files)
                return self._pid
            self._pid = os.posix_spawn(
                executable,
                argv,
                environment,
                setsigmask=self._mask,
                setsigdef=RESTORED_SIGNALS,
                file_actions=files,
            )
        except OSError as error:
            raise ScriptNotRunnable(
                f"{self._target.executable} cannot be started: {error.strerror}",
                hint="try the same command without trainprof",
            ) from error
        return self._pid

    def wait(
        self,
        at_child: Callable[[], None] | None = None,
        before_end: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Waits for the script's end, forwards signals to it, and returns the outcome.

        `at_child` is called when another child of ours may have ended, `before_end` before a signal
        that asks the script to end.
        """
        while True:
            pid, status, usage = os.wait4(self._pid, os.WNOHANG)
            if pid != 0:
                break
            if at_child is not None:
                at_child()
            received = signals.wait()
            if received.number in signals.ENDING:
                before_end()
            self._handle(received)
        ended_ns = time.perf_counter_ns()
        # Ctrl-C may end the script before we see the signal.
        self._received += signals.take_pending(signals.FORWARDED)
        # Without job control a shell starts background jobs that ignore Ctrl-C; so does the script.
        heard_interrupt = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        return outcome_of(
            status,
            usage,
            ended_ns=ended_ns,
            signals_received=tuple(self._received),
            interrupted=heard_interrupt and signal.SIGINT in self._received,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._witness is not None:
            self._witness.end()
        signals.take_pending(signals.WATCHED - signals.ENDING)
        # Otherwise our empty handler stays: another thread may receive SIGCHLD just now, and Python
        # complains when the handler is gone by the time it is called.
        if self._ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _forked(
        self,
        executable: str,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        files: list[tuple[int, int, str, int, int]],
    ) -> int:
        """Forks like posix_spawn, which cannot make the script ignore a signal that we handle."""
        pid = os.fork()
        if pid != 0:
            return pid
        try:
            for number in RESTORED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            for _, descriptor, path, flags, mode in files:
                opened = os.open(path, flags, mode)
                os.dup2(opened, descriptor)
                if opened != descriptor:
                    os.close(opened)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            os.execve(executable, argv, environment)
        except OSError as error:
            os.write(2, f"trainprof: {executable} cannot be started: {error.strerror}\n".encode())
        finally:
            os._exit(ScriptNotRunnable.exit_code)

    def _handle(self, received: signals.Received) -> None:
        if received.number == signal.SIGCHLD:
            return
        self._received.append(received.number)
        if self._reached_group(received):
            # `timeout` signals its child and then the group: the script has got the latter.
            signals.take_pending({received.number})
        else:
            os.kill(self._pid, received.number)

    def _reached_group(self, received: signals.Received) -> bool:
        # Asked for a typed signal too, or a later one to us alone would count as the group's.
        saw = self._witness is not None and self._witness.saw(received.number)
        return saw or received.typed
