"""The clocks of sampling; tests pass their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """Clocks in ns: `now_ns` as in the event logs, `wall_ns` since the epoch.

    `thread_cpu_ns` is the calling thread's CPU time.
    """

    now_ns: Callable[[], int] = time.perf_counter_ns
    wall_ns: Callable[[], int] = time.time_ns
    thread_cpu_ns: Callable[[], int] = time.thread_time_ns
