"""What torch.compile took, by line; what came again in training is told apart."""

from __future__ import annotations

from pathlib import Path

from support.events import LEARNS, MS, FakeRun

from trainprof.analysis.model.compilations import NUMBER
from trainprof.analysis.summary.code import Compilation
from trainprof.record.schema import CompileFlag, Kind


def compiling_step(
    run: FakeRun, optimizer: int, site: int, ns: int, times: int, *, later_ns: int = 0
) -> None:
    """A step whose forward compiles, and whose backward does where `later_ns` is given."""
    with run.span(Kind.FORWARD, flags=LEARNS):
        run.leaf(Kind.COMPILE, ns, site=site, value=times, flags=CompileFlag.COUNT_KNOWN)
        run.passes_time(MS)
    with run.span(Kind.BACKWARD):
        if later_ns:
            flags = CompileFlag.COUNT_KNOWN | CompileFlag.LATER_PART
            run.leaf(Kind.COMPILE, later_ns, site=site, value=times, flags=flags)
        run.passes_time(MS)
    run.update(optimizer)


def test_first_and_later_versions_by_line(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer, here, there = run.optimizer(), run.site(50), run.site(60)
    compiling_step(run, optimizer, here, 400 * MS, 0, later_ns=100 * MS)
    compiling_step(run, optimizer, there, 50 * MS, 0)
    for times in (1, 2):
        run.learn(optimizer)
        compiling_step(run, optimizer, here, 200 * MS, times, later_ns=20 * MS)
    run.thread = 1
    run.leaf(Kind.COMPILE, 5 * MS, site=there)  # another thread's does not stop training
    run.thread = 0
    run.learn(optimizer)
    assert run.summary(tmp_path).compilations == [
        Compilation("train.py:50", 3, 0.94, 2, 0.44, 3),
        Compilation("train.py:60", 1, 0.05, 0, 0.0, 1),
    ]


def test_the_first_version_for_training_is_not_compiled_again(tmp_path: Path) -> None:
    run = FakeRun()
    optimizer, site = run.optimizer(), run.site(50)
    run.learn(optimizer)
    with run.span(Kind.FORWARD, flags=LEARNS):
        mode = CompileFlag.COUNT_KNOWN | CompileFlag.OTHER_MODE
        run.leaf(Kind.COMPILE, 400 * MS, site=site, value=1, flags=mode)
    with run.span(Kind.BACKWARD):
        later = CompileFlag.COUNT_KNOWN | CompileFlag.LATER_PART
        run.leaf(Kind.COMPILE, 100 * MS, site=site, value=1, flags=later)
    run.update(optimizer)
    for times, flag in ((2, CompileFlag.OTHER_NUMBER), (3, CompileFlag.OTHER_NUMBER)):
        with run.span(Kind.FORWARD, flags=LEARNS):
            flags = CompileFlag.COUNT_KNOWN | flag
            run.leaf(Kind.COMPILE, 50 * MS, site=site, value=times, flags=flags)
        with run.span(Kind.BACKWARD):
            run.passes_time(MS)
        run.update(optimizer)
    run.learn(optimizer)
    [record] = run.summary(tmp_path).compilations
    assert (record.count, record.again, record.again_s) == (3, 2, 0.1)
    assert record.again_for == [NUMBER]
