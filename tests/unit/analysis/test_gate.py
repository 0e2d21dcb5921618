"""The gate: what trips it, what passes, and what it must not pass for want of knowledge."""

from __future__ import annotations

import pytest

from trainprof.analysis.comparability import Discrepancy
from trainprof.analysis.comparable_facts import (
    GROUND,
    REMARK,
    SCRIPT_TEXT,
    SETTING,
    SHORT,
    UNFINISHED,
    WORK,
)
from trainprof.analysis.gate import NOT_JUDGED, PASSED, TRIPPED, Gate, judged
from trainprof.analysis.speedup import (
    FASTER,
    NO_VISIBLE_DIFFERENCE,
    SLOWER,
    UNKNOWN,
    Chance,
    SpeedUp,
)

SINGLE = Chance(0.035, "as runs on a quiet machine do")


def longer(least: float, middle: float, most: float, chance: Chance | None = SINGLE) -> SpeedUp:
    """A step that takes so much longer, as shares, with the verdict that `compare` gives."""
    verdict = SLOWER if least > 0 else FASTER if most < 0 else NO_VISIBLE_DIFFERENCE
    found = SpeedUp(1 / (1 + most), 1 / (1 + middle), 1 / (1 + least), verdict, chance)
    return found.unless_too_noisy()


def gate(limit: float, speedup: SpeedUp, *found: Discrepancy) -> Gate:
    return judged(limit, speedup, found, "step")


def differing(what: str, kind: str, base: str = "a", other: str = "b") -> Discrepancy:
    return Discrepancy(what, kind, base, other, f"{what} {base} -> {other}")


@pytest.mark.parametrize(
    ("limit", "bounds", "outcome"),
    [
        (0.05, (0.06, 0.08, 0.10), TRIPPED),
        (0.05, (-0.02, 0.01, 0.04), PASSED),  # surely not over the limit
        (0.05, (-0.30, -0.20, -0.10), PASSED),
        (0.05, (0.02, 0.06, 0.09), PASSED),  # over it, but not for certain, and told finely
        (0.0, (-0.02, 0.01, 0.04), PASSED),
        (0.05, (-0.14, 2.68, 14.8), NOT_JUDGED),
        (0.05, (-0.17, 0.0, 0.21), NOT_JUDGED),  # a slow-down by a fifth would not be seen
        (0.25, (-0.17, 0.0, 0.21), PASSED),  # but the limit is above that
        (0.05, (-0.03, 0.12, 0.20), NOT_JUDGED),  # measured over it, and noise hides more than it
        (0.02, (-0.01, 0.04, 0.09), NOT_JUDGED),
    ],
)
def test_a_gate_trips_passes_or_cannot_judge(
    limit: float, bounds: tuple[float, float, float], outcome: str
) -> None:
    assert gate(limit, longer(*bounds)).outcome == outcome


def test_what_is_too_noisy_says_so_and_what_to_do() -> None:
    single = gate(0.05, longer(-0.14, 2.68, 14.8))
    assert single.why == (
        "too noisy to tell: a step took 3.68 times as long, but 0.86 to 15.8 times as long would "
        "fit"
    )
    assert single.hint is not None
    assert "three runs each" in single.hint
    repeated = gate(0.05, longer(-0.14, 0.1, 0.4, chance=None))
    assert repeated.hint is not None
    assert repeated.hint.startswith("record more runs a side")


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ((-0.588, 0.2, 31.6), "took 1.2 times as long, but 0.41 to 32.6 times as long would fit"),
        ((-0.3, 0.2, 0.9), "took 20.0 % longer, but 30.0 % less time to 90.0 % longer would fit"),
    ],
)
def test_an_interval_is_told_in_one_unit(bounds: tuple[float, float, float], told: str) -> None:
    assert gate(0.05, longer(*bounds)).why == f"too noisy to tell: a step {told}"


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ((1, 1), "record three runs each, in turns: trainprof compare --base A1 "),
        ((1, 3), "record three runs of BASE, in turns: trainprof compare --base A1 "),
        ((4, 2), "record three runs of OTHER, in turns: trainprof compare --base A1 "),
    ],
)
def test_the_side_that_has_fewer_runs_is_the_one_to_record(
    runs: tuple[int, int], told: str
) -> None:
    found = judged(0.05, longer(-0.14, 2.68, 14.8), [], "step", runs)
    assert found.hint is not None
    assert found.hint.startswith(told)


def test_what_is_slower_for_certain_is_not_called_too_noisy_to_be_so() -> None:
    told = gate(0.05, longer(0.036, 0.186, 0.358, chance=None))
    assert told.outcome == NOT_JUDGED
    assert told.why == (
        "by how much OTHER is slower is too noisy to tell: 3.6 % longer to 35.8 % longer would fit"
    )


@pytest.mark.parametrize("bounds", [(0.06, 0.08, 0.10), (-0.02, 0.01, 0.04)])
@pytest.mark.parametrize(
    "found",
    [
        differing("end", UNFINISHED),
        differing("batch size", WORK),
        differing("script", GROUND),
        differing("device", GROUND),
        # Runs of one side that are not alike have no value a side.
        differing("torch", GROUND, "", ""),
        differing("steady steps", SHORT, "", ""),  # of one of several runs: why did it leave?
    ],
)
def test_runs_that_broke_or_are_not_alike_are_not_judged(
    found: Discrepancy, bounds: tuple[float, float, float]
) -> None:
    told = gate(0.05, longer(*bounds), differing("arguments", SETTING), found)
    assert told.outcome == NOT_JUDGED
    assert told.why.endswith(found.text)
    assert told.hint is not None


@pytest.mark.parametrize(
    "found",
    [
        differing(SCRIPT_TEXT, GROUND),
        differing("torch", GROUND),
        differing("arguments", SETTING),
        differing("end", REMARK, "", ""),  # Ctrl-C
    ],
)
def test_what_a_gate_is_there_for_is_judged(found: Discrepancy) -> None:
    assert gate(0.05, longer(0.06, 0.08, 0.10), found).outcome == TRIPPED
    assert gate(0.05, longer(-0.02, 0.01, 0.04), found).outcome == PASSED


def test_without_an_interval_there_is_nothing_to_judge() -> None:
    told = gate(0.05, SpeedUp(None, 1.0, None, UNKNOWN, None, "too few steady steps in OTHER"))
    assert (told.outcome, told.why) == (NOT_JUDGED, "too few steady steps in OTHER")
