"""The run of the pictures in README and docs/: `summaries.slow_loader`, step by step.

Planted: the waits of 10 steps in the second epoch are longer, while the disk is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.charts.slow_stretch import slow_stretch
from trainprof.analysis.summary.charts import (
    Charts,
    Events,
    Histogram,
    Machine,
    Series,
    Span,
    Stacks,
    StepBins,
)
from trainprof.analysis.summary.run_summary import RunSummary

from .summaries import MIB, slow_loader, statistics

Values = npt.NDArray[np.float64]
STEPS: Final = 250
EPOCH: Final = 125
WARMUP: Final = 10
STARTUP_S: Final = 1.87
FIRST_BATCH_S: Final = 0.214
OUTLIER: Final = 117
OUTLIER_WAIT_S: Final = 0.381
SLOW: Final = slice(170, 180)
SLOW_WAIT_S: Final = (0.12, 0.2)
CORES: Final = 8
# Phase, stack samples, frames.
STACKS: Final = [
    ("data_wait", 550, [0, 2, 3, 4, 5]),
    ("data_wait", 300, [0, 2, 3, 4, 6]),
    ("data_wait", 180, [0, 2, 3, 4]),
    ("backward", 110, [0, 1]),
    ("forward", 85, [0, 7]),
    ("optimizer", 14, [0, 8]),
]
FRAMES: Final = [
    ("main", "train.py:64"),
    ("Tensor.backward", "torch"),
    ("fetch", "torch.utils.data"),
    ("__getitem__", "data.py:44"),
    ("load", "data.py:36"),
    ("decode", "data.py:28"),
    ("resize", "data.py:31"),
    ("Net.forward", "train.py:21"),
    ("AdamW.step", "torch"),
]


def pictured_run() -> tuple[RunSummary, Charts]:
    """Returns the run and its charts, which agree."""
    random = np.random.default_rng(7)
    summary = slow_loader()
    parts = {k: np.full(STEPS, s) for k, s in summary.training.per_step_s.items() if s}
    wait = random.normal(0.176, 0.004, STEPS)
    wait[OUTLIER] += OUTLIER_WAIT_S
    wait[SLOW] += random.uniform(*SLOW_WAIT_S, SLOW.stop - SLOW.start)
    is_first = np.arange(STEPS) % EPOCH == 0
    wait[is_first] = 0
    parts["data_wait"] = wait * summary.ledger.seconds["data_wait"] / wait.sum()
    parts["first_batch"] = np.where(is_first, FIRST_BATCH_S, 0)
    step_s = np.sum(list(parts.values()), axis=0)
    ends = STARTUP_S + np.add.accumulate(step_s)
    steady = step_s[~is_first][WARMUP - 2 :]
    of_steps = {
        name: float(np.percentile(steady, share))
        for name, share in {
            "min": 0,
            "p50": 50,
            "p90": 90,
            "p95": 95,
            "p99": 99,
            "max": 100,
        }.items()
    }
    step_statistics = statistics(float(steady.mean()), **of_steps)
    training = replace(summary.training, step_s=step_statistics)
    outlier = replace(summary.outliers[0], start_s=ends[OUTLIER - 1], seconds=step_s[OUTLIER])
    summary = replace(summary, training=training, outliers=[outlier])
    wall_s = summary.run.wall_s
    counts, edges = np.histogram(step_s, 40)
    bins = _steps(parts, step_s, ends)
    return summary, Charts(
        wall_s=wall_s,
        steps=bins,
        slow=slow_stretch(bins, WARMUP),
        machine=_machine(random, wall_s, ends),
        spans=[
            Span(kind="startup", start_s=0.0, end_s=STARTUP_S, label=""),
            Span(kind="warmup", start_s=STARTUP_S, end_s=ends[WARMUP - 1], label=""),
            Span(kind="epoch", start_s=STARTUP_S, end_s=STARTUP_S, label="epoch 1"),
            Span(kind="epoch", start_s=ends[EPOCH - 1], end_s=ends[EPOCH - 1], label="epoch 2"),
            Span(kind="shutdown", start_s=ends[-1], end_s=wall_s, label=""),
        ],
        events=_events(parts["data_wait"], step_s, ends),
        histograms=[
            Histogram(
                name="step time", unit="s", edges=np.float32(edges), counts=np.float32(counts)
            )
        ],
        lane_edges_s=np.empty(0),
        lanes=[],
        stacks=Stacks(
            frames=FRAMES,
            stacks=[
                ("training", phase, samples, frames, 0.04 * samples)
                for phase, samples, frames in STACKS
            ],
        ),
    )


def _steps(parts: dict[str, Values], step_s: Values, ends: Values) -> StepBins:
    each, numbers = np.float32(step_s), np.arange(STEPS, dtype=np.int32)
    return StepBins(
        per_bin=1,
        first=numbers,
        count=np.ones(STEPS, np.int32),
        start_s=ends - step_s,
        end_s=ends,
        total_s=step_s,
        min_s=each,
        p50_s=each,
        p95_s=each,
        max_s=each,
        slowest=numbers,
        outliers=np.int32(numbers == OUTLIER),
        epoch=numbers // EPOCH,
        parts_s=parts,
    )


def _events(wait: Values, step_s: Values, ends: Values) -> Events:
    fetches = np.flatnonzero(wait >= 2 * np.median(wait))
    starts = ends - step_s
    labels = ["data_wait", "generation 2", "train.py:41"]
    labels += [f"train.py:41 training process, sample {step * 32 % 4000 + 7}" for step in fetches]
    rows = [
        (0, 0, starts[OUTLIER], step_s[OUTLIER], OUTLIER),
        (2, 2, starts[OUTLIER], wait[OUTLIER], OUTLIER),
        *((3, 1, starts[step] + 0.2, 0.01, step) for step in (60, 140, 176)),
        *((1, 3 + at, starts[step], wait[step], step) for at, step in enumerate(fetches)),
    ]
    rows.sort(key=lambda row: row[2])
    kind, label, start_s, seconds, step = map(np.array, zip(*rows, strict=True))
    return Events(
        kinds=["outlier", "slow fetch", "slow batch", "gc"],
        kind=np.uint8(kind),
        labels=labels,
        label=np.int32(label),
        start_s=start_s,
        seconds=np.float32(seconds),
        step=np.int32(step),
    )


def _machine(random: np.random.Generator, wall_s: float, ends: Values) -> Machine:
    times = np.arange(0.25, wall_s, 0.5)
    is_slow = (times > ends[SLOW.start - 1]) & (times < ends[SLOW.stop - 1])

    def around(value: float, spread: float) -> Values:
        return np.float32(np.abs(random.normal(value, spread, len(times))))

    tree = np.where(is_slow, around(58, 5), around(108, 5))
    rising = 590 * MIB * np.minimum(1, 0.3 + times / 2.5)
    figures = [
        ("cpu", "host", "%", tree + around(20, 4)),
        ("cpu", "process tree", "%", tree),
        ("memory", "process tree (RSS)", "bytes", rising + around(0, MIB)),
        ("disk", "read", "bytes/s", np.where(is_slow, around(62 * MIB, 5 * MIB), around(0, 1e5))),
        ("disk", "written", "bytes/s", around(0, 2e4)),
    ]
    busy = [
        np.where(is_slow, around(55, 6), around(95, 3)),
        *(around(5, 3) for _ in range(1, CORES)),
    ]
    return Machine(
        time_s=times,
        series=[
            Series(panel=panel, name=name, unit=unit, mean=np.float32(mean))
            for panel, name, unit, mean in figures
        ],
        cores={f"core {core}": np.uint8(np.minimum(x, 100)) for core, x in enumerate(busy)},
    )
