"""One run against three: these tell how much runs vary, and not what that one met."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support import summaries
from support.compared_runs import made_up, read, recorded, steps_of
from support.events import MS

from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.comparison import Comparison, compare, notes
from trainprof.analysis.gate import NOT_JUDGED, PASSED, TRIPPED
from trainprof.analysis.speedup import NO_VISIBLE_DIFFERENCE, SLOWER, UNKNOWN


def run(
    parent: Path, name: str, seed: int, forward: int = 10 * MS, *, others_percent: float = 0.0
) -> ComparedRun:
    """A run on two cores of which it keeps one busy; others the rest, to so many percent."""
    found = read(recorded(parent, name, forwards=steps_of(seed, forward), wait=2 * MS))
    cpu = {
        "host_percent": {"mean": 50.0 + others_percent},
        "tree_percent": {"mean": 100.0},
        "per_core_percent": [50.0, 50.0],
        "pressure_some_share": others_percent / 100,
    }
    system = summaries.system(cpu=cpu)
    host = {**found.section("host"), "is_virtual": False}
    return replace(
        found,
        manifest={**found.manifest, "host": host},
        summary=replace(found.summary, system=system),
    )


def group(parent: Path) -> list[ComparedRun]:
    return [run(parent, f"a{number}", number) for number in range(3)]


def gate_of(found: Comparison) -> str:
    assert found.gate is not None
    return found.gate.outcome


def test_a_run_that_neighbours_held_up_is_not_slower_for_certain(tmp_path: Path) -> None:
    held_up = run(tmp_path, "b", 5, 12 * MS, others_percent=30.0)
    found = compare(group(tmp_path), [held_up], limit=0.05)
    assert found.verdict == UNKNOWN
    assert gate_of(found) == NOT_JUDGED
    assert found.gate is not None
    assert (found.gate.hint or "").startswith("record three runs of OTHER, in turns")
    told = "3 and 1 runs: the interval is that of their spread, but of the one alone differences"
    assert notes(found)[-1].startswith(f"{told} under a factor of 2.9 can be chance (other process")
    # Nor is any part of its steps.
    verdicts = {one.verdict for one in found.metrics}
    assert verdicts <= {NO_VISIBLE_DIFFERENCE, UNKNOWN}


def test_nor_is_what_it_does_but_once(tmp_path: Path) -> None:
    def begun_after(one: ComparedRun, seconds: float) -> ComparedRun:
        phases = replace(one.summary.phases, initialization_s=seconds)
        return replace(one, summary=replace(one.summary, phases=phases))

    base = [begun_after(one, 1.0 + n / 100) for n, one in enumerate(group(tmp_path))]
    for others_percent, verdict in ((0.0, SLOWER), (30.0, NO_VISIBLE_DIFFERENCE)):
        other = run(tmp_path, f"b{others_percent}", 5, others_percent=others_percent)
        found = compare(base, [begun_after(other, 2.0)]).metric("initialization_s")
        assert found is not None
        assert found.verdict == verdict


def test_of_a_run_that_was_held_up_too_much_nothing_is_told(tmp_path: Path) -> None:
    found = compare(
        group(tmp_path), [run(tmp_path, "b", 5, 30 * MS, others_percent=45.0)], limit=0.05
    )
    assert found.why_unknown == ("other processes kept the CPU busy, too much for one run to tell")
    assert gate_of(found) == NOT_JUDGED


def test_a_run_that_nothing_held_up_is_told_by_the_spread_of_the_others(tmp_path: Path) -> None:
    base = group(tmp_path)
    found = compare(base, [run(tmp_path, "b", 5, 12 * MS)], limit=0.05)
    assert found.verdict == SLOWER
    assert gate_of(found) == TRIPPED
    assert notes(found)[-1] == "3 and 1 runs: the interval is that of their spread"
    alike = compare(base, [run(tmp_path, "c", 6)], limit=0.05)
    assert alike.verdict == NO_VISIBLE_DIFFERENCE
    assert gate_of(alike) == PASSED


def test_a_run_too_short_to_tell_is_no_third_one(tmp_path: Path) -> None:
    """Two against one are told by what single runs may differ by."""
    short = read(recorded(tmp_path, "short", forwards=steps_of(9, 10 * MS, count=10)))
    base = [*group(tmp_path)[:2], short]
    found = compare(base, [run(tmp_path, "b", 5, 12 * MS)])
    assert found.speedup.chance is not None
    assert found.speedup.chance.share >= 0.035


def test_means_alone_of_one_run_are_told_by_the_others(tmp_path: Path) -> None:
    base = [made_up(summaries.healthy(), f"a{number}") for number in range(3)]
    found = compare(base, [made_up(summaries.healthy(), "b")])
    assert found.verdict == NO_VISIBLE_DIFFERENCE
