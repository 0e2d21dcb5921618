"""Charts of whole runs: they agree with the summary, and every planted moment is where it was."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_run import DeviceRun
from support.events import MS, FakeRun
from support.long_run import OUTLIER_NS, STEP_NS, outliers, sample_of, waits_ns, write_long_run

from trainprof.analysis.charts import events as chart_events
from trainprof.analysis.charts import step_bins as bins
from trainprof.analysis.charts.charts import charts_of
from trainprof.analysis.run.analysed import NothingThere
from trainprof.analysis.run.run_numbers import run_numbers
from trainprof.analysis.summary.charts import MAX_EVENTS, UNKNOWN_PERCENT
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, SyncFlag, TransferFlag

STEPS, EPOCHS = 20_000, 10


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return write_long_run(tmp_path_factory.mktemp("long") / "run", STEPS, epochs=EPOCHS)


def ns(seconds):
    return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)


def happened(charts):
    """The events as (kind, label, step), in order of time."""
    x = charts.events
    columns = (x.kind.tolist(), x.label.tolist(), x.step.tolist())
    return [
        (x.kinds[kind], x.labels[label], step) for kind, label, step in zip(*columns, strict=True)
    ]


PARTS = [{}, {"epoch": 1}, {"steps": (15_000, 19_500)}, {"steps": (4_000, 6_500)}]


@pytest.mark.parametrize("part", PARTS)
def test_steps_agree_with_the_summary(long_run, part):
    charts, numbers = charts_of(long_run, **part), run_numbers(long_run, **part)
    steps, table, summary = charts.steps, numbers.ranks[0].steps, numbers.summary
    assert steps.count.sum() == len(table) == summary.training.steps
    assert steps.outliers.sum() == summary.outlier_count > 0
    assert {x.step for x in summary.outliers} <= {
        s for k, _, s in happened(charts) if k == "outlier"
    }
    assert ns(steps.total_s).sum() == table.wall_ns.sum()
    spent = {key: int(each.sum()) for key, each in table.per_step.items() if each.any()}
    assert {key: ns(each).sum() for key, each in steps.parts_s.items()} == spent
    assert (charts.part, charts.wall_s) == (summary.run.part, summary.ledger.wall_s)
    first = 2_000 * part["epoch"] if "epoch" in part else part.get("steps", (0,))[0]
    assert (steps.first[0], steps.epoch[0]) == (first, first // 2_000)
    assert charts.start_s == pytest.approx(0 if not part else steps.start_s[0])
    begun = next(x.label for x in charts.spans if x.kind == "epoch")
    assert begun == f"epoch {first // 2_000 + 1}"


def test_bins_have_the_planted_steps(long_run):
    steps, waits = charts_of(long_run).steps, waits_ns(STEPS, EPOCHS)
    assert (steps.per_bin, len(steps.first)) == (10, 2_000)
    # Borders of epochs have loaders' times and checkpoints in them besides.
    is_plain = np.arange(STEPS).reshape(-1, 10)[:, 0] % 2_000 > 0
    planted = (STEP_NS + waits).reshape(-1, 10)[is_plain]
    assert (ns(steps.total_s)[is_plain] == planted.sum(axis=1)).all()
    assert steps.max_s[is_plain] == pytest.approx(planted.max(axis=1) / 1e9)
    assert steps.min_s[is_plain] == pytest.approx(planted.min(axis=1) / 1e9)
    assert steps.p95_s[is_plain] == pytest.approx(np.percentile(planted, 95, axis=1) / 1e9)
    slowest = steps.slowest[np.flatnonzero(steps.outliers)]
    assert slowest.tolist() == outliers(STEPS, EPOCHS).tolist()


def test_a_long_runs_events_spans_and_histograms(long_run):
    charts = charts_of(long_run)
    planted = outliers(STEPS, EPOCHS).tolist()
    events = happened(charts)
    assert len(events) == MAX_EVENTS
    assert [step for kind, _, step in events if kind == "outlier"] == planted
    assert {label for kind, label, _ in events if kind == "outlier"} == {"data_wait"}
    slow = [label for kind, label, _ in events if kind == "slow fetch"]
    assert slow == [f"train.py:41 worker {x % 2}, sample {sample_of(x)}" for x in planted]
    kept = sum(kind == "transfer" for kind, _, _ in events)
    assert charts.events.dropped == {"transfer": STEPS - kept}
    # After the update of each 1,000th step, which is in the next one; after the last is none.
    assert [s for k, _, s in events if k == "gc"] == [*range(1_000, STEPS, 1_000), -1]
    assert [s for k, _, s in events if k == "evaluation"] == [-1] * EPOCHS
    spans = [(x.kind, x.label) for x in charts.spans]
    assert spans.count(("evaluation", "train.py:41")) == EPOCHS
    epochs = [x.start_s for x in charts.spans if x.kind == "epoch"]
    assert len(epochs) == EPOCHS
    assert [spans[0][0], spans[-1][0]] == ["startup", "shutdown"]
    # The planted 2 ms more of waiting in the hundredth of the steps after the middle.
    slow = charts.slow
    assert (slow.first, slow.last, slow.part) == (10_000, 10_199, "data_wait")
    assert slow.part_s == pytest.approx(2e-3, rel=0.1)
    times = charts.histograms[0]
    assert (times.counts.sum(), times.counts[-1], times.is_log) == (STEPS, EPOCHS, True)
    assert times.edges[-1] == pytest.approx((OUTLIER_NS + STEP_NS) / 1e9)


def test_a_long_runs_machine_and_workers(long_run):
    charts = charts_of(long_run)
    means = {(x.panel, x.name): np.nanmean(x.mean) for x in charts.machine.series}
    assert means["cpu", "host"] == pytest.approx(180)
    assert means["cpu", "process tree"] == pytest.approx(170)
    assert means["memory", "process tree (RSS)"] == 600 << 20
    assert means["disk", "read"] == pytest.approx(1e7)
    busy = [set(x.tolist()) - {UNKNOWN_PERCENT} for x in charts.machine.cores.values()]
    assert busy == [{90}, {80}, {10}, {0}]
    cores = charts.histograms[1]
    assert (cores.name, cores.edges[0], cores.edges[-1]) == ("cores", 0, 100)
    quarter = cores.counts.sum() / 4
    assert cores.counts[[0, 2, 16, 18]] == pytest.approx([quarter] * 4)
    assert [x.name for x in charts.lanes] == ["train.py:41 worker 0", "train.py:41 worker 1"]
    for lane in charts.lanes:
        assert lane.running[0] == lane.blocked[-1] == UNKNOWN_PERCENT
        # 0.7 of each 2 ms on a core, and 0.7 not.
        here = lane.running != UNKNOWN_PERCENT
        assert np.median(lane.running[here]) == np.median(lane.blocked[here]) == 35


@settings(deadline=None)
@given(
    count=st.integers(1, 300),
    seed=st.integers(0, 1 << 32),
    longest=st.sampled_from([1, 10**4, 10**11]),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_any_window_of_bins_is_exact(count, seed, longest, cuts):
    """Totals and counts of consecutive bins are those of their steps."""
    random = np.random.default_rng(seed)
    parts = {key: random.integers(0, longest, count) for key in ("forward", "other")}
    wall = parts["forward"] + parts["other"]
    ends = np.cumsum(wall) + 7
    timeline = SimpleNamespace(step_starts=ends - wall, steps=SimpleNamespace(ends=ends))
    run = SimpleNamespace(timeline=timeline, origin_ns=0)
    process = SimpleNamespace(run=run, first_step=40, first_epoch=0)
    table = StepTable.of(
        *(wall, parts),
        epoch_of=np.full(count, -1),
        border=np.zeros(count, dtype=bool),
        buffered=np.zeros(count, dtype=bool),
        cycle=1,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bins, "MIN_BINS", 20)
        made = bins.step_bins(process, table)
    first, behind = sorted(round(cut * len(made.first)) for cut in cuts)
    first = min(first, len(made.first) - 1)
    behind = max(behind, first + 1)
    window, at = slice(first, behind), made.first - 40
    steps = slice(int(at[first]), int(at[behind - 1] + made.count[behind - 1]))
    assert made.count[window].sum() == steps.stop - steps.start
    assert ns(made.total_s[window]).sum() == wall[steps].sum()
    for key, each in parts.items():
        assert ns(made.parts_s.get(key, np.zeros(behind))[window]).sum() == each[steps].sum()
    assert made.max_s[window].max() == pytest.approx(wall[steps].max() / 1e9)
    assert made.min_s[window].min() == pytest.approx(wall[steps].min() / 1e9)
    assert (wall[made.slowest - 40] / 1e9).astype(np.float32).tolist() == made.max_s.tolist()
    assert (made.start_s[window][1:] == made.end_s[window][:-1]).all()
    histogram = bins.step_histogram(table)
    assert histogram.counts.sum() == count
    assert (np.diff(histogram.edges) >= 0).all()


def test_workers_of_two_epochs_share_a_lane(tmp_path):
    """Each of 1 s: a fetch of 0.4 s, 0.1 s of it on a core, then idle; 0.5 s apart."""
    run, logs = FakeRun(), []
    loader, optimizer = run.loader(num_workers=1), run.optimizer()
    for pid in (11, 12):
        start = run.now
        run.record(Kind.WORKER, start, start, site=loader, value=pid, flags=1)
        logs.append(FakeRun(pid=pid, role="child", now=start, header={"ppid": run.pid}))
        logs[-1].fetch(400 * MS, 8, flags=1)
        if pid == 11:
            logs[-1].record(Kind.FETCH_CPU, start, start + 100 * MS, flags=1)
        run.iterate(loader, 0)
        run.next(loader, 500 * MS)
        run.learn(optimizer, forward=100 * MS, backward=100 * MS, update=100 * MS)
        run.passes_time(200 * MS)
        run.stop(loader, 0)
        run.passes_time(500 * MS)
    directory = run.write(tmp_path)
    for log in logs:
        (directory.events / f"{log.pid}-1.events").write_bytes(log.log_bytes())
    charts = charts_of(directory)
    (lane,) = charts.lanes
    assert lane.name == "train.py:41 worker 0"
    width_s = np.diff(charts.lane_edges_s)

    def seconds(share):
        return (width_s * np.where(share == UNKNOWN_PERCENT, 0, share)).sum() / 100

    # The second one's CPU time was not measured: it is like the first one's.
    assert (lane.is_split, seconds(lane.running)) == (True, pytest.approx(0.2, abs=0.01))
    assert seconds(lane.blocked) == pytest.approx(0.6, abs=0.01)
    unknown_s = width_s[lane.running == UNKNOWN_PERCENT].sum()
    assert unknown_s == pytest.approx(1, abs=0.01)


def test_what_each_call_is_called(tmp_path):
    """All kinds of calls in a step of 10 ms, with a step of 200 ms that saves and reads a value."""
    run = FakeRun()
    loader, optimizer, site = run.loader(), run.optimizer(), run.site(50)
    run.iterate(loader)
    for step in range(20):
        run.next(loader, 700 * MS if step == 7 else MS)
        run.leaf(Kind.TRANSFER, MS, site=site, flags=TransferFlag.H2D)
        run.learn(optimizer, forward=2 * MS, backward=3 * MS, update=MS)
        if step == 12:
            run.leaf(Kind.SYNC, 30 * MS, site=site, flags=SyncFlag.ITEM)
            run.leaf(Kind.SYNC, MS, site=site, flags=SyncFlag.ITEM | SyncFlag.ON_CPU)
            with run.span(Kind.CHECKPOINT_SAVE, site=site):
                run.leaf(Kind.CHECKPOINT_SAVE, 40 * MS, site=site)
            run.leaf(Kind.GC, 5 * MS, value=2)
            run.leaf(Kind.COMPILE, 20 * MS, site=site)
            run.leaf(Kind.COLLECTIVE, 4 * MS, site=site)
            run.leaf(Kind.CACHE_EMPTIED, 4 * MS, site=site)
    run.stop(loader)
    events = happened(charts_of(run.write(tmp_path)))
    assert [x for x in events if x[0] != "transfer"] == [
        ("outlier", "data_wait", 7),
        ("slow batch", "train.py:41", 7),
        ("outlier", "checkpoint", 13),
        ("sync", "item at train.py:50", 13),
        ("checkpoint", "save at train.py:50", 13),
        ("gc", "generation 2", 13),
        ("compile", "train.py:50", 13),
        ("collective", "all_reduce at train.py:50", 13),
        ("empty_cache", "train.py:50", 13),
    ]
    copies = [x for x in events if x[0] == "transfer"]
    assert copies == [("transfer", "H2D at train.py:50", step) for step in range(20)]


def test_each_kind_has_a_fair_share(tmp_path, monkeypatch):
    """A collection stays, however many longer copies there are; of those the longest."""
    monkeypatch.setattr(chart_events, "MAX_EVENTS", 5)
    run = FakeRun()
    optimizer, site = run.optimizer(), run.site(50)
    for step in range(40):
        run.leaf(Kind.TRANSFER, step * MS, site=site, flags=TransferFlag.D2H)
        run.leaf(Kind.SYNC, step * MS, site=site, flags=SyncFlag.ITEM)
        run.learn(optimizer)
    run.leaf(Kind.GC, MS)
    charts = charts_of(run.write(tmp_path))
    assert [kind for kind, _, _ in happened(charts)] == ["transfer", "sync"] * 2 + ["gc"]
    assert charts.events.step.tolist() == [38, 38, 39, 39, -1]
    assert charts.events.dropped == {"transfer": 38, "sync": 38}


def test_a_device_run_agrees_with_the_summary(tmp_path):
    device = DeviceRun()
    device.start()
    for _ in range(30):
        device.next(MS)
        device.learn(4 * MS, 4 * MS, MS)
        device.item()
    device.stop()
    directory = device.run.write(tmp_path)
    (directory.samples / "gpus.jsonl").write_text(
        "".join(
            json.dumps({"t_ns": t_ns, "gpus": [gpu(t_ns, device.run.start)]}) + "\n"
            for t_ns in range(device.run.start + MS, device.run.now, 10 * MS)
        )
    )
    charts, table = charts_of(directory), run_numbers(directory).ranks[0].steps
    spent = {key: int(each.sum()) for key, each in table.per_step.items() if each.any()}
    assert "device_wait" in spent
    assert {key: ns(each).sum() for key, each in charts.steps.parts_s.items()} == spent
    panels = {x.panel: (x.name, set(x.mean.tolist())) for x in charts.machine.series}
    assert panels == {"gpu_utilization": ("GPU 0", {100}), "gpu_power": ("GPU 0", {300})}
    assert list(charts.machine.cores) == [x.name for x in charts.histograms[1:]] == ["GPU 0"]


def gpu(t_ns, start):
    return {"index": 0, "uuid": "GPU-0", "utilization_gpu_percent": 100, "power_w": 300}


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_few_steps_and_no_samples(tmp_path, steps):
    run = FakeRun()
    optimizer = run.optimizer()
    for _ in range(steps):
        run.learn(optimizer)
    charts = charts_of(run.write(tmp_path))
    assert charts.machine is None
    assert (charts.steps is None) == (steps == 0)
    assert sum(x.counts.sum() for x in charts.histograms) == steps


def test_nothing_recorded(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    assert charts_of(directory) is None


@pytest.mark.parametrize("kept", [4096, 4200, 20_000, 60_001])
def test_truncated_and_still_running(tmp_path, kept):
    directory = write_long_run(tmp_path / "run", 200, epochs=2)
    for path in directory.events.iterdir():
        path.write_bytes(path.read_bytes()[:kept])
    manifest = json.loads(directory.manifest.read_text())
    manifest.pop("exit")
    manifest["times"].pop("ended_ns")
    directory.manifest.write_text(json.dumps(manifest))
    host = directory.samples / "host.jsonl"
    host.write_bytes(host.read_bytes()[:-20])
    charts = charts_of(directory)
    assert charts is not None
    numbers = run_numbers(directory).summary.training.steps
    assert (0 if charts.steps is None else charts.steps.count.sum()) == numbers


def test_a_missing_part_is_an_error(long_run):
    with pytest.raises(NothingThere):
        charts_of(long_run, epoch=EPOCHS)
