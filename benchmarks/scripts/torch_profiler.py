"""Runs a script of this folder with torch.profiler on, 3 of 200 steps."""

import stopwatch  # isort: skip  (first, so that it sees the first line)
import runpy
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_timed = stopwatch.timed


def _profiled(steps: Iterable[T]) -> Iterator[T]:
    from torch.profiler import profile, schedule

    with profile(schedule=schedule(wait=196, warmup=1, active=3)) as profiler:
        for step in _timed(steps):
            yield step
            profiler.step()


stopwatch.timed = _profiled  # type: ignore[assignment]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
