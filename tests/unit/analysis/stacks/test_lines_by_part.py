"""Which lines the time goes to, from planted looks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.stacks.hot_lines import MAKING, hottest, lines_met
from trainprof.analysis.stacks.samples import MIN_SAMPLES, least_share
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import FETCHED, Kind, LookFlag, Topic

STEPS = 30


def stack(run: FakeRun, *frames: tuple[int, str] | int) -> int:
    sites = [
        run.text(Topic.SITE, ["train.py", *frame]) if isinstance(frame, tuple) else frame
        for frame in frames
    ]
    return run.text(Topic.STACK, sites)


def look(run: FakeRun, seen: int, *, late: int = 0) -> None:
    """A look taken now, that was wanted some ns earlier."""
    flags = LookFlag.KNOWN if not late else 0
    run.record(Kind.LOOK, run.now - late, run.now, site=seen, flags=flags)


def train(
    run: FakeRun, tmp_path: Path, *in_loop: int, known: float = 1.0, late: int = 4 * MS
) -> RunSummary:
    """Steps of 30 ms: 20 in the optimizer, 10 in Python behind it, looked at once in each.

    Args:
        in_loop: Where the looks at the Python meet it, in turn.
        known: Of them so many come in time, the first ones.
        late: The others by so many ns.
    """
    loader, optimizer = run.loader(), run.optimizer()
    of_update = stack(run, (52, "train"))
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            run.passes_time(10 * MS)
            look(run, of_update)
            run.passes_time(10 * MS)
        run.passes_time(5 * MS)
        look(run, in_loop[step % len(in_loop)], late=0 if step < known * STEPS else late)
        run.passes_time(5 * MS)
    run.stop(loader)
    return run.summary(tmp_path)


def test_python_between_the_parts_is_told_by_line_and_by_what_called_it(tmp_path: Path) -> None:
    run = FakeRun()
    found = train(run, tmp_path, stack(run, (9, "score"), (57, "train")))
    line = hottest(found.part_lines, "other")
    assert (line.site, line.function, line.called_from) == ("train.py:9", "score", ["train.py:57"])
    assert (line.share, line.looks) == (1.0, STEPS)
    assert line.seconds == pytest.approx(found.ledger.seconds["other"], rel=0.1)
    of_update = hottest(found.part_lines, "optimizer")
    assert of_update.site == "train.py:52"


def test_a_lambda_is_part_of_the_function_that_runs_it(tmp_path: Path) -> None:
    run = FakeRun()
    seen = [stack(run, (10 + at, "<lambda>"), (9, "build"), (57, "train")) for at in range(3)]
    line = hottest(train(run, tmp_path, *seen).part_lines, "other")
    assert (line.function, line.share, line.called_from) == ("build", 1.0, ["train.py:57"])


def test_looks_that_came_too_late_say_where_it_ends(tmp_path: Path) -> None:
    run = FakeRun()
    found = train(run, tmp_path, stack(run, (57, "train")), known=0, late=49 * MS // 10)
    line = hottest(found.part_lines, "other")
    assert (line.site, line.is_end, line.share, line.seconds) == ("train.py:57", True, 1.0, None)
    assert line.waits_share == 0.0
    assert hottest(found.part_lines, "optimizer") is not None


def test_where_most_looks_came_too_late_a_line_takes_so_much_at_least(tmp_path: Path) -> None:
    run = FakeRun()
    found = train(run, tmp_path, stack(run, (57, "train")), known=0.4)
    line = hottest(found.part_lines, "other")
    assert (line.share, line.is_at_least) == (pytest.approx(0.4), True)
    whole = hottest(found.part_lines, "optimizer")
    assert not whole.is_at_least


@pytest.mark.parametrize(
    ("met", "is_known"),
    [
        ((6, 6, 5), False),
        ((7, 5, 2), False),
        ((10, 2, 1), True),
        ((4, 0, 0), False),
        ((5, 0, 0), True),
        ((60, 35, 20), True),
    ],
)
def test_a_line_is_told_from_its_function_where_looks_meet_it_far_more_often(
    met: tuple[int, ...], is_known: bool
) -> None:
    lines = Counter({((f"train.py:{52 + at}", "stats"),): n for at, n in enumerate(met) if n})
    [line] = lines_met("other", lines, max(lines.total(), MIN_SAMPLES), 1.0)
    assert (line.site, line.is_line_known) == ("train.py:52", is_known)


def test_what_a_line_takes_at_least_is_more_sure_the_more_looks_there_were() -> None:
    assert least_share(0.25, 24) == pytest.approx(0.118, abs=1e-3)
    assert least_share(0.25, 2_400) == pytest.approx(0.233, abs=1e-3)
    assert least_share(1.0, 8) == pytest.approx(2 / 3)
    assert least_share(0.0, 24) == 0.0
    assert least_share(0.0, 0) == 0.0


def test_a_line_that_late_looks_meet_well_inside_of_it_is_likely_the_one(tmp_path: Path) -> None:
    run = FakeRun()
    found = train(run, tmp_path, stack(run, (9, "score")), known=0, late=MS)
    line = hottest(found.part_lines, "other")
    assert (line.site, line.is_likely, line.seconds) == ("train.py:9", True, None)
    assert not line.is_line_known  # where it let go at last


def test_a_line_that_most_late_looks_do_not_meet_is_not_named(tmp_path: Path) -> None:
    run = FakeRun()
    lines = [stack(run, (line, name)) for line, name in ((9, "score"), (12, "draw"), (15, "log"))]
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        run.update(optimizer)
        run.passes_time(5 * MS)
        look(run, lines[step % 3], late=MS)
    run.stop(loader)
    assert hottest(run.summary(tmp_path).part_lines, "other") is None


def test_few_looks_name_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MIN_SAMPLES < STEPS
    monkeypatch.setattr("trainprof.analysis.stacks.hot_lines.MIN_SAMPLES", STEPS + 1)
    run = FakeRun()
    assert train(run, tmp_path, stack(run, (57, "train"))).part_lines == []


def test_the_making_of_batches_is_told_by_line(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    decodes, flips = (stack(run, (line, "__getitem__"), FETCHED, (50, "train")) for line in (7, 8))
    collates = stack(run, FETCHED, (50, "train"))
    run.iterate(loader)
    for step in range(STEPS):
        with (
            run.span(Kind.LOADER_NEXT, site=loader, value=step + 1),
            run.span(Kind.FETCH, site=loader, value=4),
        ):
            run.passes_time(5 * MS)
            look(run, flips if step % 3 == 0 else collates if step % 3 == 1 else decodes)
            run.passes_time(5 * MS)
        run.learn(optimizer)
    run.stop(loader)
    [found] = run.summary(tmp_path).loaders
    [line] = found.hot_lines  # of one function that with most looks
    assert (line.part, line.function, line.looks) == (MAKING, "__getitem__", 2 * STEPS // 3)
    assert line.site in ("train.py:7", "train.py:8")
    assert (line.share, line.line_share) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert line.called_from == ["train.py:50"]
    assert line.seconds == pytest.approx(STEPS * 0.010 * 2 / 3)


def test_a_lost_text_names_no_line(tmp_path: Path) -> None:
    run = FakeRun()
    assert hottest(train(run, tmp_path, 4711).part_lines, "other") is None
