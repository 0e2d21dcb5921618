"""What watching a fetch costs: `python benchmarks/worker_cost.py`.

Budgets: 3 us a batch of 32 samples in a worker, 1.5 us a step in the process that trains. CPU time
of the thread, the least of interleaved repeats, of a long run: the first fetches of 1 ms and more
are measured all.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time_ns
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from trainprof.inside.session import Session
from trainprof.inside.spans import fetch, fetch_usage
from trainprof.inside.spans.delivery import DeliveryProbe
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.event_log import EventLog

REPEATS = 15
FETCHES = 400
SAMPLES = 32
STEPS = 300

BARE, DELIVERY_OFF, ALL = "bare", "without delivery", "all"


@contextmanager
def probes(which: str, log: EventLog) -> Iterator[None]:
    """Attaches what a default run has of the loader's probes, or some of it."""
    if which == BARE:
        yield
        return
    session = Session(log, cwd=os.getcwd())
    loader = LoaderProbe()
    attached = [loader, FetchProbe(loader)]
    if which == ALL:
        attached.append(DeliveryProbe(loader))
    session.attach(torch, attached)
    try:
        yield
    finally:
        session.detach()


def fetch_ns() -> float:
    """Returns what a fetch of cheap samples takes."""
    fetcher = _MapDatasetFetcher(list(range(SAMPLES)), True, _first, False)
    indices = list(range(SAMPLES))
    fetcher.fetch(indices)
    began = thread_time_ns()
    for _ in range(FETCHES):
        fetcher.fetch(indices)
    return (thread_time_ns() - began) / FETCHES


TENSOR = torch.zeros(8)


def _first(samples: list[int]) -> torch.Tensor:
    return TENSOR


class Ones:
    """The same sample for ever, once the first two batches' have warmed up."""

    def __len__(self) -> int:
        return SAMPLES * (STEPS + 20)

    def __getitem__(self, index: int) -> int:
        return 1


def next_ns(workers: int) -> float:
    """Returns what a `next` takes of the thread that trains."""
    batches = iter(DataLoader(Ones(), SAMPLES, num_workers=workers, collate_fn=len))  # type: ignore[arg-type]
    for _ in range(10):
        next(batches)
    began = thread_time_ns()
    for _ in range(STEPS):
        next(batches)
    return (thread_time_ns() - began) / STEPS


@contextmanager
def as_worker() -> Iterator[None]:
    worker._worker_info = SimpleNamespace(id=0, num_workers=1, seed=0)  # type: ignore[assignment]
    try:
        yield
    finally:
        worker._worker_info = None


@contextmanager
def taken_for(wall_ns: int) -> Iterator[None]:
    """Samples and fetches are treated as if they took as long."""
    usual = fetch_usage.SHORT_NS, fetch.SHORT_SAMPLE_NS
    fetch_usage.SHORT_NS = 0 if wall_ns >= usual[0] else usual[0]  # type: ignore[misc]
    fetch.SHORT_SAMPLE_NS = 0 if wall_ns >= SAMPLES * usual[1] else usual[1]  # type: ignore[misc]
    try:
        yield
    finally:
        fetch_usage.SHORT_NS, fetch.SHORT_SAMPLE_NS = usual  # type: ignore[misc]


def in_worker() -> float:
    with as_worker():
        return fetch_ns()


US = 1000
# What is measured, the time that a fetch is treated as taking, and the states compared.
SUBJECTS: dict[str, tuple[Callable[[], float], int, tuple[str, ...]]] = {
    "a fetch of 100 us in a worker": (in_worker, 100 * US, (BARE, ALL)),
    "a fetch of 500 us in a worker": (in_worker, 500 * US, (BARE, ALL)),
    "a fetch of 5 ms in a worker": (in_worker, 5000 * US, (BARE, ALL)),
    "a fetch of 50 ms in a worker": (in_worker, 50_000 * US, (BARE, ALL)),
    "a fetch in the process that trains": (fetch_ns, 0, (BARE, ALL)),
    "next, no workers": (lambda: next_ns(0), 0, (BARE, ALL)),
    "next, 2 workers": (lambda: next_ns(2), 0, (BARE, DELIVERY_OFF, ALL)),
}


def main() -> None:
    torch.set_num_threads(1)
    fetch_usage.FIRST_LONG = fetch_usage.MANY_AFTER = 0  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as directory:
        log = EventLog(directory, role="script")
        for name, (measure, taken_ns, states) in SUBJECTS.items():
            least = dict.fromkeys(states, float("inf"))
            for _ in range(REPEATS):
                for state in states:
                    with taken_for(taken_ns), probes(state, log):
                        least[state] = min(least[state], measure())
            shown = ", ".join(f"{state} {ns / 1000:.2f}" for state, ns in least.items())
            print(f"{name}: {shown}; added {(least[ALL] - least[BARE]) / 1000:.2f} us")


if __name__ == "__main__":
    main()
