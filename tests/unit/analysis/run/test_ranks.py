"""Several training processes in one run: which is which, and what they come to together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.summary.code import UnsharedData
from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, Topic, Writer
from trainprof.report.text.ending import steps_per_second

LAUNCHER_PID = 10


def trainer(
    pid, *, rank=None, steps=4, wait_ms=1, group=None, ends="end", loader_metadata=None, **header
):
    """A process under the launcher that makes some steps, and waits for each batch."""
    own = {"ancestors": [LAUNCHER_PID, 1], "rank": rank, **header}
    run = FakeRun(pid=pid, role="child", header=own)
    loader = run.loader(41, num_workers=1, **(loader_metadata or {}))
    optimizer = run.optimizer()
    if group is not None:
        run.text(Topic.ENVIRONMENT, {"rank": group[0], "world_size": group[1]})
    run.iterate(loader)
    for _ in range(steps):
        run.next(loader, wait_ms * MS)
        run.forward()
        run.backward()
        run.leaf(Kind.OPTIMIZER_STEP, MS, site=optimizer)
    run.stop(loader)
    if ends != "killed":
        name = run.text(Topic.EXCEPTION, ends) if ends != "end" else 0
        run.mark(Kind.PROCESS_END, value=name)
    return run


def worker(pid, *, of, fetches=3, **header):
    run = FakeRun(pid=pid, role="child", header={"forked_from": of, "ppid": of, **header})
    for _ in range(fetches):
        run.fetch(MS, 4)
    return run


def summary_of(tmp_path: Path, *processes: FakeRun, parts=None) -> RunSummary:
    launcher = FakeRun(pid=LAUNCHER_PID)
    launcher.now = max(process.now for process in processes)
    launcher.mark(Kind.PROCESS_END)
    host = {"name": "here"}
    for process in (*processes, launcher):  # the manifest is the launcher's
        directory = process.write(tmp_path, host=host)
    return summarize(directory, **(parts or {}))


def test_ranks_are_rows_and_the_ledger_is_their_mean(tmp_path):
    summary = summary_of(tmp_path, trainer(21, rank="1", wait_ms=3), trainer(20, rank="0"))
    first, second = summary.ranks
    assert [first["rank"], first["pid"], second["rank"], second["pid"]] == [0, 20, 1, 21]
    assert [first["steps"], second["steps"]] == [4, 4]
    waits = [row["ledger"]["seconds"]["data_wait"] for row in summary.ranks]
    assert waits == pytest.approx([0.003, 0.009])
    assert summary.ledger.seconds["data_wait"] == pytest.approx(0.006)
    assert sum(summary.ledger.seconds.values()) == pytest.approx(summary.ledger.wall_s)
    assert (summary.run.rank, summary.run.world_size, summary.training.steps) == (None, 2, 4)
    assert summary.training.per_step_s["data_wait"] == pytest.approx(0.002)
    assert first["host"] == "here"
    assert from_jsonable(json.loads(json.dumps(to_jsonable(summary)))) == summary


def test_their_pace_is_one_where_the_first_evaluates_and_the_others_wait_for_it(tmp_path):
    ranks = []
    for rank in range(2):
        run = FakeRun(pid=20 + rank, role="child")
        run.header = {"ancestors": [LAUNCHER_PID, 1], "rank": str(rank)}
        loader, validation, optimizer = run.loader(41), run.loader(42), run.optimizer()
        for _ in range(3):
            run.train_pass(loader, optimizer, 10, samples=[4] * 10)
            if rank == 0:
                evaluated = run.evaluation_pass(validation, 5, wait=9 * MS)
            else:
                run.passes_time(evaluated)
        run.mark(Kind.PROCESS_END)
        ranks.append(run)
    summary = summary_of(tmp_path, *ranks)
    alone_s = 30 * 650e-6 + 3 * 15e-6
    assert summary.evaluation.in_training_s == pytest.approx(3 * evaluated / 1e9)
    assert steps_per_second(summary) == pytest.approx(30 / alone_s)
    assert summary.training.samples == 2 * 30 * 4
    assert summary.training.samples_per_s == pytest.approx(2 * 4 * steps_per_second(summary))


ALL = {"sampler": "RandomSampler", "samples_plainly": True, "dataset_length": 4000}


def test_data_that_no_rank_leaves_to_another_is_told(tmp_path):
    ranks = [trainer(20 + rank, rank=str(rank), loader_metadata=ALL) for rank in range(2)]
    summary = summary_of(tmp_path, *ranks)
    assert summary.unshared == [UnsharedData("train.py:41", 4000, 2)]


@pytest.mark.parametrize(
    "shared",
    [
        {"sampler": "DistributedSampler"},
        {"samples_plainly": False},  # so many of them, or drawn by a generator of each rank's
        {"dataset_length": None},
        {"dataset_length": 2000},  # a part of its own
    ],
)
def test_data_that_may_be_shared_out_is_not(tmp_path, shared):
    metadata = [ALL, {**ALL, **shared}]
    ranks = [trainer(20 + k, rank=str(k), loader_metadata=metadata[k]) for k in range(2)]
    summary = summary_of(tmp_path, *ranks)
    assert (len(summary.ranks), summary.unshared) == (2, [])
    assert summary_of(tmp_path / "alone", trainer(20, loader_metadata=ALL)).unshared == []


def test_each_rank_has_its_own_workers(tmp_path):
    """Also behind a server process that recorded nothing, and those of nobody are nobody's."""
    summary = summary_of(
        tmp_path,
        trainer(20, rank="0"),
        trainer(21, rank="1"),
        worker(30, of=20, fetches=5),
        worker(31, of=21, fetches=2),
        worker(32, of=99, fetches=1, ancestors=[99, 20, LAUNCHER_PID]),
        worker(33, of=98, fetches=9, ancestors=[98, 1]),
    )
    [loader] = summary.loaders
    assert loader.fetch.n == 5 + 1


@pytest.mark.parametrize(
    ("ends", "reason", "detail"),
    [
        ("end", "completed", None),
        ("KeyError", "exception", "KeyError"),
        ("KeyboardInterrupt", "interrupted", None),
        ("killed", "unknown", "no end recorded: killed, os._exit, or still running"),
    ],
)
def test_a_rank_tells_how_it_ended(tmp_path, ends, reason, detail):
    summary = summary_of(tmp_path, trainer(20, rank="0"), trainer(21, rank="1", ends=ends))
    end = summary.ranks[1]["exit"]
    assert (end["reason"], end["detail"]) == (reason, detail)
    assert summary.run.exit.reason == "completed"  # of the launcher


def test_processes_without_ranks_stay_apart(tmp_path):
    processes = [trainer(20, steps=3), trainer(21, steps=7, wait_ms=2), trainer(22, steps=5)]
    summary = summary_of(tmp_path / "a", *processes)
    assert summary.ranks == []
    assert summary.training.steps == 7
    assert [(row["pid"], row["steps"]) for row in summary.trained_apart] == [(22, 5), (20, 3)]
    assert summary.ledger.seconds["data_wait"] == pytest.approx(6 * 0.002)
    # Of those that train as long, the first one is shown, however much else another recorded.
    later = trainer(21, wait_ms=5)
    for _ in range(9):
        later.leaf(Kind.GC, MS)
    summary = summary_of(tmp_path / "b", later, trainer(20, wait_ms=2), trainer(22))
    assert [row["pid"] for row in summary.trained_apart] == [21, 22]
    assert summary.ledger.seconds["data_wait"] == pytest.approx(3 * 0.002)
    # Of a rank with two processes the busier one counts.
    ranks = [trainer(20, rank="0", steps=2), trainer(21, rank="0"), trainer(22, rank="1")]
    assert [row["pid"] for row in summary_of(tmp_path / "c", *ranks).ranks] == [21, 22]


def test_a_part_is_that_part_of_every_rank(tmp_path):
    processes = [trainer(20, rank="0"), trainer(21, rank="1")]
    summary = summary_of(tmp_path, *processes, parts={"steps": (1, 3)})
    assert [row["steps"] for row in summary.ranks] == [2, 2]
    assert summary.training.steps == 2


def test_a_damaged_rank_is_none(tmp_path):
    for rank in ("9" * 5000, "-1", "x", 7, None, []):
        processes = [trainer(20, rank=rank), trainer(21, rank="0", steps=9)]
        summary = summary_of(tmp_path / str(rank)[:9], *processes)
        assert (summary.ranks, summary.training.steps) == ([], 9)


def written_ranks(top: Path, **processes: FakeRun) -> RunDirectory:
    """Writes the ranks of a run that each had a trainprof of its own."""
    for name, process in processes.items():
        rank = name.removeprefix("rank").replace("_", ".")
        process.write_rank(top, rank, rank=int(rank[0]), world_size=2, name=top.name)
    return RunDirectory(top)


def test_directories_of_ranks_are_one_run(tmp_path):
    top = written_ranks(tmp_path / "whole", rank0=trainer(20), rank1=trainer(20, wait_ms=3))
    summary = summarize(top)
    rows = [(row["rank"], row["pid"], row["steps"]) for row in summary.ranks]
    assert rows == [(0, 20, 4), (1, 20, 4)]
    assert summary.ledger.seconds["data_wait"] == pytest.approx(0.006)
    assert summary.run.name == "whole"
    assert summary.run.directory == str(top.path)


def test_the_last_attempt_of_a_rank_counts_and_links_and_strangers_do_not(tmp_path):
    top = written_ranks(
        tmp_path / "whole",
        rank0=trainer(20, steps=2),
        rank1=trainer(21, steps=2),
        rank1_restart10=trainer(30, steps=5),
        rank1_restart9=trainer(31, steps=4),
    )
    (top.ranks / "3").symlink_to(top.ranks / "0")
    (top.ranks / "notes").mkdir()
    (top.ranks / "2").write_text("x")
    assert [row["pid"] for row in summarize(top).ranks] == [20, 30]


def test_one_rank_that_failed_is_the_runs_end(tmp_path):
    bad = {"status": 1, "signal": None, "reason": "exception", "detail": None}
    top = written_ranks(tmp_path / "whole", rank0=trainer(20))
    trainer(21, ends="KeyError").write_rank(top.path, "1", rank=1, exit=bad)
    summary = summarize(top)
    assert (summary.run.exit.reason, summary.run.exit.detail) == ("exception", "KeyError")
    assert dataclasses.asdict(summary.run.exit) == summary.ranks[1]["exit"]


def timed_rank(pid, number, wait_ms, forward_ms, backward_ms, draws_ms=None):
    """60 steps; of those that save, each fourth draws before it."""
    run = FakeRun(pid=pid, role="child", header={"ancestors": [LAUNCHER_PID, 1], "rank": number})
    loader, optimizer = run.loader(41), run.optimizer()
    run.iterate(loader)
    for step in range(60):
        run.next(loader, wait_ms * MS)
        run.leaf(Kind.FORWARD, forward_ms * MS, flags=LEARNS)
        run.leaf(Kind.BACKWARD, backward_ms * MS)
        run.leaf(Kind.OPTIMIZER_STEP, MS, site=optimizer)
        if draws_ms is not None and step % 4 == 3:
            run.passes_time(draws_ms * MS)
            with run.span(Kind.CHECKPOINT_SAVE, site=run.site(70), flags=Writer.DISTRIBUTED):
                run.leaf(Kind.COLLECTIVE, (41 - draws_ms) * MS, site=run.site(70))
                run.passes_time(4 * MS)
    run.stop(loader)
    run.mark(Kind.PROCESS_END)
    return run


def test_a_slow_rank_is_a_finding_and_part_of_the_headline(tmp_path):
    """Of 45 ms a step one rank computes, and the other waits in backward for its 10 ms of data."""
    ranks = [timed_rank(20, "0", 1, 15, 29), timed_rank(21, "1", 10, 15, 20)]
    summary = summary_of(tmp_path, *ranks)
    [finding] = [finding for finding in summary.findings if finding.id == "slow_rank"]
    assert finding.title[1:] in summary.verdict.headline
    assert summary.verdict.bottleneck == "compute"


def test_the_group_knows_better_than_the_environment(tmp_path):
    processes = [trainer(20, rank="0", group=(1, 4)), trainer(21, rank="0", group=(3, 4))]
    summary = summary_of(tmp_path, *processes)
    assert [row["rank"] for row in summary.ranks] == [1, 3]
    assert summary.run.world_size == 4


def test_one_rank_alone_is_an_ordinary_run(tmp_path):
    summary = summary_of(tmp_path, trainer(20, group=(2, 8)))
    assert (summary.ranks, summary.trained_apart) == ([], [])
    assert (summary.run.rank, summary.run.world_size) == (2, 8)


def test_runs_inside_a_run_are_named(tmp_path):
    run = FakeRun()
    directory = run.write(tmp_path)
    lines = ['"/runs/one"', "{damaged", "7", '"/runs/two"']
    directory.inner_runs.write_text("\n".join(lines))
    reason = summarize(directory).not_observed["training"]
    assert "/runs/one and 1 more" in reason
