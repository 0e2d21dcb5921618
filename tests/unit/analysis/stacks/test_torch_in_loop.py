"""Which of the loop's own code is torch that computes, from planted looks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from support.events import ITEM_ON_CPU, LEARNS, MS, FakeRun

from trainprof.analysis.stacks.hot_lines import hottest
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.ledger import BEFORE_BACKWARD, BETWEEN_FORWARDS, IN_CLOSURE
from trainprof.record.schema import ForwardFlag, Kind, LookFlag, SyncFlag, Topic

STEPS = 30
OPERATOR = LookFlag.KNOWN | LookFlag.RUNS | LookFlag.OPERATOR
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


def behind_zero_grad(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    run.forward(5 * MS)
    run.leaf(Kind.ZERO_GRAD, MS)
    own_code()
    run.backward(5 * MS)
    run.update(optimizer, MS)


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


def between_forwards(
    run: FakeRun, optimizer: int, own_code: Callable[[], None], flags: int = LEARNS
) -> None:
    """As where an encoder and a decoder are called one by one."""
    run.forward(5 * MS, flags=flags)
    own_code()
    usual(run, optimizer, lambda: None)


def behind_a_teacher(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    between_forwards(run, optimizer, own_code, flags=ForwardFlag.TRAINING)


def ahead_in_closure(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
    with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
        own_code()
        usual(run, optimizer, lambda: None)


def train(
    run: FakeRun,
    tmp_path: Path,
    *,
    flags: int = OPERATOR,
    held_ns: int = 0,
    reads: tuple[int, ...] = (),
    read_until: int | None = None,
    step: Step = usual,
    python: int = 0,
    steps: int = STEPS,
) -> tuple[RunSummary, HotLine]:
    """Steps with 10 ms of the loop's own code, looked at in its midst.

    Args:
        flags, held_ns: Of those looks.
        reads: Of tensors, ahead of them in the same gap.
        read_until: When they were noted no longer.
        step: Where in a step it stands.
        python: Of ten looks so many meet Python instead.
        steps: How many.
    """
    loader, optimizer, line = run.loader(), run.optimizer(), run.site(50)
    frames = [run.text(Topic.SITE, ["train.py", *at]) for at in ((12, "dice_loss"), (50, "train"))]
    seen = run.text(Topic.STACK, frames)

    looks = itertools.count()

    def own_code() -> None:
        for read in reads if read_until is None or run.now < read_until else ():
            run.leaf(Kind.SYNC, 0, site=line, flags=read)
        run.passes_time(5 * MS)
        told = (LookFlag.KNOWN, MS) if next(looks) % 10 < python else (flags, held_ns)
        run.record(Kind.LOOK, run.now, run.now, site=seen, value=told[1], flags=told[0])
        run.passes_time(5 * MS)

    run.iterate(loader)
    for _ in range(steps):
        run.next(loader, MS)
        step(run, optimizer, own_code)
    run.stop(loader)
    summary = run.summary(tmp_path)
    found = hottest(summary.part_lines, "other")
    assert found is not None
    return summary, found


def test_a_loss_of_torchs_functions_is_the_models_own_work(tmp_path: Path) -> None:
    summary, line = train(FakeRun(), tmp_path)
    assert (line.function, line.torch_share, line.loss_share) == ("dice_loss", 1.0, 1.0)
    assert summary.loss_in_loop_s == pytest.approx(STEPS * 0.010, rel=0.05)


@pytest.mark.parametrize(("python", "share"), [(4, 1.0), (6, 0.0)])
def test_a_line_that_is_mostly_torch_is_so_as_a_whole(
    tmp_path: Path, python: int, share: float
) -> None:
    """Between two operators Python is met, more often on a busy machine."""
    summary, line = train(FakeRun(), tmp_path, python=python)
    assert line.loss_share == share
    assert summary.loss_in_loop_s == pytest.approx(share * STEPS * 0.010, rel=0.05)


@pytest.mark.parametrize(
    ("step", "place"),
    [
        (behind_zero_grad, BEFORE_BACKWARD),
        (of_gradients, BEFORE_BACKWARD),
        (in_closure, IN_CLOSURE),
        (between_forwards, BETWEEN_FORWARDS),
    ],
)
def test_a_loss_is_known_wherever_it_stands(tmp_path: Path, step: Step, place: str) -> None:
    summary, line = train(FakeRun(), tmp_path, step=step)
    assert (line.torch_share, line.loss_share) == (1.0, 1.0)
    assert summary.loss_in_loop_s == pytest.approx(STEPS * 0.010, rel=0.05)
    assert summary.loss_by_place == {place: summary.loss_in_loop_s}
    assert summary.ledger.other_by_place[place] == pytest.approx(STEPS * 0.010, rel=0.05)


@pytest.mark.parametrize("step", [behind_zero_grad, of_gradients, in_closure, between_forwards])
def test_python_is_none_wherever_it_stands(tmp_path: Path, step: Step) -> None:
    for flags, reads in ((LookFlag.KNOWN, ()), (OPERATOR, (NUMPY,))):
        summary, line = train(FakeRun(), tmp_path, step=step, flags=flags, reads=reads)
        assert (line.torch_share, line.loss_share) == (0.0, 0.0)
        assert (summary.loss_in_loop_s, summary.loss_by_place) == (0.0, {})


def test_what_was_an_array_ahead_of_zero_grad_is_no_tensor_behind_it(tmp_path: Path) -> None:
    def step(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
        run.forward(5 * MS)
        run.leaf(Kind.SYNC, 0, flags=NUMPY)
        run.leaf(Kind.ZERO_GRAD, MS)
        own_code()
        run.backward(5 * MS)
        run.update(optimizer, MS)

    summary, _ = train(FakeRun(), tmp_path, step=step)
    assert summary.loss_in_loop_s == 0.0


@pytest.mark.parametrize("step", [behind_the_update, ahead_in_closure, behind_a_teacher])
def test_what_torch_computes_elsewhere_is_no_loss(tmp_path: Path, step: Step) -> None:
    summary, line = train(FakeRun(), tmp_path, step=step)
    assert (line.torch_share, line.loss_share) == (1.0, 0.0)
    assert summary.loss_in_loop_s == 0.0


@pytest.mark.parametrize(
    ("reads", "is_torch"),
    [
        ((ITEM_ON_CPU,), True),  # a value to be shown
        ((ITEM_ON_CPU,) * 8, False),  # a loop over elements
        ((NUMPY,), False),
        ((SyncFlag.TOLIST | SyncFlag.ON_CPU,), False),
    ],
)
def test_what_computes_with_arrays_made_of_tensors_is_not_torch(
    tmp_path: Path, reads: tuple[int, ...], is_torch: bool
) -> None:
    summary, line = train(FakeRun(), tmp_path, reads=reads)
    assert (line.torch_share == 1.0) is is_torch
    assert (summary.loss_in_loop_s == 0.0) is not is_torch


@pytest.mark.parametrize(
    ("flags", "held_ns"),
    [
        (LookFlag.KNOWN, 0),  # asleep
        (LookFlag.KNOWN | LookFlag.RUNS, 0),  # in the code of a library that does not use torch
        (LookFlag.KNOWN, 5 * MS),  # Python
        (LookFlag.KNOWN | LookFlag.WAITS, 0),
    ],
)
def test_what_sleeps_or_holds_the_interpreter_is_not_torch(
    tmp_path: Path, flags: int, held_ns: int
) -> None:
    summary, line = train(FakeRun(), tmp_path, flags=flags, held_ns=held_ns)
    assert (line.torch_share, line.loss_share, summary.loss_in_loop_s) == (0.0, 0.0, 0.0)


def stop_counting(run: FakeRun, after_steps: int) -> int:
    """Notes that reads of a kind are counted no longer, and returns from when on."""
    until = run.now + after_steps * 22 * MS
    run.text(Topic.ENVIRONMENT, {"reads_counted_until": until, "flag": int(SyncFlag.ITEM)})
    return until


@pytest.mark.parametrize(("flags", "share"), [(OPERATOR, 1.0), (LookFlag.KNOWN, 0.0)])
def test_what_a_line_computed_while_reads_were_counted_it_computes_later(
    tmp_path: Path, flags: int, share: float
) -> None:
    run = FakeRun()
    stop_counting(run, 3)
    summary, line = train(run, tmp_path, flags=flags)
    assert (line.torch_share, line.loss_share) == (share, share)
    assert summary.loss_in_loop_s == pytest.approx(share * STEPS * 0.010, rel=0.05)


def test_a_line_that_read_elements_does_so_when_they_are_counted_no_longer(tmp_path: Path) -> None:
    run = FakeRun()
    until = stop_counting(run, 3)
    summary, line = train(run, tmp_path, reads=(ITEM_ON_CPU,) * 8, read_until=until)
    assert (line.torch_share, summary.loss_in_loop_s) == (0.0, 0.0)


def test_of_a_line_that_was_met_only_later_nothing_is_known(tmp_path: Path) -> None:
    run = FakeRun()
    stop_counting(run, 0)
    summary, line = train(run, tmp_path)
    assert (line.torch_share, line.loss_share, summary.loss_in_loop_s) == (None, None, None)


@pytest.mark.parametrize(("flags", "reads"), [(LookFlag.KNOWN, ()), (OPERATOR, (NUMPY,))])
def test_but_that_it_is_python_where_its_looks_tell_so(
    tmp_path: Path, flags: int, reads: tuple[int, ...]
) -> None:
    run = FakeRun()
    stop_counting(run, 0)
    summary, line = train(run, tmp_path, flags=flags, reads=reads)
    assert (line.torch_share, summary.loss_in_loop_s) == (0.0, 0.0)


def test_what_is_not_known_is_left_out_of_the_rest(tmp_path: Path) -> None:
    """One line is met from the beginning, another one only when reads are counted no longer."""
    run, seen = FakeRun(), 0

    def step(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
        usual(run, optimizer, own_code)
        if run.now >= until:
            run.passes_time(5 * MS)
            run.record(Kind.LOOK, run.now, run.now, site=seen, flags=OPERATOR)
            run.passes_time(5 * MS)

    until = stop_counting(run, STEPS // 2)
    seen = run.text(Topic.STACK, [run.text(Topic.SITE, ["train.py", 70, "average"])])
    summary, line = train(run, tmp_path, step=step)
    assert (line.function, line.torch_share) == ("dice_loss", 1.0)
    assert [one.torch_share for one in summary.part_lines if one.function == "average"] == [None]
    other_s = summary.ledger.seconds["other"]
    assert summary.loss_in_loop_s == pytest.approx(other_s, rel=0.05)


def test_to_the_headline_a_loss_of_torchs_functions_is_computing(tmp_path: Path) -> None:
    found = train(FakeRun(), tmp_path)[0].verdict
    assert found.bottleneck == "compute"
    assert found.share == pytest.approx(21 / 22, rel=0.01)


@pytest.mark.parametrize("step", [usual, behind_the_update])
def test_to_the_headline_other_code_of_the_loops_own_stays_python(
    tmp_path: Path, step: Step
) -> None:
    flags = LookFlag.KNOWN if step is usual else OPERATOR
    found = train(FakeRun(), tmp_path, step=step, flags=flags)[0].verdict
    assert found.bottleneck == "host"
    assert "takes 45 % of training time, 10 of 22 ms a step" in found.headline
    assert "made of torch's functions" not in found.headline


def test_python_beside_a_loss_is_told_without_it_and_where_it_is(tmp_path: Path) -> None:
    run = FakeRun()
    metric = run.text(Topic.STACK, [run.text(Topic.SITE, ["train.py", 70, "rank"])])

    def step(run: FakeRun, optimizer: int, own_code: Callable[[], None]) -> None:
        usual(run, optimizer, own_code)
        run.passes_time(4 * MS)
        run.record(Kind.LOOK, run.now, run.now, site=metric, flags=LookFlag.KNOWN)
        run.passes_time(4 * MS)

    told = train(run, tmp_path, step=step)[0].verdict
    # Either has half of the looks, so of the 18 ms as well.
    assert told.headline == (
        "PYTHON-BOUND: Python code between loading, forward, backward and optimizer takes 30 % of "
        "training time, 9 of 30 ms a step, most of it after the update"
    )
