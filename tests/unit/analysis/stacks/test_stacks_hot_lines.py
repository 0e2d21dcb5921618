"""The lines that a step spends most time in, from planted stack samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from support.events import MS, FakeRun

from trainprof.analysis.stacks.hot_lines import FETCH, WORKER_THREAD, lines_of_part
from trainprof.analysis.stacks.samples import Stack
from trainprof.analysis.summary.code import HottestLine
from trainprof.record.schema import Kind, LookFlag, Topic

STEPS = 60


def stack(run: FakeRun, *frames: tuple[int, str]) -> int:
    return run.text(Topic.STACK, [run.text(Topic.SITE, ["train.py", *frame]) for frame in frames])


def sample(run: FakeRun, seen: int, *, late: int = 0) -> None:
    flags = LookFlag.KNOWN if not late else 0
    run.record(Kind.LOOK, run.now - late, run.now, site=seen, flags=flags)


def trained(tmp_path: Path, *, late_every: int = STEPS) -> list[HottestLine]:
    """Steps of 40 ms: 20 in the optimizer; behind it 10 at line 9 and 10 at line 12."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    update, scores, logs = (
        stack(run, (line, name), (57, "train"))
        for line, name in ((52, "update"), (9, "score"), (12, "log"))
    )
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS // 10)
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            run.passes_time(10 * MS)
            sample(run, update)
            run.passes_time(10 * MS)
        for line, delay in ((scores, 0), (logs, 0 if step % late_every else 2 * MS)):
            run.passes_time(5 * MS)
            sample(run, line, late=delay)
            run.passes_time(5 * MS)
    run.stop(loader)
    return run.summary(tmp_path).hot_lines


def test_each_line_has_its_share_of_a_step(tmp_path: Path) -> None:
    lines = {line.site: line for line in trained(tmp_path)}
    planted = {"train.py:52": 0.5, "train.py:9": 0.25, "train.py:12": 0.25}
    assert lines.keys() == planted.keys()
    for site, share in planted.items():
        low, high = lines[site].share
        assert low <= share + 0.01
        assert high >= share - 0.01
        assert high - low < 0.15
    first = asdict(lines["train.py:52"])
    assert first.keys() == {"site", "function", "part", "thread", "share", "samples"}
    assert (first["function"], first["part"], first["thread"]) == (
        "update",
        "optimizer",
        "training",
    )


def test_samples_that_came_late_widen_the_interval(tmp_path: Path) -> None:
    exact = {line.site: line for line in trained(tmp_path)}
    late = {line.site: line for line in trained(tmp_path, late_every=2)}
    low, high = late["train.py:12"].share
    assert low < exact["train.py:12"].share[0]
    assert high >= 0.25
    assert high - low > exact["train.py:12"].share[1] - exact["train.py:12"].share[0]


def test_lines_of_workers_are_of_their_own_time() -> None:
    stacks: Counter[Stack] = Counter({(("data.py:7", "__getitem__"),): 60, (): 40})
    [line] = lines_of_part(stacks, 100, FETCH, WORKER_THREAD, 0.5, independent=100)
    assert (line.site, line.part, line.thread, line.samples) == ("data.py:7", "fetch", "worker", 60)
    assert line.share[0] < 0.3 < line.share[1]
    assert line.share[1] - line.share[0] < 0.15


def test_a_stack_that_stands_for_several_samples_is_one_observation() -> None:
    stacks: Counter[Stack] = Counter({(("train.py:7", "f"),): 60, (): 40})
    [few], [many] = (
        lines_of_part(stacks, 100, "other", "training", 0.5, independent=taken)
        for taken in (10, 100)
    )
    assert few.share[0] < many.share[0] < 0.3 < many.share[1] < few.share[1]
