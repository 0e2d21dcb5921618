"""Ends the run at a limit of steps or seconds, as a normal end of the script.

Were its time over between two ranks' readings of the clock, one would wait in vain for the other's
gradients: the first rank that finds it over writes down a step a little ahead, and all end there.
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
from trainprof.record.limit_met import tell_limit
from trainprof.record.names import LAST_STEP, MAX_STEPS, MAX_TIME
from trainprof.record.schema import Kind
from trainprof.record.step_count import StepCount

# What ended the run, as a LIMIT record's value.
TRIAL: Final = "trial"
_VALUES: Final = {MAX_STEPS: 1, MAX_TIME: 2, TRIAL: 3}
# In the place of an optimizer's id: the script updates its parameters itself.
OWN_UPDATES: Final = 0
# On a device the host may be some steps further on than that of another rank.
STEPS_AHEAD: Final = 8
# A rank that does not come to that step, as there are no more, ends by itself after so long.
_LEAST_PATIENCE_NS: Final = 10_000_000_000
_PATIENCE_TIMES: Final = 2
_LONGEST_NUMBER: Final = 20
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def is_loader_worker() -> bool:
    """Whether this process prepares batches for another one."""
    return loader_worker() is not None


def loader_worker() -> int | None:
    """Returns the number of the DataLoader worker that this process is, None if it is not one."""
    module = sys.modules.get("torch.utils.data._utils.worker")
    number = getattr(getattr(module, "_worker_info", None), "id", None)
    return number if isinstance(number, int) else None


class RunLimitReached(SystemExit):
    """Raised in the script at its limit: `finally` blocks run, and there is no traceback."""


class Limit:
    """Counts steps and watches the clock; raises only between steps, on the main thread.

    Probes call `before_batch`, `before_step` and `before_forward` at the outermost hook; they are
    None where no limit was set.
    """

    def __init__(self, log: EventLog, options: dict[str, Any], now: Callable[[], int]) -> None:
        self._log, self._now = log, now
        self._max_steps: int | None = options.get("max_steps")
        self._steps_limit = MAX_STEPS
        seconds: float | None = options.get("max_time_s")
        # The supervisor waits for the end, and ends a script that hangs.
        self._is_to_be_told = options.get("trial") is not None or seconds is not None
        started = options.get("spawned_ns") or now()
        self._started_ns = started
        self._deadline_ns = None if seconds is None else started + int(seconds * 1e9)
        self._enough: EnoughTime | None = None
        trial = options.get("trial") or {}
        enough_s = trial.get("enough_s")
        if enough_s is not None and self._deadline_ns is not None:
            enough_steps = trial.get("enough_steps", 1)
            self._enough = EnoughTime(started, self._deadline_ns, enough_s, enough_steps)
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
        """Takes back what was counted so far: those were no updates."""
        self._count = StepCount()
        if self._enough is not None:
            self._deadline_ns = self._enough.forget()

    def join(self, world_size: int) -> None:
        """Has this process, one of so many ranks, end at the same step as the others."""
        if world_size > 1 and self._deadline_ns is not None and self._last_step is None:
            self._last_step = LastStep(self._log.run_directory)

    def end_trial(self) -> None:
        """Ends the run as --max-steps would; does nothing off the main thread."""
        self._end(TRIAL)

    def end_trial_soon(self) -> None:
        """Does the same at the main thread's next batch or step; it may be called on any thread."""
        self._max_steps, self._steps_limit = 0, TRIAL

    def _before_batch(self) -> None:
        if self._max_steps is not None and self._count.steps >= self._max_steps:
            self._end(self._steps_limit)
        self._check_time()
        # Behind the last step: an optimizer may step on a thread that cannot end the run.
        if self._last_step is not None and self._last_step.is_reached(self._count.steps - 1):
            self._end(MAX_TIME)

    def _before_step(self, optimizer: int) -> None:
        count, last_step = self._count, self._last_step
        begins = count.begins_step(optimizer)
        if self._max_steps is not None and begins and count.steps >= self._max_steps:
            self._end(self._steps_limit)
        self._check_time()
        # Not ahead of a batch or a forward: one rank alone may have some, as it evaluates.
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
        if self._is_to_be_told:
            self._is_to_be_told = False
            tell_limit(self._log.run_directory)
        raise RunLimitReached(0)


def can_end() -> bool:
    """Whether a limit may end the run here: on the main thread, and not in a loader's worker."""
    return threading.current_thread() is threading.main_thread() and not is_loader_worker()


class EnoughTime:
    """The time until which a trial may go on, as its methods return it, in ns.

    It has enough after `enough_s` in all and since the first step (without one, after the former
    since the first batch or forward), and makes `enough_steps` unless `latest_ns` comes first.
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
        """To be called before each batch, forward and step."""
        if self._first_ns is None:
            self._first_ns = now_ns
            self._deadline_ns = now_ns + self._in_all_ns
        return self._deadline()

    def stepped(self, now_ns: int) -> int:
        """To be called after each step."""
        self._steps += 1
        if self._steps == 1:
            self._enough_ns = max(self._started_ns + self._in_all_ns, now_ns + self._trained_ns)
            self._deadline_ns = self._latest_ns
        if self._steps == self._enough_steps:
            self._deadline_ns = self._enough_ns
        return self._deadline()

    def forget(self) -> int:
        """Takes back the steps so far: those were none."""
        self._steps = 0
        if self._first_ns is not None:
            self._deadline_ns = self._first_ns + self._in_all_ns
        return self._deadline()

    def _deadline(self) -> int:
        return min(self._deadline_ns, self._latest_ns)


class LastStep:
    """What one rank knows of the step at which all end that share a run's directory."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LAST_STEP)
        self._process = os.getpid()
        self._steps: int | None = None
        self._patient_until_ns: int | None = None

    def is_reached(self, steps: int) -> bool:
        """Whether a rank that has made so many steps is to end."""
        return self._steps is not None and steps >= self._steps

    def is_out_of_reach(self, steps: int, now_ns: int, allowed_ns: int) -> bool:
        """Whether a rank whose time is over is to end by itself; agrees on a step if need be."""
        if os.getpid() != self._process:  # a child of a rank is none
            return True
        if self._patient_until_ns is None:
            ahead = _PATIENCE_TIMES * STEPS_AHEAD / steps if steps else 1
            patience_ns = max(_LEAST_PATIENCE_NS, int(allowed_ns * ahead))
            self._patient_until_ns = now_ns + patience_ns
        if self._steps is None:
            self._steps = self._written(steps + STEPS_AHEAD)
        return now_ns >= self._patient_until_ns

    def _written(self, steps: int) -> int | None:
        """Writes a step down, or returns that of the rank that was first; None: not known yet."""
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
        """Returns None where the other rank is about to write it."""
        with contextlib.suppress(OSError, ValueError):
            return int(read_run_file(Path(self._path), _LONGEST_NUMBER))
        return None
