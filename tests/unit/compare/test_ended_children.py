"""A limit that ends what a launcher or a driver has started is the end of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.summary.run import Exit
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind, Topic

LAUNCHER_PID = 10
MAX_STEPS, MAX_TIME = 1, 2
FAILED = {"status": 1, "signal": None, "reason": "exception", "detail": None}


def child(pid: int, *, rank=None, steps=30, limit=0, raised=None, notes_end=True) -> FakeRun:
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


def written(parent: Path, *children: FakeRun, raised=None, **manifest: Any) -> RunDirectory:
    launcher = FakeRun(pid=LAUNCHER_PID)
    launcher.now = max(run.now for run in children)
    name = launcher.text(Topic.EXCEPTION, raised) if raised else 0
    launcher.mark(Kind.PROCESS_END, value=name)
    for run in children:
        run.write(parent)
    return launcher.write(parent, **manifest)


CHOSEN = {"status": 3, "signal": None, "reason": "exception", "detail": None}
ABORTED = {"status": None, "signal": 6, "reason": "signal", "detail": None}
LIMITED = Exit(0, None, "limit", "--max-steps")


@pytest.mark.parametrize(
    ("children", "how", "end"),
    [
        *(
            ([{"rank": rank, "limit": MAX_STEPS} for rank in ranks], {}, LIMITED)
            for ranks in (("0", "1"), (None, None))
        ),
        # They came to their own end.
        ([{"rank": "0"}, {"rank": "1"}], {}, Exit(0, None, "completed", None)),
        # Of a driver's trainings the limit of the one shown: the time was over for the others.
        ([{"steps": 3, "limit": MAX_TIME}, {"steps": 40, "limit": MAX_STEPS}], {}, LIMITED),
        # One of them that was cut is enough.
        (
            [{"steps": 40}, {"steps": 3, "limit": MAX_TIME}],
            {},
            Exit(0, None, "limit", "--max-time"),
        ),
        # A parent that fails, chooses a status or aborts after its child was ended tells both.
        (
            [{"limit": MAX_STEPS}],
            {"raised": "FileNotFoundError", "exit": FAILED},
            Exit(1, None, "exception", "FileNotFoundError", "--max-steps"),
        ),
        ([{"limit": MAX_STEPS}], {"exit": CHOSEN}, Exit(3, None, "completed", None, "--max-steps")),
        ([{"limit": MAX_TIME}], {"exit": ABORTED}, Exit(None, 6, "signal", None, "--max-time")),
        # A training that failed by itself, or was killed, is no end after a limit.
        *(
            (
                [{"rank": "0", "limit": MAX_STEPS}, {"rank": "1", **other}],
                {"raised": "ChildFailedError", "exit": FAILED},
                Exit(1, None, "exception", "ChildFailedError"),
            )
            for other in ({"raised": "KeyError"}, {"notes_end": False})
        ),
    ],
)
def test_a_limit_that_ends_children_is_the_run_s_end(tmp_path, children, how, end):
    runs = [child(20 + at, **child_of) for at, child_of in enumerate(children)]
    summary = summarize(written(tmp_path, *runs, **how))
    assert summary.run.exit == end
    assert summary.run.exit.is_whole is (end.reason == "completed" and end.after_limit is None)
    assert summary.run.exit.limit == (end.detail if end.reason == "limit" else end.after_limit)


def test_a_script_whose_end_fails_after_its_own_limit_tells_both(tmp_path):
    run = FakeRun()
    run.train_pass(run.loader(), run.optimizer(), 30)
    run.mark(Kind.LIMIT, value=MAX_STEPS)
    run.mark(Kind.PROCESS_END, value=run.text(Topic.EXCEPTION, "NameError"))
    end = summarize(run.write(tmp_path, exit=FAILED)).run.exit
    assert end == Exit(1, None, "exception", "NameError", "--max-steps")


def test_of_ranks_with_a_trainprof_each_a_failure_comes_before_a_limit(tmp_path):
    top = tmp_path / "whole"
    (top / "ranks").mkdir(parents=True)
    for rank, run in enumerate((child(20, limit=MAX_STEPS), child(21, raised="KeyError"))):
        failed = {"exit": FAILED} if rank else {}
        own = run.write(tmp_path / str(rank), rank=rank, world_size=2, **failed)
        own.path.rename(top / "ranks" / str(rank))
    end = summarize(RunDirectory(top)).run.exit
    assert (end.reason, end.detail) == ("exception", "KeyError")
