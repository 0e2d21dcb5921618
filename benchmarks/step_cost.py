"""What the probes add to a step of 0.2 to 0.3 ms: blocks of steps with and without, in turn.

    python benchmarks/step_cost.py [--rounds 60] [--without PROBE ... | --only PROBE ...]

All in one process, so that a machine whose clock wanders is compared with itself a tenth of a
second before and after: each round has a block without probes, one with them in C, and one with
their twins in Python. What goes on in other processes and at the ends of a run is not in it:
overhead.py tells that. Compared are the fast steps of a block (the first quartile), which other
programs disturb least, with those of the blocks before and after. Printed are medians over rounds,
with their quartiles, and what a page would say: an event's cost, measured before each block.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainprof.analysis.run.run_part import EVICTED_US
from trainprof.inside.catalogue import default_probes
from trainprof.inside.session import Session
from trainprof.inside.spans import fetch_usage
from trainprof.record.event_log import EventLog, event_cost_ns
from trainprof.record.hot import PURE_PYTHON

STEPS = 420
# What a step does for the first time comes before, and the samples that findings take of 192 steps.
WARM_UP = 220
BATCH = 32
# Of a step: next, fetch, zero_grad, forward, loss, backward, optimizer, item.
EVENTS = 8

BARE, IN_C, TWINS = "without", "in C", "in Python"


def main() -> None:
    names = [probe.name for probe in default_probes()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--without", nargs="*", default=[], choices=names)
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    arguments = parser.parse_args()
    chosen = set(arguments.only) - set(arguments.without)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # Of a long run: it is asked rarely what fetches take of the machine.
    fetch_usage.MANY_AFTER = 0  # type: ignore[misc]
    task = Task()
    blocks: dict[str, list[float]] = {BARE: [task.fast_step_us()], IN_C: [], TWINS: []}
    ratios: dict[str, list[float]] = {IN_C: [], TWINS: []}
    events_ns: dict[str, list[float]] = {IN_C: [], TWINS: []}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(arguments.rounds):
            for which in ratios:
                os.environ[PURE_PYTHON] = str(int(which == TWINS))
                session = Session(EventLog(directory, role="script"), cwd=os.getcwd())
                session.attach(torch, [x for x in default_probes() if x.name in chosen])
                events_ns[which].append(event_cost_ns())
                hooked = task.fast_step_us()
                session.detach()
                blocks[BARE].append(task.fast_step_us())
                ratios[which].append(2 * hooked / sum(blocks[BARE][-2:]))
    print(f"{os.cpu_count()} cores, python {sys.version.split()[0]}, torch {torch.__version__}")
    step = min(blocks[BARE])
    print(f"a step {BARE}: {step:.1f} us at the least, {statistics.median(blocks[BARE]):.1f} us")
    for which, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        added = (middle - 1) * step
        event_us = statistics.median(events_ns[which]) / 1000
        print(
            f"{which:10} {middle:.3f} x ({low:.3f} to {high:.3f}), {added:5.1f} us added; "
            f"by the page {EVENTS * (event_us + EVICTED_US[which == IN_C]):.1f} us"
        )


class Task:
    """A small network that learns noise from memory."""

    def __init__(self) -> None:
        samples = BATCH * STEPS
        self._data = TensorDataset(torch.randn(samples, BATCH), torch.randint(0, 10, (samples,)))
        self._batches = [list(range(at, at + BATCH)) for at in range(0, samples, BATCH)]
        self._model = nn.Sequential(nn.Linear(BATCH, 64), nn.ReLU(), nn.Linear(64, 10))

    def fast_step_us(self) -> float:
        """Trains for a while; returns the first quartile of a step's time."""
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
        return statistics.quantiles(taken[WARM_UP:], n=4)[0] / 1000


if __name__ == "__main__":
    main()
