"""A run that was ended while no step came says where it stood; another says nothing of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.events import FakeRun

from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.analysis.summary.run import Hung
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.last_stacks import STACKS_SUFFIX
from trainprof.record.schema import Kind
from trainprof.report.page import page as terminal
from trainprof.report.text.layout import Page

S = 1_000_000_000
USER = ["/work/train.py", 21, "RemoteFiles.read"]
RESULT = ["/lib/concurrent/futures/_base.py", 451, "Future.result"]
WAIT = ["/lib/threading.py", 327, "Condition.wait"]
NEXT = ["/lib/torch/utils/data/dataloader.py", 725, "_BaseDataLoaderIter.__next__"]
AT_LIMIT = {"status": None, "signal": 15, "reason": "limit", "detail": "--max-time"}


def sample(pid: int, at_ns: int, since_ns: int, **more: Any) -> dict[str, Any]:
    thread = {"is_main": True, "since_ns": since_ns, "user": USER, "called": RESULT}
    thread["innermost"] = WAIT
    thread |= more.pop("thread", {})
    plain = {"pid": pid, "ppid": 4242, "at_ns": at_ns, "ended_ns": None}
    return {**plain, "rank": None, "worker": None, "threads": [thread]} | more


def main(at_ns: int, since_ns: int, **more: Any) -> dict[str, Any]:
    stands = {"user": ["/work/train.py", 41, "main"], "called": NEXT}
    return sample(4242, at_ns, since_ns, thread=stands, **more)


def trained(steps: int, *, idle_s: float) -> FakeRun:
    run = FakeRun()
    optimizer, loader = run.optimizer(), run.loader()
    run.iterate(loader)
    for _ in range(steps):
        run.next(loader)
        run.forward()
        run.backward()
        run.update(optimizer, 100_000_000)
    run.passes_time(round(idle_s * S))
    return run


def ended(run: FakeRun, parent: Path, *samples: dict[str, Any], **manifest: Any) -> RunSummary:
    stacks = {"at_ns": run.now, "processes": list(samples)}
    return summarize(run.write(parent, **{"exit": AT_LIMIT, "stacks": stacks} | manifest))


def test_a_run_that_never_began(tmp_path: Path, golden: Any) -> None:
    run = trained(0, idle_s=58)
    workers = [sample(9 + n, run.now, run.now - (58 - n) * S, worker=n) for n in range(2)]
    summary = ended(run, tmp_path, *workers, main(run.now, run.now - S))
    page = terminal.render(summary, Page(80))
    golden("hung_80.txt", page.partition("\n\n")[0] + "\n")
    assert summary.hung.idle_s == pytest.approx(58)
    assert summary.run.exit.reason == "limit"
    assert from_jsonable(json.loads(json.dumps(to_jsonable(summary)))) == summary
    assert summarize(run.write(tmp_path)).hung is None  # written again as one that ended


@pytest.mark.parametrize(
    ("end", "idle_s", "is_told"),
    [
        ({}, 3.0, True),
        ({}, 1.0, False),  # at the limit it was about to make a step
        ({"reason": "interrupted", "signal": signal.SIGINT}, 11.0, True),
        ({"reason": "interrupted", "signal": signal.SIGINT}, 9.0, False),
        ({"reason": "signal", "signal": signal.SIGSEGV}, 11.0, False),
        ({"reason": "killed", "signal": signal.SIGKILL, "detail": None}, 11.0, True),
        ({"reason": "killed", "signal": signal.SIGKILL, "detail": "out of memory"}, 11.0, False),
        ({"reason": "exception", "signal": None, "status": 1}, 11.0, False),
    ],
)
def test_who_ended_it_and_how_long_after_the_last_step(
    tmp_path: Path, end: dict[str, Any], idle_s: float, is_told: bool
) -> None:
    run = trained(30, idle_s=idle_s)
    summary = ended(run, tmp_path, main(run.now, run.now - S), exit=AT_LIMIT | end)
    assert (summary.hung is not None) is is_told
    if summary.hung is not None:
        assert summary.hung.idle_s == pytest.approx(idle_s)
        assert summary.hung.stood[0].doing == "waiting for a batch"


def test_one_that_ended_at_a_step_has_not_hung_however_long_it_saves(tmp_path: Path) -> None:
    run = trained(30, idle_s=0.1)
    run.mark(Kind.LIMIT, value=2)
    run.passes_time(40 * S)
    run.mark(Kind.PROCESS_END)
    summary = ended(run, tmp_path, main(run.now, run.now))
    assert (summary.run.exit.reason, summary.hung) == ("limit", None)


def test_without_a_trainprof_to_keep_them_samples_are_those_on_disk(tmp_path: Path) -> None:
    run = trained(0, idle_s=30)
    directory = run.write(
        tmp_path,
        times={"spawned_ns": run.start},
        exit={"status": None, "signal": None, "reason": "running", "detail": None},
        script_pid=(1 << 22) + 1,  # no process has it
    )
    text = json.dumps(main(run.now - 20 * S, run.now - 29 * S))
    (directory.events / f"4242-1{STACKS_SUFFIX}").write_text(text)
    text = json.dumps(sample(9, run.now, run.now - 29 * S, worker=3))
    (directory.events / f"9-1{STACKS_SUFFIX}").write_text(text)
    summary = summarize(directory)
    stood = [(place.process, place.site, place.waits_for) for place in summary.hung.stood]
    assert stood == [("main", "train.py:41", "its first batch"), ("worker 3", "train.py:21", None)]
    assert [place.age_s for place in summary.hung.stood] == pytest.approx([20, 0])


def test_ranks_and_who_had_ended_before(tmp_path: Path) -> None:
    run = trained(30, idle_s=20)
    samples = [
        *(sample(50 + n, run.now, run.now - 19 * S, rank=str(n)) for n in range(2)),
        main(run.now, run.now),  # who started them
        sample(60, run.now - 15 * S, 1, worker=0, ended_ns=run.now - 15 * S),
        sample(61, run.now - 40 * S, 1, worker=1),  # killed while training went on
        sample(62, run.now, run.now, worker=4, thread={"user": None, "called": None}),
    ]
    hung = ended(run, tmp_path, *samples).hung
    assert hung.stood[0].doing == "waiting for work"
    assert [(place.process, place.site) for place in hung.stood] == [
        ("worker 4", "/lib/threading.py:327"),
        ("rank 0", "train.py:21"),
        ("rank 1", "train.py:21"),
    ]


@pytest.mark.parametrize("damage", [3, [], {}, {"pid": 1}, {"threads": 1}, {"threads": [1]}])
def test_damaged_samples_are_left_out(tmp_path: Path, damage: Any) -> None:
    run = trained(0, idle_s=20)
    broken = {"at_ns": run.now, **damage} if isinstance(damage, dict) else damage
    thread = {"user": [1, 2], "called": 3, "innermost": [{}, None, []], "since_ns": "x"}
    odd = {"at_ns": run.now, "pid": "x", "worker": "y", "rank": {}, "threads": [thread]}
    summary = ended(run, tmp_path, broken, odd)
    assert all(isinstance(place.site, str) for place in (summary.hung or Hung(0, [])).stood)
    terminal.render(summary, Page(80))
