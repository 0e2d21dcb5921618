"""Which lines the time goes to, from planted stack samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun
from support.stack_samples import sample, stack

from trainprof.analysis.stacks.hot_lines import (
    FETCH,
    WORKER_THREAD,
    lines_met,
    lines_of_part,
)
from trainprof.analysis.stacks.samples import MIN_SAMPLES, Stack, least_share, library_call
from trainprof.analysis.summary.code import PREPARATION, HotLine, HottestLine, hottest
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.schema import FETCHED, Kind, Topic

STEPS, HOT_STEPS = 30, 60


def train(
    run: FakeRun, tmp_path: Path, *in_loop: int, known: float = 1.0, late: int = 4 * MS
) -> RunSummary:
    """Steps of 30 ms: 20 in the optimizer, 10 in Python behind it, sampled once in each."""
    loader, optimizer = run.loader(), run.optimizer()
    of_update = stack(run, (52, "train"))
    run.iterate(loader)
    for step in range(STEPS):
        run.next(loader, MS)
        with run.span(Kind.OPTIMIZER_STEP, site=optimizer):
            run.passes_time(10 * MS)
            sample(run, of_update)
            run.passes_time(10 * MS)
        run.passes_time(5 * MS)
        sample(run, in_loop[step % len(in_loop)], late=0 if step < known * STEPS else late)
        run.passes_time(5 * MS)
    run.stop(loader)
    return run.summary(tmp_path)


def test_python_between_the_parts_has_its_line_and_its_callers(tmp_path: Path) -> None:
    run = FakeRun()
    summary = train(run, tmp_path, stack(run, (9, "score"), (57, "train")))
    line = hottest(summary.part_lines, "other")
    assert (line.site, line.function, line.called_from) == ("train.py:9", "score", ["train.py:57"])
    assert (line.share, line.samples) == (1.0, STEPS)
    assert line.seconds == pytest.approx(summary.ledger.seconds["other"], rel=0.1)
    of_update = hottest(summary.part_lines, "optimizer")
    assert of_update.site == "train.py:52"


@pytest.mark.parametrize(("inner", "lines"), [("<lambda>", (10, 11, 12)), ("<listcomp>", (10,))])
def test_what_stands_in_a_function_is_part_of_it(
    tmp_path: Path, inner: str, lines: tuple[int, ...]
) -> None:
    run = FakeRun()
    seen = [stack(run, (line, inner), (9, "build"), (57, "train")) for line in lines]
    line = hottest(train(run, tmp_path, *seen).part_lines, "other")
    assert (line.function, line.share, line.called_from) == ("build", 1.0, ["train.py:57"])


def test_of_late_samples_only_so_much_is_known(tmp_path: Path) -> None:
    def lines(name: str, **how: Any) -> list[HotLine | None]:
        run = FakeRun()
        summary = train(run, tmp_path / name, stack(run, (57, "train")), **how)
        return [hottest(summary.part_lines, part) for part in ("other", "optimizer")]

    end, update = lines("too late", known=0, late=49 * MS // 10)
    assert (end.site, end.is_end, end.share, end.seconds) == ("train.py:57", True, 1.0, None)
    assert end.waits_share == 0.0
    assert update is not None
    least, update = lines("mostly too late", known=0.4)
    assert (least.share, least.is_at_least) == (pytest.approx(0.4), True)
    assert not update.is_at_least
    # Well inside of a line, late ones are likely of that line, which lets go of the GIL at its end.
    likely, _ = lines("inside", known=0, late=MS)
    assert (likely.site, likely.is_likely, likely.seconds) == ("train.py:57", True, None)
    assert not likely.is_line_known


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
def test_a_line_stands_out_of_its_function_where_samples_meet_it_far_more_often(
    met: tuple[int, ...], is_known: bool
) -> None:
    stacks = {Stack(((f"train.py:{52 + at}", "stats"),)): n for at, n in enumerate(met) if n}
    lines = Counter(stacks)
    [line] = lines_met("other", lines, max(lines.total(), MIN_SAMPLES), 1.0)
    assert (line.site, line.is_line_known) == ("train.py:52", is_known)


@pytest.mark.parametrize(
    ("met", "asked", "others"),
    [
        ((60, 33, 7), 100, {"data.py:24": 0.33, "data.py:25": 0.07}),
        ((60, 36, 4), 100, {"data.py:24": 0.36}),
        ((60, 33, 7), 200, {"data.py:24": 0.165, "data.py:25": 0.035}),  # of those that are known
        ((40, 20, 15, 13, 12), 100, {"data.py:24": 0.2, "data.py:25": 0.15, "data.py:26": 0.13}),
        ((100,), 100, {}),
    ],
)
def test_a_function_of_several_slow_lines_has_them_all(
    met: tuple[int, ...], asked: int, others: dict[str, float]
) -> None:
    lines = Counter({Stack(((f"data.py:{23 + at}", "get"),)): n for at, n in enumerate(met)})
    [line] = lines_met("other", lines, asked, 1.0)
    assert line.site == "data.py:23"
    assert line.other_lines == pytest.approx(others)


ZIP = "zipfile (ZipExtFile.read)"
NUMPY = "numpy.lib (NpzFile.__getitem__)"


@pytest.mark.parametrize(
    ("met", "call"),
    [
        ({(NUMPY, ZIP): 80, (NUMPY,): 20}, ZIP),
        ({(NUMPY, ZIP): 40, (NUMPY,): 60}, NUMPY),
        ({(NUMPY, ZIP): 55, (NUMPY,): 45}, NUMPY),  # no more than chance
        ({(NUMPY, ZIP): 30, (): 70}, None),
        ({(NUMPY, ZIP): 7}, None),
        ({(): 100}, None),
    ],
)
def test_a_line_has_the_innermost_call_of_a_library_that_most_of_it_is(
    met: dict[tuple[str, ...], int], call: str | None
) -> None:
    lines = Counter({Stack((("data.py:30", "get"),), calls): n for calls, n in met.items()})
    [line] = lines_met("other", lines, MIN_SAMPLES, 1.0)
    assert line.library_call == call


@pytest.mark.parametrize(
    ("file", "name", "call"),
    [
        ("/opt/lib/python3.11/zipfile.py", "ZipExtFile.read", ZIP),
        ("/opt/lib/python3.12/zipfile/__init__.py", "ZipExtFile.read", ZIP),
        ("/e/lib/python3.11/site-packages/numpy/lib/_npyio_impl.py", "NpzFile.__getitem__", NUMPY),
        ("/usr/lib/python3/dist-packages/PIL/Image.py", "Image.rotate", "PIL.Image (Image.rotate)"),
        ("/e/site-packages/a/_b/c.py", "f.<locals>.g", "a (g)"),
    ],
)
def test_a_call_of_a_library_is_named_by_what_is_public(file: str, name: str, call: str) -> None:
    assert library_call([file, 1, name]) == call


def test_what_a_line_takes_at_least_is_surer_of_more_samples() -> None:
    assert least_share(0.25, 24) == pytest.approx(0.118, abs=1e-3)
    assert least_share(0.25, 2_400) == pytest.approx(0.233, abs=1e-3)
    assert least_share(1.0, 8) == pytest.approx(2 / 3)
    assert least_share(0.0, 24) == 0.0
    assert least_share(0.0, 0) == 0.0


def test_fetches_have_their_lines(tmp_path: Path) -> None:
    run = FakeRun()
    decodes, flips = (stack(run, (line, "__getitem__"), FETCHED, (50, "train")) for line in (7, 8))
    collates = stack(run, FETCHED, (50, "train"))
    loader_entry = fetching(run, tmp_path, flips, collates, decodes)
    assert loader_entry.library_call is None
    [line] = loader_entry.hot_lines  # of one function that with most looks
    assert (line.part, line.function, line.samples) == (PREPARATION, "__getitem__", 2 * STEPS // 3)
    assert line.site in ("train.py:7", "train.py:8")
    assert (line.share, line.line_share) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert line.called_from == ["train.py:50"]
    assert line.seconds == pytest.approx(STEPS * 0.010 * 2 / 3)


def fetching(run: FakeRun, tmp_path: Path, *met: int, **how: Any) -> Loader:
    """Steps with a fetch of 10 ms, sampled once in each, at one stack after the other."""
    loader, optimizer = run.loader(), run.optimizer()
    run.iterate(loader)
    for step in range(STEPS):
        with (
            run.span(Kind.LOADER_NEXT, site=loader, value=step + 1),
            run.span(Kind.FETCH, site=loader, value=4),
        ):
            run.passes_time(5 * MS)
            sample(run, met[step % len(met)], **how)
            run.passes_time(5 * MS)
        run.learn(optimizer)
    run.stop(loader)
    return run.summary(tmp_path).loaders[0]


def rotate(run: FakeRun) -> list[int]:
    return [run.text(Topic.SITE, ["/lib/python3.11/site-packages/PIL/Image.py", 9, "Image.rotate"])]


def test_what_a_librarys_dataset_calls_is_known_though_it_has_no_line(tmp_path: Path) -> None:
    run = FakeRun()
    loader = fetching(run, tmp_path, run.text(Topic.STACK, [rotate(run), FETCHED]))
    assert (loader.hot_lines, loader.library_call) == ([], "PIL.Image (Image.rotate)")


def test_fetches_that_were_met_too_late_seem_to_go_to_the_function_that_they_end_in(
    tmp_path: Path,
) -> None:
    run = FakeRun()
    site = run.text(Topic.SITE, ["train.py", 24, "__getitem__"])
    stack = run.text(Topic.STACK, [rotate(run), site, FETCHED])
    [line] = fetching(run, tmp_path, stack, late=MS).hot_lines
    assert (line.site, line.is_likely, line.line_share) == ("train.py:24", True, None)
    assert line.library_call == "PIL.Image (Image.rotate)"


def test_what_late_samples_have_in_common_is_what_they_seem_to_go_to(tmp_path: Path) -> None:
    """They meet what lets others run next: here the reading of a file, more often than parsing."""
    run = FakeRun()
    reads, parses = (
        stack(run, place, (34, "sessions"), FETCHED) for place in ((24, "lines"), (47, "parse"))
    )
    [line] = fetching(run, tmp_path, reads, reads, parses, late=MS).hot_lines
    assert (line.site, line.function, line.is_likely) == ("train.py:34", "sessions", True)


def hot_lines(tmp_path: Path, *, late_every: int = HOT_STEPS) -> list[HottestLine]:
    """Steps of 40 ms: 20 in the optimizer; behind it 10 at line 9 and 10 at line 12."""
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    update, scores, logs = (
        stack(run, (line, name), (57, "train"))
        for line, name in ((52, "update"), (9, "score"), (12, "log"))
    )
    run.iterate(loader)
    for step in range(HOT_STEPS):
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
    lines = {line.site: line for line in hot_lines(tmp_path)}
    planted = {"train.py:52": 0.5, "train.py:9": 0.25, "train.py:12": 0.25}
    assert lines.keys() == planted.keys()
    for site, share in planted.items():
        low, high = lines[site].share
        assert low <= share + 0.01
        assert high >= share - 0.01
        assert high - low < 0.15
    update = lines["train.py:52"]
    assert (update.function, update.part, update.thread) == ("update", "optimizer", "training")


def test_lines_of_workers_are_of_their_own_time() -> None:
    stacks: Counter[Stack] = Counter({Stack((("data.py:7", "__getitem__"),)): 60, Stack(): 40})
    [line] = lines_of_part(stacks, 100, FETCH, WORKER_THREAD, 0.5, independent=100)
    assert (line.site, line.part, line.thread, line.samples) == ("data.py:7", "fetch", "worker", 60)
    assert line.share[0] < 0.3 < line.share[1]
    assert line.share[1] - line.share[0] < 0.15
