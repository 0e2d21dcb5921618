"""GPU samples against what the run's own records say: epochs, phases, samples, ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, Topic

S = 1000 * MS
SUPERVISOR_PID = 10
WATTS = 100.0


def train(run: FakeRun, epochs: int = 2) -> None:
    """Starts up for 1 s; epochs of 4 batches of 8 samples, 2 s each."""
    loader, optimizer = run.loader(batch_size=8), run.optimizer()
    run.passes_time(S)
    for _ in range(epochs):
        run.iterate(loader)
        for _ in range(4):
            run.next(loader, 100 * MS, samples=8)
            run.learn(optimizer, forward=200 * MS, backward=150 * MS, update=50 * MS)
        run.stop(loader)


def write_samples(directory: RunDirectory, run: FakeRun, *, busy_from_ns: int) -> None:
    """Two GPUs of 100 W, sampled every 50 ms, the first busy from some time on."""
    with (directory.samples / "gpus.jsonl").open("w") as file:
        for t_ns in range(run.start, run.now + 1, 50 * MS):
            passed_mj = int((t_ns - run.start) / MS * WATTS)
            busy = 100 if t_ns > busy_from_ns else 0
            devices = [
                {
                    "index": index,
                    "uuid": f"GPU-{index}",
                    "name": "H",
                    "is_visible": True,
                    "energy_mj": passed_mj,
                    "utilization_gpu_percent": busy * (1 - index),
                }
                for index in range(2)
            ]
            file.write(json.dumps({"t_ns": t_ns, "gpus": devices}) + "\n")


def summary_of(run: FakeRun, parent: Path, **how: int) -> RunSummary:
    directory = run.write(parent)
    write_samples(directory, run, busy_from_ns=run.start + S)
    return summarize(directory, **how)


def test_a_run_and_each_epoch_have_their_energy(tmp_path):
    run = FakeRun()
    train(run)
    summary = summary_of(run, tmp_path)
    assert summary.system.gpus[1].utilization.mean == 0
    energy = summary.system.energy
    assert energy.wh == pytest.approx(2 * 500 / 3600, rel=0.02)
    assert energy.samples_per_wh == pytest.approx(64 / energy.wh)
    assert from_jsonable(json.loads(json.dumps(to_jsonable(summary)))) == summary
    epoch = summary_of(run, tmp_path, epoch=1).system
    assert epoch.energy.wh == pytest.approx(400 / 3600, rel=0.001)
    assert epoch.energy.samples_per_wh == pytest.approx(32 / epoch.energy.wh)
    assert epoch.gpus[0].utilization.mean == 100


def test_samples_of_all_ranks_count_for_the_gpus_that_one_sampler_saw(tmp_path):
    launcher = FakeRun(pid=SUPERVISOR_PID)
    ranks = [
        FakeRun(pid=pid, role="child", header={"ancestors": [SUPERVISOR_PID, 1], "rank": rank})
        for pid, rank in ((20, "0"), (21, "1"))
    ]
    for rank in ranks:
        train(rank)
    launcher.now = ranks[0].now
    for process in (*ranks, launcher):
        directory = process.write(tmp_path)
    write_samples(directory, launcher, busy_from_ns=launcher.start)
    summary = summarize(directory)
    assert summary.training.samples == 2 * 64
    assert summary.system.energy.samples_per_wh == pytest.approx(128 / summary.system.energy.wh)


@pytest.mark.parametrize(
    ("device", "reason", "is_missing"),
    [("cuda:0", "no library", True), (None, "no library", False), ("cuda:0", ["x"], False)],
)
def test_why_there_are_no_gpu_samples_is_said_where_a_gpu_was_used(
    tmp_path, device, reason, is_missing
):
    run = FakeRun()
    run.text(Topic.ENVIRONMENT, {"torch": "2.13.0", "device": device})
    train(run)
    run.mark(Kind.PROCESS_END)
    directory = run.write(tmp_path, not_sampled={"gpus": reason})
    host = {"t_ns": run.start, "interval_s": 0.5}
    (directory.samples / "host.jsonl").write_text(json.dumps(host) + "\n")
    summary = summarize(directory)
    assert summary.system.gpus_not_observed == (reason if isinstance(reason, str) else None)
    assert ("system.gpus" in summary.not_observed) is is_missing
    assert summary.system.gpus == []
