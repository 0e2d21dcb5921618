"""Samples the main thread's stack from the script's first line until torch is imported."""

from __future__ import annotations

import os
from _thread import get_ident
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Final

from trainprof.inside.process.own_thread import OwnThread, no_collections, why_unsupported
from trainprof.inside.stacks.copied_frames import CopiedFrame, stack_of

# Time between two samples, at first and later: one delays Python code by up to 0.7 ms.
PERIOD_NS: Final = 40_000_000
LATER_PERIOD_NS: Final = 200_000_000
SHORT_PERIODS: Final = 1_500
# A script may never import torch.
_MOST_SAMPLES: Final = 5_000
# Its multiples are spread evenly over [0, 1): samples do not align with a period of the script.
_GOLDEN_SHARE: Final = 0.618034

# When it was due and taken, in ns, and the stack.
EarlySample = tuple[int, int, CopiedFrame]


class EarlyStacks:
    """Samples the thread that creates it, in memory: the log does not exist yet."""

    def __init__(self) -> None:
        self._main = get_ident()
        self._samples: list[EarlySample] = []
        self._thread = OwnThread(self._run)

    def begin(self) -> None:
        if why_unsupported() is None:
            thread = self._thread
            os.register_at_fork(
                before=thread.end_before_fork,
                after_in_parent=thread.restart_after_fork,
                after_in_child=thread.forget,
            )
            thread.begin()

    def end(self) -> list[EarlySample]:
        """Ends sampling; returns the samples and drops them."""
        self._thread.end()
        samples, self._samples = self._samples, []
        return samples

    def _run(self, stop: Any) -> None:
        with suppress(Exception):
            due = perf_counter_ns() + PERIOD_NS
            while len(self._samples) < _MOST_SAMPLES:
                if stop.acquire(True, max(due - perf_counter_ns(), 0) * 1e-9):
                    return
                taken = perf_counter_ns()
                with no_collections():
                    stack = stack_of(self._main)
                # If code held the GIL for longer, this sample stands for all that were due.
                while due <= taken:
                    if stack is not None:
                        self._samples.append((due, taken, stack))
                    due += self._period_ns()

    def _period_ns(self) -> int:
        count = len(self._samples)
        usual = PERIOD_NS if count < SHORT_PERIODS else LATER_PERIOD_NS
        return round(usual * (0.5 + count * _GOLDEN_SHARE % 1))
