"""The gate: what trips it, what passes, and what it must not pass for want of knowledge."""

from __future__ import annotations

import pytest

from trainprof.analysis.statistics.speedup import (
    FASTER,
    NO_VISIBLE_DIFFERENCE,
    SLOWER,
    UNKNOWN,
    Chance,
    SpeedUp,
)
from trainprof.compare.comparability import (
    GROUND,
    REMARK,
    SCRIPT_TEXT,
    SETTING,
    UNFINISHED,
    UNUSABLE,
    WORK,
    Difference,
)
from trainprof.compare.comparison import NOT_JUDGED, PASSED, TRIPPED, Gate, judged

SINGLE = Chance(0.035, "as runs on a quiet machine do")


def gate(limit: float, bounds: tuple[float, float, float], *listed: Difference) -> Gate:
    """Judges a step that takes so much longer, as shares: at least, most likely, at most."""
    least, middle, most = bounds
    verdict = SLOWER if least > 0 else FASTER if most < 0 else NO_VISIBLE_DIFFERENCE
    speedup = SpeedUp(1 / (1 + most), 1 / (1 + middle), 1 / (1 + least), verdict, SINGLE)
    return judged(limit, speedup.unless_too_noisy(), listed, "step")


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
        (0.05, (0.036, 0.186, 0.358), NOT_JUDGED),
    ],
)
def test_a_gate_trips_passes_or_cannot_judge(limit, bounds, outcome):
    judgement = gate(limit, bounds)
    assert judgement.outcome == outcome
    assert (judgement.hint is not None) is (outcome == NOT_JUDGED)


@pytest.mark.parametrize("bounds", [(0.06, 0.08, 0.10), (-0.02, 0.01, 0.04)])
@pytest.mark.parametrize(
    ("what", "kind", "is_between", "is_judged"),
    [
        ("end", UNFINISHED, False, False),
        ("batch size", WORK, True, False),
        ("script", GROUND, True, False),
        ("torch", GROUND, False, False),  # runs of one side that are not alike
        ("steady steps", UNUSABLE, False, False),  # of one of several runs: why did it leave?
        (SCRIPT_TEXT, GROUND, True, True),
        ("torch", GROUND, True, True),
        ("arguments", SETTING, True, True),
        ("end", REMARK, False, True),  # Ctrl-C
    ],
)
def test_what_may_differ_for_a_gate(what, kind, is_between, is_judged, bounds):
    judgement = gate(0.05, bounds, Difference(what, kind, f"{what} differs", is_between))
    if is_judged:
        assert judgement.outcome == (TRIPPED if bounds[0] > 0 else PASSED)
    else:
        assert (judgement.outcome, judgement.why) == (NOT_JUDGED, f"{what} differs")


def test_without_an_interval_there_is_nothing_to_judge():
    why = "OTHER has 3 steady steps"
    judgement = judged(0.05, SpeedUp(None, 1.0, None, UNKNOWN, None, why), [], "step")
    assert (judgement.outcome, judgement.why) == (NOT_JUDGED, why)
