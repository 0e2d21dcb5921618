"""Charts of runs that could have been: what the HTML page is tested on."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainprof.analysis.summary.charts import (
    MAX_EVENTS,
    MIN_BINS,
    Charts,
    Events,
    Histogram,
    Lane,
    Machine,
    Series,
    Span,
    Stacks,
    StepBins,
)


def charts(*, bins: int = 4, events: int = 2, workers: int = 1, cores: int = 1) -> Charts:
    """Charts of `bins` bins of ten steps of 0.1 s, half of each step waiting for data."""
    numbers = np.arange(bins, dtype=np.int32)
    step_s = np.full(bins, 0.1, dtype=np.float32)
    ends = (numbers + 1.0) * 1.0
    parts = {"data_wait": np.full(bins, 0.5), "forward": np.full(bins, 0.5)}
    percents = np.full(bins, 50, dtype=np.uint8)
    return Charts(
        wall_s=float(bins),
        steps=StepBins(
            per_bin=10,
            first=numbers * 10,
            count=np.full(bins, 10, dtype=np.int32),
            start_s=ends - 1.0,
            end_s=ends,
            total_s=np.full(bins, 1.0),
            min_s=step_s,
            p50_s=step_s,
            p95_s=step_s,
            max_s=step_s,
            slowest=numbers * 10,
            outliers=np.zeros(bins, dtype=np.int32),
            epoch=np.zeros(bins, dtype=np.int32),
            parts_s=parts,
        ),
        machine=Machine(
            time_s=ends,
            series=[Series(name="host", panel="cpu", unit="%", mean=step_s, peak=step_s)],
            cores={f"core {core}": percents for core in range(cores)},
        ),
        spans=[Span(kind="epoch", start_s=0.0, end_s=0.0, label="epoch 1")],
        events=Events(
            kinds=["sync"],
            kind=np.zeros(events, dtype=np.uint8),
            labels=["train.py:9"],
            label=np.zeros(events, dtype=np.int32),
            start_s=np.linspace(0.0, bins, events),
            seconds=np.full(events, 0.01, dtype=np.float32),
            step=np.full(events, -1, dtype=np.int32),
            dropped={"sync": 3},
        ),
        histograms=[
            Histogram(name="step time", unit="s", edges=np.float32([0, 1]), counts=step_s[:1])
        ],
        lane_edges_s=np.arange(bins + 1.0),
        lanes=[
            Lane(loader=0, name=f"train.py:8 worker {worker}", running=percents, blocked=percents)
            for worker in range(workers)
        ],
        stacks=Stacks(
            frames=[("main", "train.py:3"), ("step", "train.py:9")],
            stacks=[("training", "forward", 7, [0, 1], 0.07)],
        ),
    )


def large(**changes: Any) -> Charts:
    """As large as charts of any run get: 64 cores and workers."""
    sizes = {"bins": 2 * MIN_BINS, "events": MAX_EVENTS, "workers": 64, "cores": 64}
    return charts(**(sizes | changes))
