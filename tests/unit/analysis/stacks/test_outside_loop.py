"""What start-up and shutdown go to, from planted stack samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun
from support.stack_samples import sample, stack

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import Kind, StackFlag, Topic

PERIOD = 40 * MS
SCRIPT = (65, "<module>")
MAIN = (59, "main")

# How many samples, what libraries do, and the user's frames, innermost first.
Planted = tuple[int, list[Any] | None, tuple[tuple[int, str], ...]]


def seen(run: FakeRun, libraries: list[Any] | None, frames: tuple[tuple[int, str], ...]) -> int:
    sites = [run.text(Topic.SITE, ["train.py", *frame]) for frame in frames]
    return stack(run, *sites) if libraries is None else run.text(Topic.STACK, [libraries, *sites])


def plant(run: FakeRun, *planted: Planted) -> None:
    for count, libraries, frames in planted:
        number = seen(run, libraries, frames)
        for _ in range(count):
            run.passes_time(PERIOD - MS)
            sample(run, number)
            run.passes_time(MS)


def trained(run: FakeRun, tmp_path: Path, *at_end: Planted, exit_ns: int = 0) -> RunSummary:
    loader, optimizer = run.loader(), run.optimizer()
    run.train_pass(loader, optimizer, 5)
    plant(run, *at_end)
    run.mark(Kind.PROCESS_END)
    run.passes_time(exit_ns)
    return run.summary(tmp_path)


def test_lines_and_imports_have_the_time_of_their_samples(tmp_path: Path) -> None:
    run, by = FakeRun(), "transformers.LengthGroupedSampler.__init__"
    plant(
        run,
        (1, None, (SCRIPT,)),
        (25, ["torch", None], ((5, "<module>"),)),
        (2, ["", None], ((5, "<module>"),)),
        (50, ["transformers", None], ((7, "<module>"),)),
        (80, [None, by], ((25, "__getitem__"), MAIN, SCRIPT)),
        (40, [None, by], ((24, "__getitem__"), MAIN, SCRIPT)),
        # Too little of each to stand alone: all of it is the line's that calls them.
        *((10, None, ((line, "clean"), (50, "build"), MAIN, SCRIPT)) for line in (70, 71, 72)),
    )
    startup = trained(run, tmp_path).startup
    assert startup is not None
    period_s = PERIOD / 1e9
    lines = [(x.site, x.function, x.called_by, x.called_from) for x in startup.lines]
    assert lines == [
        ("train.py:25", "__getitem__", by, ["train.py:59", "train.py:65"]),
        ("train.py:24", "__getitem__", by, ["train.py:59", "train.py:65"]),
        ("train.py:50", "build", None, ["train.py:59", "train.py:65"]),
    ]
    spent = [x.seconds for x in startup.lines]
    assert spent == pytest.approx([80 * period_s, 40 * period_s, 30 * period_s])
    imports = [(x.package, x.site, x.seconds) for x in startup.imports]
    assert imports == [
        ("transformers", "train.py:7", pytest.approx(50 * period_s)),
        ("torch", "train.py:5", pytest.approx(27 * period_s)),
    ]
    assert startup.exit_s is None


def test_what_has_a_row_of_its_own_and_what_was_not_sampled_is_left_out(tmp_path: Path) -> None:
    run = FakeRun()
    plant(run, (30, None, (SCRIPT,)))
    with run.span(Kind.CHECKPOINT_LOAD, site=run.site(80)):
        plant(run, (30, None, ((80, "<module>"),)))
    run.passes_time(20_000 * MS)  # a process forks, say
    plant(run, (30, None, (SCRIPT,)))
    startup = trained(run, tmp_path).startup
    assert startup is not None
    [line] = startup.lines
    assert (line.site, line.called_by) == ("train.py:65", None)
    assert line.seconds == pytest.approx((59 * PERIOD + 500 * MS) / 1e9, rel=0.02)


def test_one_long_call_counts_for_all_samples_that_were_due_meanwhile(tmp_path: Path) -> None:
    run = FakeRun()
    plant(run, (10, None, (SCRIPT,)))
    number = seen(run, None, ((9, "<module>"),))
    run.passes_time(40 * PERIOD)
    for late in range(40, -1, -1):
        sample(run, number, late=late * PERIOD, flags=StackFlag.KNOWN)
    run.passes_time(MS)
    startup = trained(run, tmp_path).startup
    assert startup is not None
    longest = startup.lines[0]
    assert (longest.site, longest.seconds) == (
        "train.py:9",
        pytest.approx(41 * PERIOD / 1e9, rel=0.03),
    )


def test_shutdown_has_lines_exit_handlers_and_what_comes_after_them(tmp_path: Path) -> None:
    run, handler = FakeRun(), "wandb.finish"
    at_end = ((30, None, ((90, "<module>"),)), (20, [None, handler], ()))
    shutdown = trained(run, tmp_path, *at_end, exit_ns=700 * MS).shutdown
    assert shutdown is not None
    lines = [(x.site, x.function, x.seconds) for x in shutdown.lines]
    assert lines == [
        ("train.py:90", "<module>", pytest.approx(30 * PERIOD / 1e9, rel=0.05)),
        (None, handler, pytest.approx(20 * PERIOD / 1e9)),
    ]
    assert shutdown.exit_s == pytest.approx(0.7)


@pytest.mark.parametrize("count", [0, 5])
def test_a_few_samples_show_nothing(tmp_path: Path, count: int) -> None:
    run = FakeRun()
    plant(run, (count, None, (SCRIPT,)))
    summary = trained(run, tmp_path)
    assert (summary.startup, summary.shutdown) == (None, None)


@pytest.mark.parametrize(
    "text", [[["torch"], 1], [[1, 2], 3], ["torch", 1], [{}, 1], "torch", [[None, None]]]
)
def test_a_damaged_stack_is_no_import(tmp_path: Path, text: Any) -> None:
    run = FakeRun()
    number = run.text(Topic.STACK, text)
    for _ in range(20):
        run.passes_time(PERIOD)
        sample(run, number)
    startup = trained(run, tmp_path).startup
    assert startup is not None
    assert startup.imports == []
