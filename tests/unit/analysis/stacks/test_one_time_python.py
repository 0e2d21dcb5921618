"""What of the loop's own code comes but once is told apart from what comes again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.events import LEARNS, MS, US, FakeRun

from trainprof.analysis.stacks.hot_lines import hottest
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import CompileFlag, Kind, LookFlag, Topic

STEPS = 60


def sampled_threads(run: FakeRun, ns: int, line: int) -> None:
    """Python for so long, looked at every 40 ms."""
    seen = run.text(Topic.STACK, [run.text(Topic.SITE, ["train.py", line, "train"])])
    for _ in range(ns // (40 * MS)):
        run.passes_time(20 * MS)
        run.record(Kind.LOOK, run.now, run.now, site=seen, flags=LookFlag.KNOWN)
        run.passes_time(20 * MS)


def train(
    run: FakeRun,
    tmp_path: Path,
    python_ms: Mapping[int, int],
    compiling_ms: Mapping[int, int] | None = None,
    *,
    usual_ms: int = 0,
) -> RunSummary:
    """Steps of 10 ms.

    Args:
        python_ms: By step: at line 50, between forward and backward.
        compiling_ms: Likewise, by torch.compile.
        usual_ms: At line 60, in every step.
    """
    loader, optimizer, site = run.loader(), run.optimizer(), run.site(50)
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        run.forward(5 * MS)
        if step in python_ms:
            sampled_threads(run, python_ms[step] * MS, 50)
        if step in (compiling_ms or {}):
            with run.span(Kind.COMPILE, site=site, flags=CompileFlag.TOLD):
                sampled_threads(run, (compiling_ms or {})[step] * MS, 50)
                run.leaf(Kind.GC, 7 * MS)
        if usual_ms:
            sampled_threads(run, usual_ms * MS, 60)
        run.backward(4 * MS)
        run.update(optimizer, MS)
    run.stop(loader)
    return run.summary(tmp_path)


def test_what_the_first_steps_have_beyond_later_ones_comes_once(tmp_path: Path) -> None:
    found = train(FakeRun(), tmp_path, {0: 4000}, usual_ms=40)
    assert found.once_in_loop_s == pytest.approx(4.0, rel=0.001)
    line = hottest(found.part_lines, "other")
    assert (line.site, line.share, line.looks) == ("train.py:60", 1.0, STEPS - 1)
    assert line.seconds == pytest.approx(STEPS * 0.040, rel=0.01)


@pytest.mark.parametrize(
    "python_ms",
    [
        pytest.param(dict.fromkeys(range(0, STEPS, 20), 400), id="now and then"),
        pytest.param(dict.fromkeys(range(STEPS), 40), id="in every step"),
        pytest.param({30: 4000}, id="later"),
        pytest.param(dict.fromkeys(range(24), 40), id="in a first phase of training"),
        pytest.param({}, id="none"),
    ],
)
def test_what_comes_again_or_later_is_no_matter_of_the_first_steps(
    tmp_path: Path, python_ms: dict[int, int]
) -> None:
    found = train(FakeRun(), tmp_path, python_ms)
    assert found.once_in_loop_s == pytest.approx(0.0, abs=1e-3)
    line = hottest(found.part_lines, "other")
    looks = sum(ns // 40 for ns in python_ms.values())
    assert (0 if line is None else line.looks) == looks


@pytest.mark.parametrize(
    ("python_ms", "once_s", "looks"),
    [
        pytest.param({0: 4000} | dict.fromkeys(range(1, 24), 40), 3.96, 14, id="and then a phase"),
        pytest.param({step: 40 * (24 - step) for step in range(24)}, 12.0, 0, id="less and less"),
        pytest.param(dict.fromkeys(range(8), 400), 3.2, 0, id="in a few steps"),
    ],
)
def test_what_is_set_up_in_the_first_steps_comes_once_however_many_lead_up(
    tmp_path: Path, python_ms: dict[int, int], once_s: float, looks: int
) -> None:
    found = train(FakeRun(), tmp_path, python_ms)
    assert found.training.warmup_excluded == max(python_ms) + 1
    assert found.once_in_loop_s == pytest.approx(once_s, rel=0.01)
    line = hottest(found.part_lines, "other")
    assert (0 if line is None else line.looks) == looks


def test_compiling_comes_once_whenever_it_comes(tmp_path: Path) -> None:
    """Its collections are none of the loop's code, and no second is counted twice."""
    found = train(FakeRun(), tmp_path, {}, {0: 1000, 40: 800}, usual_ms=40)
    assert found.once_in_loop_s == pytest.approx(1.8, rel=0.001)
    line = hottest(found.part_lines, "other")
    assert (line.site, line.share) == ("train.py:60", 1.0)


def test_compiling_inside_of_a_part_or_of_evaluation_is_none_of_the_loops(tmp_path: Path) -> None:
    run = FakeRun()
    loader, validation, optimizer = run.loader(41), run.loader(43), run.optimizer()
    run.train_pass(loader, optimizer, 30)
    with run.span(Kind.FORWARD, flags=LEARNS):
        run.leaf(Kind.COMPILE, 300 * MS, flags=CompileFlag.TOLD)
    run.backward()
    run.update(optimizer)
    run.iterate(validation)
    run.next(validation)
    run.leaf(Kind.COMPILE, 300 * MS, flags=CompileFlag.TOLD)
    run.forward(flags=0)
    run.stop(validation)
    run.train_pass(loader, optimizer, 30)
    found = run.summary(tmp_path)
    assert found.once_in_loop_s == pytest.approx(0.0, abs=30 * US / 1e9)
