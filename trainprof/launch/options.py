"""What a run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DEFAULT_INTERVAL_S: Final = 0.5
DEFAULT_WAIT_THRESHOLD_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run as the command line orders it.

    Attributes:
        words: SCRIPT ARGS, or with `module` its ARGS.
        module: Module to run as `python -m` does, or None.
        output: The run directory; None makes one under trainprof-runs.
        interval_s: The sampler's interval.
        wait_threshold_s: A wait for a batch over this is a slow one.
        max_steps: Steps after which the run is to end, or None.
        max_time_s: Seconds after which the run is to end, or None.
        progress: Live lines are wanted.
    """

    words: tuple[str, ...]
    module: str | None = None
    output: Path | None = None
    interval_s: float = DEFAULT_INTERVAL_S
    wait_threshold_s: float = DEFAULT_WAIT_THRESHOLD_S
    max_steps: int | None = None
    max_time_s: float | None = None
    progress: bool = False

    def for_tracee(self, *, spawned_ns: int, supervisor_pid: int) -> dict[str, Any]:
        """Returns what the profiled process is to know, as JSON values."""
        return {
            "max_steps": self.max_steps,
            "max_time_s": self.max_time_s,
            "spawned_ns": spawned_ns,
            "supervisor_pid": supervisor_pid,
        }
