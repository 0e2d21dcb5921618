"""The gate of `compare --fail-if-slower`: whether OTHER is too slow, and whether that can be told.

It trips where the interval's near bound is over the limit. It passes where the runs show that OTHER
is not, or not visibly, that slow. It is not judged where a run broke, the sides are not alike, or
noise hides more than the limit: that must not look as if all were well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.comparability import SCRIPT_TEXT, UNFINISHED, UNLIKE, Difference
from trainprof.analysis.speedup import LEAST_CHANCE, UNKNOWN, SpeedUp

PASSED: Final = "passed"
TRIPPED: Final = "tripped"
NOT_JUDGED: Final = "not_judged"
# What a gate is there to judge: an edit of the script, and new libraries under it.
_TESTED: Final = (SCRIPT_TEXT, "torch", "CUDA")
_REPEAT: Final = (
    "record three runs each or more, in turns: trainprof compare --base A1 --base A2 --base A3 "
    "--other B1 --other B2 --other B3"
)


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


def judged(
    limit: float, speedup: SpeedUp, differences: Sequence[Difference], measured_by: str
) -> Gate:
    """Returns whether OTHER takes longer than BASE by more than a limit, a share of BASE's step."""
    hindrances = [x.text for x in differences if x.kind in UNLIKE | {UNFINISHED} and not _tested(x)]
    if hindrances:
        hint = "record whole runs of the same script, work and machine, at full speed"
        return Gate(limit, NOT_JUDGED, "; ".join(hindrances), hint)
    if speedup.low is None or speedup.mid is None or speedup.high is None:
        why = speedup.why_unknown or "the noise is not known"
        return Gate(limit, NOT_JUDGED, why, _REPEAT)
    least, middle, most = (1 / bound - 1 for bound in (speedup.high, speedup.mid, speedup.low))
    if least > limit:
        return Gate(limit, TRIPPED, f"a {measured_by} takes {longer(least)} at least")
    if most <= limit:
        return Gate(limit, PASSED, f"a {measured_by} takes {longer(most)} at most")
    between = f"{longer(least)} to {longer(most)} would fit"
    # What is finer than a single run can tell is no reason to call a result too noisy.
    tells = max(limit, LEAST_CHANCE)
    if speedup.verdict == UNKNOWN or (middle > tells and middle - least > tells):
        why = f"too noisy to tell: a {measured_by} took {longer(middle)}, but {between}"
        return Gate(limit, NOT_JUDGED, why, _REPEAT)
    why = f"a {measured_by} took {longer(middle)}, not over the limit for certain: {between}"
    return Gate(limit, PASSED, why)


def _tested(difference: Difference) -> bool:
    return difference.what in _TESTED and difference.is_between


def longer(share: float) -> str:
    """Returns by how much longer a step takes, in words."""
    if share >= 1:
        return f"{1 + share:.3g} times as long"
    return f"{abs(share) * 100:.1f} % {'longer' if share >= 0 else 'less time'}"
