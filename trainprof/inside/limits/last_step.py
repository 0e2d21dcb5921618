"""The step at which all ranks of a run end, once the time is over for one of them.

Each rank looks at the clock for itself. Were the time over between the looks of two, one would
leave, and the other wait in vain for its gradients. So the first rank that finds it over writes
down a step a little ahead, and all end there. No rank ever waits for another here.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from trainprof.record.names import LAST_STEP

# On a device the host may be some steps further on than that of another rank.
STEPS_AHEAD: Final = 8
# A rank that does not come to that step, as there are no more, ends by itself after so long.
_LEAST_PATIENCE_NS: Final = 10_000_000_000
_PATIENCE_TIMES: Final = 2
_LONGEST_NUMBER: Final = 20
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class LastStep:
    """What one rank knows of the step at which all end.

    Args:
        directory: Of the run; ranks that share it end at the same step.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LAST_STEP)
        self._process = os.getpid()
        self._steps: int | None = None
        self._patient_until_ns: int | None = None

    def is_reached(self, steps: int) -> bool:
        """Whether a rank that has made so many steps is to end."""
        return self._steps is not None and steps >= self._steps

    def is_out_of_reach(self, steps: int, now_ns: int, allowed_ns: int) -> bool:
        """Whether a rank whose time is over is to end by itself; agrees on a step if there is none.

        Args:
            steps: That it has made.
            now_ns: The time.
            allowed_ns: How long the run was to take.
        """
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
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return int(os.read(descriptor, _LONGEST_NUMBER))
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
