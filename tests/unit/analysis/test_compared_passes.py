"""Runs that went through other passes: what comes once in a pass or a run decides nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.compared_runs import ended_early, read, recorded, steps_of
from support.events import MS

from trainprof.analysis.compared_figures import BETWEEN_PASSES, Metric
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.comparison import Comparison, compare, to_jsonable
from trainprof.analysis.gate import PASSED, TRIPPED
from trainprof.analysis.speedup import FASTER, NO_VISIBLE_DIFFERENCE, SLOWER, UNKNOWN
from trainprof.report import comparison_page
from trainprof.report.comparison_rows import headline

PASS = 50
SAVE = 1000 * MS


def run_of(
    parent: Path,
    name: str,
    seed: int,
    *,
    passes: int,
    steps: int = PASS,
    forward: int = 20 * MS,
    start: int = 0,
    between: int = 0,
) -> ComparedRun:
    """A run of `steps` steps a pass."""
    forwards = steps_of(seed, forward, count=steps * passes)
    return read(
        recorded(parent, name, forwards=forwards, passes=passes, start=start, between=between)
    )


def with_first_start(run: ComparedRun, seconds: float) -> ComparedRun:
    """Workers that live on take so much longer to start for the first pass."""
    assert run.series is not None
    starts_s = run.series.starts_s.copy()
    starts_s[0] += seconds
    return replace(run, series=replace(run.series, starts_s=starts_s))


def metric(found: Comparison, name: str) -> Metric:
    one = found.metric(name)
    assert one is not None, name
    return one


def gate_of(found: Comparison) -> str:
    assert found.gate is not None
    return found.gate.outcome


def page(found: Comparison, *, color: bool = False) -> str:
    return comparison_page.render([found], width=80, color=color)


def test_a_short_run_of_the_same_script_is_as_fast(tmp_path: Path) -> None:
    """One that saves a checkpoint behind each pass, and one ended before the first of them."""
    whole = run_of(tmp_path, "whole", 1, passes=20, between=SAVE)
    short = ended_early(run_of(tmp_path, "short", 2, passes=1, steps=40), length=PASS)
    for base, other in ((whole, short), (short, whole)):
        found = compare([base], [other], limit=0.05)
        assert found.verdict == NO_VISIBLE_DIFFERENCE
        assert headline(found).startswith("NO VISIBLE DIFFERENCE")
        assert gate_of(found) == PASSED
        # Its mean step with all that lies between is another, and says nothing.
        assert metric(found, "loop_step_s").verdict == UNKNOWN
        assert "with warm-up and the starts" not in page(found)


def test_a_short_run_that_is_slower_is_not_excused_by_the_others_checkpoints(
    tmp_path: Path,
) -> None:
    whole = run_of(tmp_path, "whole", 1, passes=20, between=SAVE)
    slower = run_of(tmp_path, "short", 2, passes=1, steps=40, forward=24 * MS)
    found = compare([whole], [ended_early(slower, length=PASS)], limit=0.05)
    assert found.verdict == SLOWER
    assert gate_of(found) == TRIPPED


@pytest.mark.parametrize("passes", [1, 3])
def test_what_workers_take_once_decides_nothing_between_runs_of_other_passes(
    tmp_path: Path, passes: int
) -> None:
    many = with_first_start(run_of(tmp_path, "many", 1, passes=20), 2.0)
    few = with_first_start(run_of(tmp_path, "few", 2, passes=passes), 2.0)
    for base, other in ((many, few), (few, many)):
        found = compare([base], [other], limit=0.05)
        assert found.verdict == NO_VISIBLE_DIFFERENCE
        assert gate_of(found) == PASSED
        assert (found.with_starts is None) is (passes == 1)


def test_starts_of_later_passes_decide_whatever_their_number(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a", 1, passes=20)
    other = ended_early(run_of(tmp_path, "b", 2, passes=6, start=800 * MS), length=PASS)
    found = compare([base], [other], limit=0.05)
    assert found.verdict == SLOWER
    assert gate_of(found) == TRIPPED


def test_starts_of_single_passes_decide_where_both_have_one(tmp_path: Path) -> None:
    """The page says what the gate says, though steps are alike."""
    base = run_of(tmp_path, "a", 1, passes=1, steps=120, forward=1 * MS)
    other = run_of(tmp_path, "b", 2, passes=1, steps=120, forward=1 * MS, start=300 * MS)
    for sides, verdict, outcome in (
        ((base, other), SLOWER, TRIPPED),
        ((other, base), FASTER, PASSED),
    ):
        found = compare([sides[0]], [sides[1]], limit=0.05)
        assert found.speedup.verdict == NO_VISIBLE_DIFFERENCE
        assert found.verdict == to_jsonable(found)["verdict"] == verdict
        assert headline(found).startswith(f"OTHER'S TRAINING IS {verdict.upper()}: with what ")
        assert gate_of(found) == outcome


def test_a_start_in_a_longer_pass_is_no_faster_training(tmp_path: Path) -> None:
    """The same script with --steps 60 and --steps 600, whose loader tells no length."""
    short, long = (
        run_of(tmp_path, f"{n}", n, passes=1, steps=steps, forward=1 * MS, start=300 * MS)
        for n, steps in ((1, 60), (2, 600))
    )
    found = compare([short], [long], limit=0.05)
    assert found.with_starts is None
    assert found.verdict == NO_VISIBLE_DIFFERENCE
    assert metric(found, "loop_step_s").verdict == UNKNOWN


def test_checkpoints_that_became_slower_have_a_row_of_their_own(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a", 1, passes=8, between=SAVE // 10)
    other = run_of(tmp_path, "b", 2, passes=8, between=SAVE)
    found = compare([base], [other], limit=0.05)
    between = metric(found, BETWEEN_PASSES)
    assert between.base == pytest.approx(0.1 / PASS, rel=0.05)
    assert between.other == pytest.approx(1.0 / PASS, rel=0.05)
    assert between.verdict == SLOWER
    assert metric(found, "loop_step_s").verdict == SLOWER
    assert "work between passes" in page(found)
    assert "Besides" in page(found)
    # They are no start of a pass.
    assert metric(found, "starts_per_step_s").verdict == NO_VISIBLE_DIFFERENCE
    assert found.verdict == NO_VISIBLE_DIFFERENCE
    assert gate_of(found) == PASSED


def test_nothing_between_passes_is_no_row_and_no_difference(tmp_path: Path) -> None:
    base, other = (run_of(tmp_path, f"{n}", n, passes=8, forward=1 * MS) for n in (1, 2))
    found = compare([base], [other])
    assert metric(found, BETWEEN_PASSES).verdict == NO_VISIBLE_DIFFERENCE
    assert "work between passes" not in page(found)
    assert "work between passes" in comparison_page.render(
        [found], width=80, color=False, verbose=True
    )


def test_the_verdict_and_its_colour_are_the_headlines(tmp_path: Path) -> None:
    """Workers that are started anew for each pass make steps faster and training slower."""
    base = run_of(tmp_path, "a", 1, passes=8, steps=30, forward=4 * MS)
    other = run_of(tmp_path, "b", 2, passes=8, steps=30, forward=2 * MS, start=150 * MS)
    found = compare([base], [other])
    assert found.speedup.verdict == FASTER
    assert found.verdict == to_jsonable(found)["verdict"] == SLOWER
    assert "\x1b[1;31mOTHER'S STEPS ARE FASTER, ITS TRAINING IS SLOWER" in page(found, color=True)
    eaten_up = run_of(tmp_path, "c", 3, passes=8, steps=30, forward=2 * MS, start=60 * MS)
    found = compare([base], [eaten_up])
    assert "ITS TRAINING IS NOT FASTER FOR CERTAIN" in headline(found)
    assert found.verdict in (NO_VISIBLE_DIFFERENCE, UNKNOWN)
    assert (found.why_unknown is None) is (found.verdict != UNKNOWN)
    assert "\x1b[1mOTHER'S STEPS" in page(found, color=True)


def test_where_passes_begin_slower_the_verdict_says_so(tmp_path: Path) -> None:
    base = run_of(tmp_path, "a", 1, passes=8, steps=30, forward=1 * MS, start=2 * MS)
    other = run_of(tmp_path, "b", 2, passes=8, steps=30, forward=1 * MS, start=40 * MS)
    found = compare([base], [other])
    assert headline(found).startswith("OTHER IS SLOWER WHERE PASSES BEGIN")
    assert found.speedup.verdict == NO_VISIBLE_DIFFERENCE
    assert found.verdict == SLOWER


def test_a_run_without_passes_has_no_starts(tmp_path: Path) -> None:
    with_passes = run_of(tmp_path, "a", 1, passes=8, start=100 * MS)
    other = run_of(tmp_path, "b", 2, passes=8)
    assert other.series is not None
    none = np.zeros(0)
    series = replace(
        other.series, steps_of_passes=none.astype(np.int64), starts_s=none, between_s=none
    )
    found = compare([with_passes], [replace(other, series=series)])
    assert found.with_starts is None
    assert found.metric("starts_per_step_s") is None
    assert found.verdict == NO_VISIBLE_DIFFERENCE


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps", [PASS, 0])
def test_wild_starts_give_no_negative_time_and_no_warning(tmp_path: Path, steps: int) -> None:
    """Passes that begin faster than they go on, and passes without a step."""
    sides = []
    for seed, name in ((1, "a"), (2, "b")):
        run = run_of(tmp_path, name, seed, passes=6)
        assert run.series is not None
        steps_of_passes = np.full_like(run.series.steps_of_passes, steps)
        starts_s = -np.abs(run.series.starts_s) - 0.01
        series = replace(run.series, starts_s=starts_s, steps_of_passes=steps_of_passes)
        sides.append([replace(run, series=series)])
    found = compare(*sides, limit=0.05)
    times = [one for one in found.metrics if one.name.endswith("_s")]
    assert times
    assert all(value >= 0 for one in times for value in (one.base, one.other) if value is not None)
