"""What the probes add to a step of 0.2 to 0.3 ms: blocks of steps with and without, in turn.

    python benchmarks/step_cost.py [--pairs 60] [--without PROBE ...]

All in one process, so that a machine whose clock wanders is compared with itself a tenth of a
second before and after. What goes on in other processes and at the ends of a run is not in it:
overhead.py tells that. Printed are medians over pairs, with the quartiles.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainprof.inside.catalogue import default_probes
from trainprof.inside.session import Session
from trainprof.inside.spans import fetch_usage
from trainprof.record.event_log import EventLog

STEPS = 300
# Whatever a step does for the first time comes before.
WARM_UP = 40
BATCH = 32


def main() -> None:
    names = [probe.name for probe in default_probes()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--without", nargs="*", default=[], choices=names)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # Of a long run: it is asked rarely what fetches take of the machine.
    fetch_usage.QUICK_AFTER = 0  # type: ignore[misc]
    task = Task()
    added, ratios, bare = [], [], [task.step_us()]
    with tempfile.TemporaryDirectory() as directory:
        log = EventLog(directory, role="script")
        for _ in range(arguments.pairs):
            session = Session(log, cwd=os.getcwd())
            chosen = [probe for probe in default_probes() if probe.name not in arguments.without]
            session.attach(torch, chosen)
            hooked = task.step_us()
            session.detach()
            bare.append(task.step_us())
            around = (bare[-2] + bare[-1]) / 2
            added.append(hooked - around)
            ratios.append(hooked / around)
    print(f"{os.cpu_count()} cores, python {sys.version.split()[0]}, torch {torch.__version__}")
    print(f"a step without  {statistics.median(bare):8.1f} us")
    print(f"added           {quartiles(added, '8.1f')} us")
    print(f"ratio           {quartiles(ratios, '8.3f')}")


class Task:
    """A small network that learns noise from memory."""

    def __init__(self) -> None:
        samples = BATCH * STEPS
        self._data = TensorDataset(torch.randn(samples, BATCH), torch.randint(0, 10, (samples,)))
        self._batches = [list(range(at, at + BATCH)) for at in range(0, samples, BATCH)]
        self._model = nn.Sequential(nn.Linear(BATCH, 64), nn.ReLU(), nn.Linear(64, 10))

    def step_us(self) -> float:
        """Trains for a while; returns the median time of a step."""
        gc.collect()
        loader = DataLoader(self._data, batch_sampler=self._batches)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        criterion = nn.CrossEntropyLoss()
        stamps = []
        for inputs, targets in loader:
            stamps.append(time.perf_counter_ns())
            optimizer.zero_grad()
            loss = criterion(self._model(inputs), targets)
            loss.backward()
            optimizer.step()
            loss.item()
        taken = [after - before for before, after in itertools.pairwise(stamps)]
        return statistics.median(taken[WARM_UP:]) / 1000


def quartiles(values: Sequence[float], form: str) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:{form}}   ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
