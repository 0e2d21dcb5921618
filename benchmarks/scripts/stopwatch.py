"""Times a loop from inside and says so on stdout, for the benchmarks alone."""

import itertools
import json
import resource
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

FIRST_LINE_NS = time.perf_counter_ns()


def timed(steps: Iterable[T], skip: int = 20) -> Iterator[T]:
    """Yields from `steps`; after the last one prints the loop's figures as one JSON line."""
    marks = []
    for step in steps:
        marks.append(time.perf_counter_ns())
        yield step
    durations = [later - earlier for earlier, later in itertools.pairwise(marks)][skip:]
    figures = {
        "first_line_ns": FIRST_LINE_NS,
        "steps": len(marks),
        "median_step_ns": statistics.median(durations),
        "mean_step_ns": statistics.fmean(durations),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "last_line_ns": time.perf_counter_ns(),
    }
    print(json.dumps(figures), flush=True)
