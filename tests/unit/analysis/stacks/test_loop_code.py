"""The loop's own code: what of it is torch that computes, and what comes only once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.events import ITEM_ON_CPU, MS, FakeRun
from support.stack_samples import sample, stack

from trainprof.analysis.summary.code import HotLine, hottest
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.ledger import BEFORE_BACKWARD, BETWEEN_FORWARDS, IN_CLOSURE
from trainprof.record.schema import CompileFlag, Kind, StackFlag, SyncFlag

STEPS, LONG = 30, 60
OPERATOR = StackFlag.KNOWN | StackFlag.RUNS | StackFlag.OPERATOR
PYTHON = {"flags": StackFlag.KNOWN, "held_ns": MS}
NUMPY = SyncFlag.NUMPY | SyncFlag.ON_CPU


Step = Callable[[FakeRun, int, Callable[[], None]], None]


def usual(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    run.forward(5 * MS)
    own_code()
    run.backward(5 * MS)
    run.update(optimizer, MS)


def behind_the_update(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    usual(run, optimizer, lambda: None)
    own_code()


def of_gradients(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    """As a loss of a differential equation's residuals does."""
    run.forward(5 * MS)
    run.backward(2 * MS)
    own_code()
    run.backward(5 * MS)
    run.update(optimizer, MS)


def in_closure(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    """As Lightning and LBFGS have it."""
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        run.forward(5 * MS)
        own_code()
        run.leaf(Kind.ZERO_GRAD, MS)
        run.backward(5 * MS)
        run.passes_time(MS)


def between_forwards(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    """As where an encoder and a decoder are called one by one."""
    run.forward(5 * MS)
    own_code()
    usual(run, optimizer, lambda: None)


def train(
    run: FakeRun,
    tmp_path: Path,
    *,
    flags: int = OPERATOR,
    held_ns: int = 0,
    reads: tuple[int, ...] = (),
    step: Step = usual,
    python: int = 0,
) -> tuple[RunSummary, HotLine]:
    """Steps with 10 ms of the loop's own code, sampled in its midst; some of ten meet Python.

    Returns the summary, and the line of that code.
    """
    loader, optimizer, line = run.loader(), run.optimizer(), run.site(50)
    seen, samples = stack(run, (12, "dice_loss"), (50, "train")), itertools.count()

    def own_code() -> None:
        for read in reads:
            run.leaf(Kind.SYNC, 0, site=line, flags=read)
        run.passes_time(5 * MS)
        is_python = next(samples) % 10 < python
        sample(run, seen, **PYTHON if is_python else {"flags": flags, "held_ns": held_ns})
        run.passes_time(5 * MS)

    run.iterate(loader)
    for _ in range(STEPS):
        run.next(loader, MS)
        step(run, optimizer, own_code)
    run.stop(loader)
    summary = run.summary(tmp_path)
    [line] = [line for line in summary.part_lines if line.function == "dice_loss"]
    return summary, line


@pytest.mark.parametrize(
    ("how", "part", "torch"),
    [
        ({}, "loss", None),
        # Between two operators Python is met, more often on a busy machine.
        ({"python": 4}, "loss", None),
        ({"python": 6}, "other", 0.0),
        # Elsewhere than before a backward it is no loss.
        ({"step": behind_the_update}, "other", 1.0),
        # What computes with arrays made of tensors is not torch.
        ({"reads": (ITEM_ON_CPU,) * 8}, "other", 0.0),  # a loop over elements
        ({"reads": (NUMPY,)}, "other", 0.0),
        # Nor what sleeps, or holds the GIL.
        ({"flags": StackFlag.KNOWN}, "other", 0.0),
        ({"flags": StackFlag.KNOWN | StackFlag.RUNS}, "other", 0.0),  # a library without torch
        (PYTHON, "other", 0.0),
    ],
)
def test_a_loss_of_torchs_functions_is_the_models_own_work(
    tmp_path: Path, how: dict[str, Any], part: str, torch: float | None
) -> None:
    summary, line = train(FakeRun(), tmp_path, **how)
    assert (line.part, line.torch_share) == (part, torch)
    spent_s, step_s = summary.ledger.seconds, summary.training.per_step_s
    assert summary.loss_in_loop_s == spent_s["loss"]
    assert spent_s[part] == pytest.approx(STEPS * 0.010, rel=0.01)
    assert spent_s["other" if part == "loss" else "loss"] == pytest.approx(0, abs=1e-6)
    assert step_s[part] == pytest.approx(0.010, rel=0.01)
    assert line.seconds == pytest.approx(STEPS * 0.010, rel=0.01)
    assert sum(spent_s.values()) == pytest.approx(summary.ledger.wall_s)


def test_python_beside_a_loss_stays_python(tmp_path: Path) -> None:
    """Of the 10 ms between forward and backward, a metric takes 4."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    loss, metric = (stack(run, (n, name), (50, "train")) for n, name in ((12, "dice"), (7, "rank")))
    run.iterate(loader)
    for _ in range(STEPS):
        run.next(loader, MS)
        run.forward(5 * MS)
        for seen, how in [(loss, {"flags": OPERATOR})] * 3 + [(metric, PYTHON)] * 2:
            run.passes_time(MS)
            sample(run, seen, **how)
            run.passes_time(MS)
        run.backward(5 * MS)
        run.update(optimizer, MS)
    run.stop(loader)
    summary = run.summary(tmp_path)
    found = {line.part: (line.function, line.seconds) for line in summary.part_lines}
    assert found["loss"] == ("dice", pytest.approx(STEPS * 0.006, rel=0.01))
    assert found["other"] == ("rank", pytest.approx(STEPS * 0.004, rel=0.01))
    assert summary.training.per_step_s["loss"] == pytest.approx(0.006, rel=0.01)
    [finding] = summary.findings
    assert (finding.id, finding.site) == ("python_in_loop", "train.py:7")
    assert finding.evidence["python_s"] == pytest.approx(STEPS * 0.004, rel=0.01)


@pytest.mark.parametrize(
    ("step", "place"),
    [
        (of_gradients, BEFORE_BACKWARD),
        (in_closure, IN_CLOSURE),
        (between_forwards, BETWEEN_FORWARDS),
    ],
)
def test_a_loss_is_known_wherever_it_stands(tmp_path: Path, step: Step, place: str) -> None:
    summary, line = train(FakeRun(), tmp_path, step=step)
    assert (line.part, summary.loss_by_place) == ("loss", {place: summary.loss_in_loop_s})
    assert summary.loss_in_loop_s == pytest.approx(STEPS * 0.010, rel=0.05)
    assert summary.ledger.other_by_place.get(place, 0.0) == pytest.approx(0, abs=1e-3)
    for number, how in enumerate(({"flags": StackFlag.KNOWN}, {"reads": (NUMPY,)})):
        summary, line = train(FakeRun(), tmp_path / str(number), step=step, **how)
        assert (line.part, line.torch_share) == ("other", 0.0)
        assert summary.ledger.other_by_place[place] == pytest.approx(STEPS * 0.010, rel=0.05)
        assert (summary.loss_in_loop_s, summary.loss_by_place) == (0.0, {})


@pytest.mark.parametrize(
    ("step", "flags", "bottleneck", "share"),
    [
        (usual, OPERATOR, "compute", 21 / 22),
        (usual, StackFlag.KNOWN, "host", 10 / 22),
        (behind_the_update, OPERATOR, "host", 10 / 22),
    ],
)
def test_to_the_verdict_a_loss_of_torchs_functions_is_computing(
    tmp_path: Path, step: Step, flags: int, bottleneck: str, share: float
) -> None:
    verdict = train(FakeRun(), tmp_path, step=step, flags=flags)[0].verdict
    assert verdict.bottleneck == bottleneck
    assert verdict.share == pytest.approx(share, rel=0.01)


def python_at(run: FakeRun, ns: int, line: int) -> None:
    """Sampled every 40 ms."""
    seen = stack(run, (line, "train"))
    for _ in range(ns // (40 * MS)):
        run.passes_time(20 * MS)
        sample(run, seen)
        run.passes_time(20 * MS)


def set_up(
    run: FakeRun,
    tmp_path: Path,
    python_ms: Mapping[int, int],
    compiling_ms: Mapping[int, int] | None = None,
    *,
    usual_ms: int = 0,
) -> RunSummary:
    """Steps of 10 ms; by step, at line 50, Python or compiling; line 60 in every step."""
    loader, optimizer, site = run.loader(), run.optimizer(), run.site(50)
    run.iterate(loader)
    for step in range(LONG):
        run.next(loader, MS)
        run.forward(5 * MS)
        if step in python_ms:
            python_at(run, python_ms[step] * MS, 50)
        if step in (compiling_ms or {}):
            with run.span(Kind.COMPILE, site=site, flags=CompileFlag.COUNT_KNOWN):
                python_at(run, (compiling_ms or {})[step] * MS, 50)
                run.leaf(Kind.GC, 7 * MS)
        if usual_ms:
            python_at(run, usual_ms * MS, 60)
        run.backward(4 * MS)
        run.update(optimizer, MS)
    run.stop(loader)
    return run.summary(tmp_path)


def test_what_the_first_steps_have_beyond_later_ones_comes_once(tmp_path: Path) -> None:
    summary = set_up(FakeRun(), tmp_path, {0: 4000}, usual_ms=40)
    assert summary.once_in_loop_s == pytest.approx(4.0, rel=0.001)
    line = hottest(summary.part_lines, "other")
    assert (line.site, line.share, line.samples) == ("train.py:60", 1.0, LONG - 1)
    assert line.seconds == pytest.approx(LONG * 0.040, rel=0.01)


@pytest.mark.parametrize(
    "python_ms",
    [
        pytest.param(dict.fromkeys(range(0, LONG, 20), 400), id="now and then"),
        pytest.param(dict.fromkeys(range(LONG), 40), id="in every step"),
        pytest.param({30: 4000}, id="later"),
        pytest.param(dict.fromkeys(range(24), 40), id="in a first phase of training"),
        pytest.param({}, id="none"),
    ],
)
def test_what_comes_again_or_later_is_no_matter_of_the_first_steps(
    tmp_path: Path, python_ms: dict[int, int]
) -> None:
    summary = set_up(FakeRun(), tmp_path, python_ms)
    assert summary.once_in_loop_s == pytest.approx(0.0, abs=1e-3)
    line = hottest(summary.part_lines, "other")
    looks = sum(ns // 40 for ns in python_ms.values())
    assert (0 if line is None else line.samples) == looks


def test_compiling_is_none_of_the_loops_code(tmp_path: Path) -> None:
    """Its collections are not either, and no second is counted twice."""
    summary = set_up(FakeRun(), tmp_path, {}, {0: 1000, 40: 800}, usual_ms=40)
    spent_s = summary.ledger.seconds
    assert (summary.once_in_loop_s, spent_s["compile"], spent_s["gc"]) == (0.0, 1.8, 0.014)
    assert spent_s["other"] == pytest.approx(LONG * 0.040)
    line = hottest(summary.part_lines, "other")
    assert (line.site, line.share) == ("train.py:60", 1.0)
