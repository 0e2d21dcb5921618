"""What a finding has to gain to be told."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import (
    IN_NOISE,
    LIKELY,
    LITTLE,
    MAY_LOSE,
    Finding,
    PassedOver,
    is_unsure,
    may_lose,
)
from trainprof.analysis.summary.levels import LEAST_GAIN, MOST_NOISE
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Case

# The halves of a run may differ so much by chance: a gain has to be so many times that.
NOISE_TIMES: Final = 2.0
# What may as well lose has to promise more.
_UNSURE_GAIN: Final = 0.1


def least_gain(noise: float) -> float:
    """Returns from which gain of training on a finding in steady steps is reported.

    Args:
        noise: By how much the halves of the run differ, as a share of the pace.
    """
    return max(LEAST_GAIN, NOISE_TIMES * min(noise, MOST_NOISE))


def passed_over_for(finding: Finding, rule: Rule, case: Case) -> PassedOver | None:
    """Returns why a finding is not told, None where it is.

    What nobody can know the gain of is left to its rule.

    Args:
        finding: As its rule found it.
        rule: That.
        case: The run.
    """
    if finding.recoverable_s is None:
        return None
    gain = float(finding.evidence[LIKELY]) - 1
    if may_lose(finding):
        return PassedOver(finding, MAY_LOSE)
    # Of a short run imports are most: one that is meant to go on is not.
    of_training = (finding.recoverable_s or 0.0) / max(case.training_s, 1e-9)
    bar = LEAST_GAIN
    if rule.noise_matters:
        # What may lose has to stand out from all that makes steps differ.
        bar = least_gain(case.noise if is_unsure(finding) else case.noise_of(rule.traits.keys))
        bar = max(bar, _UNSURE_GAIN) if is_unsure(finding) else bar
    if gain < LEAST_GAIN or of_training < LEAST_GAIN / 2:
        return PassedOver(finding, LITTLE, LEAST_GAIN)
    return None if gain >= bar else PassedOver(finding, IN_NOISE, bar)
