"""Ends the run at a limit of steps or seconds, as if the script ended normally.

Ranks end at the same step, or one would wait forever for the other's gradients: the first rank past
the time limit writes the number of a step a little ahead into a file, and all end there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trainprof.record.event_log import EventLog
from trainprof.record.files import read_run_file
from trainprof.record.limit_met import record_limit_met
from trainprof.record.names import LAST_STEP, MAX_STEPS, MAX_TIME
from trainprof.record.schema import Kind
from trainprof.record.step_count import StepCount

# Values of LIMIT records.
TRIAL: Final = "trial"
_VALUES: Final = {MAX_STEPS: 1, MAX_TIME: 2, TRIAL: 3}
# In place of an optimizer's id, if the script updates its parameters itself.
OWN_UPDATES: Final = 0
# One rank's host may be this many steps ahead of another's while devices work.
STEPS_AHEAD: Final = 8
# A rank that never reaches that step, because training ended, ends by itself after this time.
_LEAST_PATIENCE_NS: Final = 10_000_000_000
_PATIENCE_TIMES: Final = 2
_LONGEST_NUMBER: Final = 20
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def is_loader_worker() -> bool:
    """Returns whether this process is a DataLoader worker."""
    return loader_worker() is not None


def loader_worker() -> int | None:
    """Returns this process's number as a DataLoader worker, None if it is not one."""
    module = sys.modules.get("torch.utils.data._utils.worker")
    number = getattr(getattr(module, "_worker_info", None), "id", None)
    return number if isinstance(number, int) else None


class RunLimitReached(SystemExit):
    """Raised in the script at its limit: `finally` blocks run, no traceback is printed."""


class Limit:
    """Counts steps and checks the time; raises only between steps, on the main thread.

    Probes call `before_batch`, `before_step` and `before_forward`, None without a limit, in the
    outermost hook.
    """

    def __init__(self, log: EventLog, options: dict[str, Any], now: Callable[[], int]) -> None:
        self._log, self._now = log, now
        self._max_steps: int | None = options.get("max_steps")
        self._steps_limit = MAX_STEPS
        seconds: float | None = options.get("max_time_s")
        # The supervisor ends a script that hangs after its limit.
        self._records_end = options.get("trial") is not None or seconds is not None
        started = options.get("spawned_ns") or now()
        self._started_ns = started
        self._deadline_ns = None if seconds is None else started + int(seconds * 1e9)
        self._enough: TrialDeadline | None = None
        trial = options.get("trial") or {}
        enough_s = trial.get("enough_s")
        if enough_s is not None and self._deadline_ns is not None:
            enough_steps = trial.get("enough_steps", 1)
            self._enough = TrialDeadline(started, self._deadline_ns, enough_s, enough_steps)
        self._last_step: LastStep | None = None
        self._count = StepCount()
        armed = self._max_steps is not None or self._deadline_ns is not None
        self.before_batch: Callable[[], None] | None = self._before_batch if armed else None
        self.before_step: Callable[[int], None] | None = self._before_step if armed else None
        self.before_forward = None if self._deadline_ns is None else self._check_time

    def stepped(self, optimizer: int) -> None:
        """Counts an outermost update of one optimizer."""
        if self._max_steps is not None or self._last_step is not None:
            self._count.add(optimizer)
        if self._enough is not None:
            self._deadline_ns = self._enough.stepped(self._now())

    def forget(self) -> None:
        """Resets the counts: what was counted so far were not updates."""
        self._count = StepCount()
        if self._enough is not None:
            self._deadline_ns = self._enough.forget()

    def join(self, world_size: int) -> None:
        """Makes this process, one of `world_size` ranks, end at the same step as the others."""
        if world_size > 1 and self._deadline_ns is not None and self._last_step is None:
            self._last_step = LastStep(self._log.run_directory)

    def end_trial(self) -> None:
        """Ends the run like --max-steps; does nothing on other threads than the main one."""
        self._end(TRIAL)

    def end_trial_soon(self) -> None:
        """Ends the run at the main thread's next batch or step; for any thread."""
        self._max_steps, self._steps_limit = 0, TRIAL

    def _before_batch(self) -> None:
        if self._max_steps is not None and self._count.steps >= self._max_steps:
            self._end(self._steps_limit)
        self._check_time()
        # An optimizer may step on a thread that cannot end the run: end at the batch after it.
        if self._last_step is not None and self._last_step.is_reached(self._count.steps - 1):
            self._end(MAX_TIME)

    def _before_step(self, optimizer: int) -> None:
        count, last_step = self._count, self._last_step
        begins = count.begins_step(optimizer)
        if self._max_steps is not None and begins and count.steps >= self._max_steps:
            self._end(self._steps_limit)
        self._check_time()
        # Not before a batch or a forward: a single rank may evaluate.
        if last_step is not None and begins and last_step.is_reached(count.steps):
            self._end(MAX_TIME)

    def _check_time(self) -> None:
        if self._deadline_ns is None:
            return
        now = self._now()
        if self._enough is not None:
            self._deadline_ns = self._enough.begun(now)
        if now < self._deadline_ns or not can_end():
            return
        last_step, steps = self._last_step, self._count.steps
        allowed_ns = self._deadline_ns - self._started_ns
        if last_step is None or last_step.is_out_of_reach(steps, now, allowed_ns):
            self._end(MAX_TIME)

    def _end(self, limit: str) -> None:
        if not can_end():
            return
        now = self._now()
        self._log.emit(Kind.LIMIT, now, now, 0, _VALUES[limit])
        if self._records_end:
            self._records_end = False
            record_limit_met(self._log.run_directory)
        raise RunLimitReached(0)


def can_end() -> bool:
    """Returns whether a limit may end the run here: on the main thread, not in a worker."""
    return threading.current_thread() is threading.main_thread() and not is_loader_worker()


class TrialDeadline:
    """The deadline of a trial; its methods return it in ns.

    `enough_s` is the least time (in all, since the first step) in s. Without a step the former
    counts from the first batch or forward. The trial makes at least `enough_steps` unless
    `latest_ns` comes first.
    """

    def __init__(
        self, started_ns: int, latest_ns: int, enough_s: tuple[float, float], enough_steps: int = 1
    ) -> None:
        self._started_ns, self._latest_ns = started_ns, latest_ns
        self._in_all_ns, self._trained_ns = (int(seconds * 1e9) for seconds in enough_s)
        self._first_ns: int | None = None
        self._enough_steps, self._steps = enough_steps, 0
        self._enough_ns = self._deadline_ns = latest_ns

    def begun(self, now_ns: int) -> int:
        """Call it before each batch, forward and step."""
        if self._first_ns is None:
            self._first_ns = now_ns
            self._deadline_ns = now_ns + self._in_all_ns
        return self._deadline()

    def stepped(self, now_ns: int) -> int:
        """Call it after each step."""
        self._steps += 1
        if self._steps == 1:
            self._enough_ns = max(self._started_ns + self._in_all_ns, now_ns + self._trained_ns)
            self._deadline_ns = self._latest_ns
        if self._steps == self._enough_steps:
            self._deadline_ns = self._enough_ns
        return self._deadline()

    def forget(self) -> int:
        """Resets the steps: those so far were not updates."""
        self._steps = 0
        if self._first_ns is not None:
            self._deadline_ns = self._first_ns + self._in_all_ns
        return self._deadline()

    def _deadline(self) -> int:
        return min(self._deadline_ns, self._latest_ns)


class LastStep:
    """One rank's view of the step at which all ranks of a run directory end."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LAST_STEP)
        self._process = os.getpid()
        self._steps: int | None = None
        self._patient_until_ns: int | None = None

    def is_reached(self, steps: int) -> bool:
        """Returns whether a rank with this number of steps has to end."""
        return self._steps is not None and steps >= self._steps

    def is_out_of_reach(self, steps: int, now_ns: int, allowed_ns: int) -> bool:
        """Returns whether a rank past its time has to end by itself; else agrees on a step."""
        if os.getpid() != self._process:  # a child of a rank is not a rank
            return True
        if self._patient_until_ns is None:
            ahead = _PATIENCE_TIMES * STEPS_AHEAD / steps if steps else 1
            patience_ns = max(_LEAST_PATIENCE_NS, int(allowed_ns * ahead))
            self._patient_until_ns = now_ns + patience_ns
        if self._steps is None:
            self._steps = self._written(steps + STEPS_AHEAD)
        return now_ns >= self._patient_until_ns

    def _written(self, steps: int) -> int | None:
        """Writes the last step; returns it, or that of a faster rank, or None if not known yet."""
        try:
            descriptor = os.open(self._path, _NEW_FILE, 0o600)
        except FileExistsError:
            return self._read()
        except OSError:
            return None
        try:
            os.write(descriptor, str(steps).encode("ascii"))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            return None
        finally:
            os.close(descriptor)
        return steps

    def _read(self) -> int | None:
        """Returns the written step, None if another rank is still writing it."""
        with contextlib.suppress(OSError, ValueError):
            return int(read_run_file(Path(self._path), _LONGEST_NUMBER))
        return None
