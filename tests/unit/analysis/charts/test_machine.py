"""The machine in bins of time, from planted samples: means conserve time, spikes stay."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.events import FakeRun

from trainprof.analysis.charts.charts import charts_of
from trainprof.analysis.charts.machine import Observed
from trainprof.analysis.statistics.time_weighted import Window
from trainprof.analysis.summary.charts import UNKNOWN_PERCENT, Charts

S = 1_000_000_000


def charts(tmp_path: Path, hosts=(), processes=(), gpus=(), *, end_s: float, **manifest) -> Charts:
    """Of a run without steps that began at 1 s."""
    run = FakeRun()
    run.passes_time(round((end_s - 1) * S))
    directory = run.write(tmp_path, **manifest)
    named = (("host", hosts), ("processes", processes), ("gpus", gpus))
    for name, lines in named:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory.samples / f"{name}.jsonl").write_text(text)
    made = charts_of(directory)
    assert made is not None
    return made


def cores(t_s, *busy_s):
    return {"t_ns": round(t_s * S), "cores_busy_ns": [x and round(x * S) for x in busy_s]}


def test_spikes_stay_visible_in_a_long_run(tmp_path):
    """7,001 samples, of which one was busy: 2,000 bins at most, each of whole samples."""
    busy = np.zeros(7_001)
    busy[4_000:] = 1
    lines = [
        cores(1 + t, x) | {"disk_read_bytes": int(x) * 1_000} for t, x in enumerate(busy.tolist())
    ]
    machine = charts(tmp_path, lines, end_s=7_001).machine
    assert 1_700 <= len(machine.time_s) <= 2_000
    (read,) = (x for x in machine.series if x.name == "read")
    assert np.nanmax(read.peak) == 1_000
    assert np.nanmax(read.mean) == pytest.approx(250)
    assert np.count_nonzero(read.mean > 0) == np.count_nonzero(read.peak > 0) == 1
    at = float(machine.time_s[np.nanargmax(read.peak)])
    assert abs(at - 4_000) < 4
    assert machine.cores["core 0"].max() == 25


def test_few_samples_keep_their_own_bins(tmp_path):
    """A core that was offline, a counter that fell, and utilisation of exactly 100 percent."""
    lines = [
        cores(1, 0, 0, 0),
        cores(2, 1, 0.5, None),
        cores(3, 2, 0.2, 0.1),
        cores(4, 2, 0.7, 0.2),
    ]
    made = charts(tmp_path, lines, end_s=6)
    shares = {name: share.tolist() for name, share in made.machine.cores.items()}
    unknown = UNKNOWN_PERCENT
    assert shares == {
        "core 0": [100, 100, 0],
        "core 1": [50, unknown, 50],
        "core 2": [unknown, unknown, 10],
    }
    assert made.machine.time_s.tolist() == [0.5, 1.5, 2.5]
    (histogram,) = made.histograms
    assert histogram.counts[-1] == pytest.approx(2 / 3)
    assert histogram.counts.sum() == pytest.approx((3 + 2 + 1) / 3)


def test_cores_are_those_of_the_process(tmp_path):
    host = {"core_numbers": [1], "usable_cores": 1}
    made = charts(tmp_path, [cores(1, 0, 0), cores(2, 1, 0.5)], end_s=3, host=host)
    assert {name: x.tolist() for name, x in made.machine.cores.items()} == {"core 1": [50]}


def test_the_scripts_gpus_and_its_tree(tmp_path):
    """Two GPUs, of which the script's process uses the second; its tree grows from 1 to 3 MB."""
    tree = [
        {
            "t_ns": t * S,
            "processes": [
                {"pid": 4242, "started_ns": 1, "user_ns": t * S // 2, "rss_bytes": t * 1_000_000}
            ],
        }
        for t in (1, 2, 3)
    ]
    gpus = [
        {
            "t_ns": t * S,
            "gpus": [
                {
                    "index": index,
                    "uuid": f"GPU-{index}",
                    "utilization_gpu_percent": 10 * t,
                    "processes": [{"pid": 4242 if index else 7, "bytes": 1, "is_here": True}],
                }
                for index in (0, 1)
            ],
        }
        for t in (2, 3)
    ]
    made = charts(tmp_path, (), tree, gpus, end_s=4)
    series = {(x.panel, x.name): x.mean.tolist() for x in made.machine.series}
    assert series == {
        ("cpu", "process tree"): [50, 50],
        ("memory", "process tree (RSS)"): [2e6, 3e6],
        ("gpu_utilization", "GPU 1"): [20, 30],
    }
    assert [x.name for x in made.histograms] == ["GPU 1"]
    assert made.histograms[0].counts[[4, 6]].tolist() == [1, 1]


def test_damaged_samples_are_left_out(tmp_path):
    lines = [
        cores(1, 0),
        {"t_ns": 1_500_000_000, "cores_busy_ns": "x", "cpu": 7, "disk_read_bytes": "many"},
        {"t_ns": 2 * S, "cores_busy_ns": [{}], "disk_read_bytes": -5},
        cores(2, 0.5),
        cores(3, 1.0),
    ]
    made = charts(tmp_path, lines, [{"t_ns": 2 * S, "processes": [7]}], [{"t_ns": 2 * S}], end_s=4)
    assert [x.tolist()[-1] for x in made.machine.cores.values()] == [50]


def test_bins_conserve_what_was_observed():
    """Whatever the edges: the means, weighted by the observed time, add up to the whole."""
    random = np.random.default_rng(3)
    times = np.cumsum(random.integers(0, 9, 400))
    values = random.normal(size=399)
    values[random.random(399) < 0.3] = np.nan
    seen = Observed.between(times, values, Window(20, 900))
    edges = np.unique(random.integers(20, 900, 60))
    mean, peak = seen.in_bins(edges)
    for number, (start, end) in enumerate(pairwise(edges)):
        inside = np.clip(seen.end_ns, start, end) - np.clip(seen.start_ns, start, end)
        if inside.any():
            assert mean[number] == pytest.approx(np.average(seen.values, weights=inside))
            assert peak[number] == seen.values[inside > 0].max()
        else:
            assert np.isnan(mean[number])
            assert np.isnan(peak[number])
