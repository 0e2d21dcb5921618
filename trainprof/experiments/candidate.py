"""A change that is worth trying."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainprof.analysis.diagnosis.gains import times_without
from trainprof.analysis.speedup import LEAST_CHANCE
from trainprof.experiments.trial import LOADER_ARGUMENTS, Trial, name_of

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change to try.

    Attributes:
        subject: What it is about: of several candidates about one thing one can be taken.
        overrides, sites: As the trial has them.
        predicted: How many times as fast it will be, by the model; None where none applies.
        cautions: What it alters, or needs.
        hope: How many times as fast it could be at most, where no model applies: it only tells
            what is tried first.
    """

    subject: str
    overrides: Mapping[str, Any]
    predicted: Interval | None
    cautions: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    hope: float = 1.0

    @property
    def name(self) -> str:
        return name_of(self.overrides)

    def promise(self) -> float:
        """Returns by what candidates are ordered: those of which nothing is known come last."""
        return self.predicted[1] if self.predicted is not None else self.hope

    def trial(self) -> Trial:
        return Trial(self.name, self.overrides, sites=self.sites)

    def without_saves(self, share: float) -> Candidate:
        """Returns the same as told of steps without a share of their time that it leaves alone."""
        if share <= 0:
            return self
        predicted = interval_without(self.predicted, share)
        return replace(self, predicted=predicted, hope=_times_of_rest(self.hope, share))


def interval_without(predicted: Interval | None, share: float) -> Interval | None:
    """Returns how many times as fast the rest is, by a forecast of all.

    Args:
        predicted: Of all.
        share: Of the time before, which stays as it is and is not counted.
    """
    if predicted is None or share <= 0:
        return predicted
    return _times_of_rest(predicted[0], share), _times_of_rest(predicted[1], share)


def _times_of_rest(times: float, share: float) -> float:
    return (1 - share) / max(1 / times - share, (1 - share) / times_without(1.0))


def up_to(share: float) -> Interval:
    """Returns the forecast of a change that may save all of a share of the time, or none of it.

    Nothing saved may be measured as a loss: two runs of the same script differ.
    """
    return 1 / (1 + LEAST_CHANCE), times_without(share)


def together(candidates: Sequence[Candidate]) -> Candidate:
    """Returns several changes as one; what each gives at most is multiplied.

    Args:
        candidates: Of different subjects, one or more.
    """
    if len(candidates) == 1:
        return candidates[0]
    known = [one.predicted for one in candidates if one.predicted is not None]
    return Candidate(
        subject="+".join(one.subject for one in candidates),
        overrides=_overrides_of([one.trial() for one in candidates]),
        predicted=(
            # One change may take away what another would have given.
            max(low for low, _ in known),
            math.prod(high for _, high in known),
        )
        if len(known) == len(candidates)
        else None,
        cautions=tuple(dict.fromkeys(c for one in candidates for c in one.cautions)),
        sites=tuple(dict.fromkeys(site for one in candidates for site in one.sites)),
    )


def _overrides_of(trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns what trials change together: each argument of loaders where its trial changes it."""
    sites = tuple(dict.fromkeys(site for one in trials for site in one.sites))
    overrides: dict[str, Any] = {}
    for one in trials:
        for name, value in one.overrides.items():
            if name not in LOADER_ARGUMENTS or not sites:
                overrides[name] = value
                continue
            by_site = overrides.setdefault(name, {})
            by_site |= {s: at[name] for s in one.sites if name in (at := one.arguments_at(s))}
    return {
        name: _for_all(value, sites) if isinstance(value, dict) else value
        for name, value in overrides.items()
    }


def _for_all(by_site: Mapping[str, Any], sites: Sequence[str]) -> Any:
    """Returns the one value that is the same for all lines, or what each of them gets."""
    values = list(by_site.values())
    is_alike = len(by_site) == len(sites) and all(one == values[0] for one in values)
    return values[0] if is_alike else dict(by_site)
