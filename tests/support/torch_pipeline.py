"""Torch's own iterator over workers, on a fake clock: the truth for the pipeline model.

Its code decides which worker gets which index and when, and in what order batches are handed out;
only the queues and the clock are ours.
"""

from __future__ import annotations

import itertools
from heapq import heappop, heappush
from typing import Any

import pytest

from trainprof.analysis.pipeline.model import Pipeline

# The tests that need it are left out on Pythons without torch.
dataloader = pytest.importorskip("torch.utils.data.dataloader")


class PlayedIterator(dataloader._MultiProcessingDataLoaderIter):  # type: ignore[misc,name-defined]
    """A pass with as many cores as it likes, played by `play`.

    Attributes:
        called, handed: When each `next` began and returned, s.
        blocked, received: Parts of each: nothing was there, batches were taken over; s.
        order: The batches, in the order in which they were handed out.
        fetches: Batch to (worker, start, end).
        now: The clock.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        p = self._p = pipeline
        self.now = p.workers * p.spawn_s
        self.called: list[float] = []
        self.handed: list[float] = []
        self.blocked: list[float] = []
        self.received: list[float] = []
        self.order: list[int] = []
        self.drawn: list[tuple[float, float]] = []
        self.fetches: dict[int, tuple[int, float, float]] = {}
        self._arrivals: list[tuple[float, int]] = []
        self._indices = iter(range(len(p)))
        self._free = [(number + 1) * p.spawn_s + p.boot_s for number in range(p.workers)]
        # What torch's `__init__` and `_reset` would have set.
        self._num_workers, self._prefetch_factor = p.workers, p.prefetch
        self._in_order, self._persistent_workers = True, True
        self._dataset_kind, self._shutdown = dataloader._DatasetKind.Map, False
        self._send_idx = self._rcvd_idx = self._tasks_outstanding = 0
        self._task_info: dict[int, Any] = {}
        self._workers_status = [True] * p.workers
        self._workers_num_tasks = [0] * p.workers
        self._worker_queue_idx_cycle = itertools.cycle(range(p.workers))
        self._index_queues = [_Inbox(self, number) for number in range(p.workers)]

    def play(self) -> None:
        for _ in range(self._p.ahead):
            self._try_put_index()
        for compute_s in self._p.compute_s.tolist():
            self.called.append(self.now)
            for parts in (self.blocked, self.received):
                parts.append(0.0)
            self.order.append(self._next_data())
            self.handed.append(self.now)
            self.now += compute_s

    def fetch(self, worker: int, batch: int) -> None:
        p = self._p
        start = max(self._free[worker], self.now) + p.turnaround_s
        self._free[worker] = end = start + p.asleep_s[batch] + p.running_s[batch]
        self.fetches[batch] = (worker, start, end)
        heappush(self._arrivals, (end, batch))

    def _next_index(self) -> int:
        index = next(self._indices)
        began, self.now = self.now, self.now + self._p.sampler_s
        self.drawn.append((began, self.now))
        return index

    def _get_data(self) -> tuple[int, int]:
        arrival, batch = heappop(self._arrivals)
        self.blocked[-1] += max(arrival - self.now, 0.0)
        self.now = max(self.now, arrival)
        received = float(self._p.receive_s[batch])
        self.received[-1] += received
        self.now += received
        return batch, batch

    def __del__(self) -> None:
        """There are no workers to shut down."""


class _Inbox:
    """A worker's index queue."""

    def __init__(self, iterator: PlayedIterator, worker: int) -> None:
        self._iterator, self._worker = iterator, worker

    def put(self, task: tuple[int, int]) -> None:
        self._iterator.fetch(self._worker, task[0])
