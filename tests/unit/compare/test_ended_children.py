"""A limit that ends what a launcher or a driver has started is the end of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.summary.run import Exit
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.compare.compared_run import read_compared_run
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, Topic
from trainprof.report import markdown
from trainprof.report.page import page as terminal

LAUNCHER_PID = 10
MAX_STEPS, MAX_TIME = 1, 2
FAILED = {"status": 1, "signal": None, "reason": "exception", "detail": None}


def child(
    pid: int,
    *,
    rank: str | None = None,
    steps: int = 30,
    limit: int = 0,
    raised: str | None = None,
    notes_end: bool = True,
) -> FakeRun:
    run = FakeRun(pid=pid, role="child", header={"ancestors": [LAUNCHER_PID, 1], "rank": rank})
    loader, optimizer = run.loader(41, length=100), run.optimizer()
    run.iterate(loader)
    for step in range(steps):
        run.next(loader, (60 if step == 0 else 1) * MS)
        run.learn(optimizer)
    if limit:
        run.mark(Kind.LIMIT, value=limit)
    if notes_end:
        run.mark(Kind.PROCESS_END, value=run.text(Topic.EXCEPTION, raised) if raised else 0)
    return run


def written(
    parent: Path, *children: FakeRun, raised: str | None = None, **told: Any
) -> RunDirectory:
    launcher = FakeRun(pid=LAUNCHER_PID)
    launcher.now = max(one.now for one in children)
    name = launcher.text(Topic.EXCEPTION, raised) if raised else 0
    launcher.mark(Kind.PROCESS_END, value=name)
    for one in children:
        one.write(parent)
    return launcher.write(parent, **told)


def ended(parent: Path, *children: FakeRun, **how: Any) -> Exit:
    return summarize(written(parent, *children, **how)).run.exit


@pytest.mark.parametrize("ranks", [("0", "1"), (None, None)])
def test_children_that_a_limit_ended_are_the_run_s_end(
    tmp_path: Path, ranks: tuple[str | None, str | None]
) -> None:
    both = [child(20 + k, rank=rank, limit=MAX_STEPS) for k, rank in enumerate(ranks)]
    found = ended(tmp_path, *both)
    assert found == Exit(0, None, "limit", "--max-steps")
    assert found.limit == "--max-steps"
    assert not found.is_whole


def test_children_that_came_to_their_own_end_leave_the_run_whole(tmp_path: Path) -> None:
    found = ended(tmp_path, child(20, rank="0"), child(21, rank="1"))
    assert found == Exit(0, None, "completed", None)
    assert found.is_whole
    assert found.limit is None


def test_of_a_driver_s_trainings_the_limit_of_the_one_shown_is_told(tmp_path: Path) -> None:
    """The first made its steps, and the time was over for the others."""
    sweep = [child(20, steps=40, limit=MAX_STEPS), child(21, steps=3, limit=MAX_TIME)]
    assert ended(tmp_path, *reversed(sweep)).detail == "--max-steps"


def test_one_of_a_driver_s_trainings_that_was_cut_is_enough(tmp_path: Path) -> None:
    found = ended(tmp_path, child(20, steps=40), child(21, steps=3, limit=MAX_TIME))
    assert found == Exit(0, None, "limit", "--max-time")


def test_a_parent_that_fails_after_its_child_was_ended_tells_both(tmp_path: Path) -> None:
    directory = written(
        tmp_path, child(20, limit=MAX_STEPS), raised="FileNotFoundError", exit=FAILED
    )
    summary = summarize(directory)
    found = summary.run.exit
    assert found == Exit(1, None, "exception", "FileNotFoundError", "--max-steps")
    assert (found.limit, found.is_whole) == ("--max-steps", False)
    page = " ".join(terminal.render(summary, width=200, color=False).split())
    assert "train.py ended with FileNotFoundError after" in page
    said = "training had been ended at the limit asked for (--max-steps)"
    assert said in page
    assert "training had been ended at the limit asked for" in markdown.render(summary)


def test_a_parent_that_chooses_a_status_or_aborts_after_it_tells_it_too(tmp_path: Path) -> None:
    chosen = {"status": 3, "signal": None, "reason": "exception", "detail": None}
    found = ended(tmp_path / "a", child(20, limit=MAX_STEPS), exit=chosen)
    assert found == Exit(3, None, "completed", None, "--max-steps")
    assert not found.is_whole
    aborted = {"status": None, "signal": 6, "reason": "signal", "detail": None}
    found = ended(tmp_path / "b", child(20, limit=MAX_TIME), exit=aborted)
    assert found == Exit(None, 6, "signal", None, "--max-time")


@pytest.mark.parametrize(
    "other",
    [
        {"raised": "KeyError"},
        {"notes_end": False},  # killed
    ],
)
def test_a_training_that_failed_by_itself_is_no_end_after_a_limit(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    both = [child(20, rank="0", limit=MAX_STEPS), child(21, rank="1", **other)]
    found = ended(tmp_path, *both, raised="ChildFailedError", exit=FAILED)
    assert found == Exit(1, None, "exception", "ChildFailedError")


def test_a_script_whose_end_fails_after_its_own_limit_tells_both(tmp_path: Path) -> None:
    run = FakeRun()
    run.train_pass(run.loader(), run.optimizer(), 30)
    run.mark(Kind.LIMIT, value=MAX_STEPS)
    run.mark(Kind.PROCESS_END, value=run.text(Topic.EXCEPTION, "NameError"))
    found = summarize(run.write(tmp_path, exit=FAILED)).run.exit
    assert found == Exit(1, None, "exception", "NameError", "--max-steps")


def test_of_ranks_with_a_trainprof_each_a_failure_comes_before_a_limit(tmp_path: Path) -> None:
    top = tmp_path / "whole"
    (top / "ranks").mkdir(parents=True)
    ranks = [child(20, limit=MAX_STEPS), child(21, raised="KeyError")]
    for rank, one in enumerate(ranks):
        failed = {"exit": FAILED} if rank else {}
        own = one.write(tmp_path / str(rank), rank=rank, world_size=2, **failed)
        own.path.rename(top / "ranks" / str(rank))
    found = summarize(RunDirectory(top)).run.exit
    assert (found.reason, found.detail) == ("exception", "KeyError")


def starts_of(directory: RunDirectory) -> int:
    summary: RunSummary = summarize(directory)
    pace = read_compared_run(directory, summary).training_pace()
    steady = read_compared_run(directory, summary).pace()
    assert pace.starts_s is not None
    added_s = pace.mean_s - steady.mean_s
    return round(60 * MS / 1e9 / added_s)


def test_a_pass_that_was_cut_in_a_child_starts_as_often_as_whole_passes_do(tmp_path: Path) -> None:
    """Its start is spread over the 100 batches that its loader has, not the 30 it gave."""
    cut = starts_of(written(tmp_path / "a", child(20, limit=MAX_STEPS)))
    whole = starts_of(written(tmp_path / "b", child(20)))
    assert cut == pytest.approx(100, rel=0.1)
    assert whole == pytest.approx(30, rel=0.1)
