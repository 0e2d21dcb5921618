"""A loader, its workers and the loop that takes the batches, played through one epoch.

What torch's `_MultiProcessingDataLoaderIter` does, batch by batch, without clock or chance: indices
go to the workers in turn, `prefetch * workers` ahead of what was handed out; the main process takes
batches in order of arrival and sends one more index for each that it hands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Float64: TypeAlias = npt.NDArray[np.float64]
# torch's own number of batches ahead of each worker.
USUAL_PREFETCH: Final = 2


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One epoch, everything about it known; arrays of shape (n_batches,), in s.

    Attributes:
        asleep_s, running_s: Of the fetch of each batch: off a core, and then on one.
        compute_s: From being handed the k-th batch to asking for the next, with cores to spare.
        receive_s: IPC transfer in the main process (unpickling).
        compute_cores: Cores that the main process keeps busy while it computes.
        turnaround_s: From having an index and being free until the fetch begins.
        others: Threads of other processes that want a core all the time.
        spawn_s: Starting one worker, in the main process.
        boot_s: From its start until a worker can take an index.
    """

    asleep_s: Float64
    running_s: Float64
    compute_s: Float64
    receive_s: Float64
    compute_cores: float = 1.0
    sampler_s: float = 0.0
    turnaround_s: float = 0.0
    workers: int = 0
    prefetch: int = USUAL_PREFETCH
    cores: float = float("inf")
    others: float = 0.0
    spawn_s: float = 0.0
    boot_s: float = 0.0

    def __len__(self) -> int:
        return len(self.asleep_s)

    @property
    def ahead(self) -> int:
        return self.prefetch * self.workers

    @property
    def highest_demand(self) -> float:
        fetching = self.workers if self.running_s.any() else 0
        uses_one = self.compute_cores > 0 or self.sampler_s > 0 or bool(self.receive_s.any())
        return fetching + (max(self.compute_cores, 1.0) if uses_one else 0.0)


@dataclass(frozen=True, slots=True)
class Flow:
    """An epoch as played; times from its beginning, in order of handing out, in s.

    Attributes:
        called_s, handed_s: When the k-th `next` began and returned.
        blocked_s, receive_s: Parts of it with no batch to take, and receiving batches.
        fetch_s: In the sampler's order.
    """

    called_s: Float64
    handed_s: Float64
    blocked_s: Float64
    receive_s: Float64
    fetch_s: Float64
    ended_s: float

    @property
    def wait_s(self) -> Float64:
        return self.handed_s - self.called_s

    @property
    def step_s(self) -> Float64:
        return np.diff(self.called_s, append=self.ended_s)


def simulate(pipeline: Pipeline) -> Flow:
    if pipeline.workers == 0:
        return _in_the_main_process(pipeline)
    if pipeline.highest_demand + pipeline.others <= pipeline.cores:
        return _with_cores_to_spare(pipeline)
    return _SharedEpoch(pipeline).flow()


def _in_the_main_process(p: Pipeline) -> Flow:
    """One thing after the other: there are only other processes to share cores with."""
    slowdown = max(1.0, (1.0 + p.others) / p.cores)
    runs, on_cores = _on_cores(p)
    computing_slowdown = max(1.0, (on_cores + p.others) / p.cores) if p.others else 1.0
    fetch_s = p.asleep_s + p.running_s * slowdown
    compute_s = p.compute_s * (1 - runs + runs * computing_slowdown)
    sampler_s = p.sampler_s * slowdown
    ends = np.cumsum(sampler_s + fetch_s + compute_s)
    called = np.concatenate([[0.0], ends[:-1]])
    return Flow(
        called_s=called,
        handed_s=called + sampler_s + fetch_s,
        blocked_s=fetch_s,
        receive_s=np.zeros(len(p)),
        fetch_s=fetch_s,
        ended_s=float(ends[-1]) if len(p) else 0.0,
    )


def _on_cores(p: Pipeline) -> tuple[float, float]:
    return min(p.compute_cores, 1.0), max(p.compute_cores, 1.0)


def _with_cores_to_spare(p: Pipeline) -> Flow:
    """Nothing slows anything else: the arrival of a batch is known when its index is sent."""
    fetch = (p.asleep_s + p.running_s + p.turnaround_s).tolist()
    compute, receive = p.compute_s.tolist(), p.receive_s.tolist()
    count, sampler = len(p), p.sampler_s
    free = [(number + 1) * p.spawn_s + p.boot_s for number in range(p.workers)]
    arrivals: list[tuple[float, int]] = []
    kept: set[int] = set()
    called, handed = [0.0] * count, [0.0] * count
    blocked, received = [0.0] * count, [0.0] * count

    def send(batch: int, now: float) -> None:
        worker = batch % p.workers
        free[worker] = max(free[worker], now) + fetch[batch]
        heappush(arrivals, (free[worker], batch))

    now = p.workers * p.spawn_s
    for batch in range(min(p.ahead, count)):
        now += sampler
        send(batch, now)
    for turn in range(count):
        called[turn] = now
        while turn not in kept:
            arrival, batch = heappop(arrivals)
            if arrival > now:
                blocked[turn] += arrival - now
                now = arrival
            received[turn] += receive[batch]
            now += receive[batch]
            kept.add(batch)
        if turn + p.ahead < count:
            now += sampler
            send(turn + p.ahead, now)
        handed[turn] = now
        now += compute[turn]
    return Flow(
        called_s=np.array(called),
        handed_s=np.array(handed),
        blocked_s=np.array(blocked),
        receive_s=np.array(received),
        fetch_s=p.asleep_s + p.running_s,
        ended_s=now,
    )


# Asked of the cores: to sleep, then to run, on how many cores; None: until somebody wakes it.
_Wish: TypeAlias = tuple[float, float, float] | None
_Activity: TypeAlias = Generator[_Wish, None, None]


class _SharedCores:
    """Processor sharing: what runs gets an equal part of the cores, what sleeps needs none.

    Everything that runs advances at one rate, so it is enough to know how far that went.
    """

    def __init__(self, cores: float, others: float) -> None:
        self.now = 0.0
        self._cores, self._others = cores, others
        self._woken: list[tuple[float, _Activity]] = []

    def wake(self, activity: _Activity, after_s: float = 0.0) -> None:
        """Lets an activity go on, some time later."""
        self._woken.append((self.now + after_s, activity))

    def play(self) -> None:
        """Plays until nothing sleeps or runs."""
        # Ends of sleeps in time, ends of runs in progress; the numbers keep equal ones in order.
        sleeping: list[tuple[float, int, float, float, _Activity]] = []
        running: list[tuple[float, int, float, _Activity]] = []
        woken, total = self._woken, self._cores
        others = load = self._others
        progress = 0.0
        now, number = self.now, 0
        while sleeping or running or woken:
            for at, activity in woken:
                number += 1
                heappush(sleeping, (at, number, 0.0, 1.0, activity))
            woken.clear()
            rate = 1.0 if load <= total else total / load
            time = now + (running[0][0] - progress) / rate if running else np.inf
            is_sleep = bool(sleeping) and sleeping[0][0] <= time
            time = sleeping[0][0] if is_sleep else time
            passed = time - now
            self.now = now = time
            if is_sleep:
                progress += passed * rate
                _, _, run_s, cores, activity = heappop(sleeping)
                wish: _Wish = (0.0, run_s, cores) if run_s > 0 else next(activity, None)
            else:
                progress, _, cores, activity = heappop(running)
                load = load - cores if running else others
                wish = next(activity, None)
            if wish is None:
                continue
            sleep_s, run_s, cores = wish
            number += 1
            if sleep_s > 0 or run_s <= 0:
                heappush(sleeping, (now + sleep_s, number, run_s, cores, activity))
            else:
                load += cores
                heappush(running, (progress + run_s, number, cores, activity))


class _SharedEpoch:
    """An epoch on fewer cores than are wanted: an activity per worker, one for the main process."""

    def __init__(self, p: Pipeline) -> None:
        self._p, self._cores = p, _SharedCores(p.cores, p.others)
        self._asleep, self._runs = p.asleep_s.tolist(), p.running_s.tolist()
        self._indices: list[deque[int]] = [deque() for _ in range(p.workers)]
        self._arrived: deque[int] = deque()
        self._is_idle = [False] * p.workers
        self._is_main_idle = False
        self._workers = [self._worker(number) for number in range(p.workers)]
        self._main = self._loop()
        count = len(p)
        self._called, self._handed = [0.0] * count, [0.0] * count
        self._blocked, self._received = [0.0] * count, [0.0] * count
        self._fetched, self._ended = [0.0] * count, 0.0

    def flow(self) -> Flow:
        p, cores = self._p, self._cores
        for number, worker in enumerate(self._workers):
            cores.wake(worker, (number + 1) * p.spawn_s + p.boot_s)
        cores.wake(self._main, p.workers * p.spawn_s)
        cores.play()
        return Flow(
            called_s=np.array(self._called),
            handed_s=np.array(self._handed),
            blocked_s=np.array(self._blocked),
            receive_s=np.array(self._received),
            fetch_s=np.array(self._fetched),
            ended_s=self._ended,
        )

    def _worker(self, number: int) -> _Activity:
        indices, turnaround = self._indices[number], self._p.turnaround_s
        while True:
            while not indices:
                self._is_idle[number] = True
                yield None
            batch = indices.popleft()
            begin = self._cores.now + turnaround
            yield turnaround + self._asleep[batch], self._runs[batch], 1.0
            self._fetched[batch] = self._cores.now - begin
            self._arrive(batch)

    def _arrive(self, batch: int) -> None:
        self._arrived.append(batch)
        if self._is_main_idle:
            self._is_main_idle = False
            self._cores.wake(self._main)

    def _send(self, batch: int) -> None:
        number = batch % self._p.workers
        self._indices[number].append(batch)
        if self._is_idle[number]:
            self._is_idle[number] = False
            self._cores.wake(self._workers[number])

    def _loop(self) -> _Activity:
        p, count, cores = self._p, len(self._p), self._cores
        receive, compute = p.receive_s.tolist(), p.compute_s.tolist()
        (runs, on_cores), kept = _on_cores(p), set[int]()
        for batch in range(min(p.ahead, count)):
            if p.sampler_s > 0:
                yield 0.0, p.sampler_s, 1.0
            self._send(batch)
        for turn in range(count):
            self._called[turn] = cores.now
            while turn not in kept:
                if not self._arrived:
                    since, self._is_main_idle = cores.now, True
                    yield None
                    self._blocked[turn] += cores.now - since
                batch, since = self._arrived.popleft(), cores.now
                if receive[batch] > 0:
                    yield 0.0, receive[batch], 1.0
                self._received[turn] += cores.now - since
                kept.add(batch)
            if turn + p.ahead < count:
                if p.sampler_s > 0:
                    yield 0.0, p.sampler_s, 1.0
                self._send(turn + p.ahead)
            self._handed[turn] = cores.now
            yield compute[turn] * (1 - runs), compute[turn] * runs, on_cores
        self._ended = cores.now
