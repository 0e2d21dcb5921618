"""The gate of `compare --fail-if-slower`: whether OTHER is too slow, and whether that can be told.

A gate has three outcomes. It trips where the interval's near bound is over the limit: one that
trips by chance is switched off. It passes where the runs tell that OTHER is not, or not visibly,
that slow. Where they cannot tell, because a run broke, the sides are not alike, or noise hides
more than the limit, it is not judged: that must not look as if all were well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.comparability import Discrepancy
from trainprof.analysis.comparable_facts import SCRIPT_TEXT, SHORT, UNFINISHED, UNLIKE
from trainprof.analysis.speedup import LEAST_CHANCE, SLOWER, UNKNOWN, SpeedUp

PASSED: Final = "passed"
TRIPPED: Final = "tripped"
NOT_JUDGED: Final = "not_judged"
REPEATED: Final = "--base A1 --base A2 --base A3 --other B1 --other B2 --other B3"
_ENOUGH: Final = 3
# What a gate is there to judge: an edit of the script, and new libraries under it.
_TESTED: Final = (SCRIPT_TEXT, "torch", "CUDA")
_REPEAT_MORE: Final = "record more runs a side, in turns, where nothing else runs"


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate says of one comparison.

    Attributes:
        limit: How much longer a step may take, as a share.
        outcome: passed|tripped|not_judged.
        why: Without a full stop.
        hint: What makes it judge, None where it did.
    """

    limit: float
    outcome: str
    why: str
    hint: str | None = None


def three_runs(base: int, other: int) -> str:
    """Returns which sides are to have three runs; `base`, `other` are how many each has now."""
    few = [side for side, has in (("BASE", base), ("OTHER", other)) if has < _ENOUGH]
    return f"three runs of {few[0]}" if len(few) == 1 else "three runs each"


def judged(
    limit: float,
    speedup: SpeedUp,
    found: Sequence[Discrepancy],
    measured_by: str,
    runs: tuple[int, int] = (1, 1),
) -> Gate:
    """Returns whether OTHER takes longer than BASE by more than a limit.

    Args:
        limit: As a share of BASE's step.
        speedup: Of OTHER over BASE.
        found: What the sides do not have in common.
        measured_by: step|sample.
        runs: How many tell of BASE and of OTHER.
    """
    hindrance = _hindrance(limit, speedup, found)
    if hindrance is not None:
        return hindrance
    assert speedup.low is not None
    assert speedup.mid is not None
    assert speedup.high is not None
    least, middle, most = (1 / one - 1 for one in (speedup.high, speedup.mid, speedup.low))
    if least > limit:
        return Gate(limit, TRIPPED, f"a {measured_by} takes {_longer(least)} at least")
    if most <= limit:
        return Gate(limit, PASSED, f"a {measured_by} takes {_longer(most)} at most")
    # What is finer than a single run can tell is no reason to call a result too noisy.
    tells = max(limit, LEAST_CHANCE)
    is_hidden = middle > tells and middle - least > tells
    between = f"{_between(least, most)} would fit"
    if is_hidden or speedup.verdict == UNKNOWN:
        told = _longer(middle, in_times=most >= 1)
        why = f"too noisy to tell: a {measured_by} took {told}, but {between}"
        if speedup.verdict == SLOWER:
            why = f"by how much OTHER is slower is too noisy to tell: {between}"
        repeat = f"record {three_runs(*runs)}, in turns: trainprof compare {REPEATED}"
        return Gate(limit, NOT_JUDGED, why, _REPEAT_MORE if speedup.chance is None else repeat)
    told = _longer(middle, in_times=most >= 1)
    why = f"a {measured_by} took {told}, not over the limit for certain: {between}"
    return Gate(limit, PASSED, why)


def _hindrance(limit: float, speedup: SpeedUp, found: Sequence[Discrepancy]) -> Gate | None:
    """Returns the outcome where the runs themselves leave nothing to judge."""
    broken = [one.text for one in found if one.kind == UNFINISHED]
    if broken:
        hint = "a gate judges runs that ended as they should: record them again"
        return Gate(limit, NOT_JUDGED, "; ".join(broken), hint)
    unlike = [one.text for one in found if one.kind in UNLIKE - {SHORT} and not _is_tested(one)]
    if unlike:
        hint = "record both sides with the same script, work and machine, at full speed"
        return Gate(limit, NOT_JUDGED, f"not like for like: {'; '.join(unlike)}", hint)
    if speedup.low is None:
        why = speedup.why_unknown or "the noise is not known"
        return Gate(limit, NOT_JUDGED, why, "record runs with more steps, or three a side")
    short = [one.text for one in found if one.kind == SHORT]
    if short:
        return Gate(limit, NOT_JUDGED, "; ".join(short), "record runs with more steps")
    return None


def _is_tested(one: Discrepancy) -> bool:
    """Runs of one side that differ in it have no value a side."""
    return one.what in _TESTED and bool(one.base)


def _between(least: float, most: float) -> str:
    """Returns an interval in the unit that suits its upper end."""
    if most >= 1:
        return f"{_times(least)} to {_longer(most)}"
    return f"{_longer(least)} to {_longer(most)}"


def _times(share: float) -> str:
    return f"{1 + share:.2f}" if share < 0 else f"{1 + share:.3g}"


def _longer(share: float, *, in_times: bool = False) -> str:
    if share >= 1 or in_times:
        return f"{_times(share)} times as long"
    return f"{abs(share) * 100:.1f} % {'longer' if share >= 0 else 'less time'}"
