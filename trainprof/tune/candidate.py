"""A candidate: a change of settings to try, with its forecast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trainprof.analysis.pipeline.bounds import MODEL_ERROR
from trainprof.analysis.statistics.speedup import LEAST_CHANCE, SpeedUp
from trainprof.findings.gain import times_without
from trainprof.tune.trial import LOADER_ARGUMENTS, Trial, name_of

Interval = tuple[float, float]

# Error of the model between two settings, each with MODEL_ERROR.
_BETWEEN: Final = math.log1p(2 * MODEL_ERROR)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change to try; `overrides` and `sites` as Trial has them.

    Attributes:
        subject: Candidates of the same subject exclude each other.
        predicted: Speedup by the model, None if no model applies.
        hope: Largest speedup if no model applies, for the order only.
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
        """Returns the key of the order; candidates without a forecast come last."""
        return self.hope if self.predicted is None else self.predicted[1]

    def trial(self) -> Trial:
        return Trial(self.name, self.overrides, sites=self.sites)

    def without_saves(self, share: float) -> Candidate:
        """Returns the candidate with forecasts that exclude checkpoints, a share of step time."""
        if share <= 0:
            return self
        predicted = interval_without(self.predicted, share)
        return replace(self, predicted=predicted, hope=_times_of_rest(self.hope, share))


def interval_without(predicted: Interval | None, share: float) -> Interval | None:
    """Returns the forecast of a step without the `share` of it that stays and is excluded."""
    if predicted is None or share <= 0:
        return predicted
    return _times_of_rest(predicted[0], share), _times_of_rest(predicted[1], share)


def _times_of_rest(times: float, share: float) -> float:
    return (1 - share) / max(1 / times - share, (1 - share) / times_without(1.0))


def up_to(share: float) -> Interval:
    """Returns the forecast of a change that saves up to a share of the time.

    Its low end is below 1: without a saving, noise may measure a loss.
    """
    return 1 / (1 + LEAST_CHANCE), times_without(share)


def together(candidates: Sequence[Candidate]) -> Candidate:
    """Returns a combination of changes of different subjects; largest gains multiply."""
    if len(candidates) == 1:
        return candidates[0]
    known = [candidate.predicted for candidate in candidates if candidate.predicted is not None]
    predicted = None
    if len(known) == len(candidates):
        # One change may remove the gain of another.
        predicted = max(low for low, _ in known), math.prod(high for _, high in known)
    return Candidate(
        subject="+".join(candidate.subject for candidate in candidates),
        overrides=_overrides_of([candidate.trial() for candidate in candidates]),
        predicted=predicted,
        cautions=tuple(dict.fromkeys(c for candidate in candidates for c in candidate.cautions)),
        sites=tuple(dict.fromkeys(site for candidate in candidates for site in candidate.sites)),
    )


def _overrides_of(trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns the combined overrides: loader arguments by line, where their trial sets them."""
    sites = tuple(dict.fromkeys(site for trial in trials for site in trial.sites))
    overrides: dict[str, Any] = {}
    for trial in trials:
        for name, value in trial.overrides.items():
            if name not in LOADER_ARGUMENTS or not sites:
                overrides[name] = value
                continue
            by_site = overrides.setdefault(name, {})
            by_site |= {s: at[name] for s in trial.sites if name in (at := trial.arguments_at(s))}
    return {
        name: _for_all(value, sites) if isinstance(value, dict) else value
        for name, value in overrides.items()
    }


def _for_all(by_site: Mapping[str, Any], sites: Sequence[str]) -> Any:
    """Returns the value that all lines share, or the value of each line."""
    values = list(by_site.values())
    is_alike = len(by_site) == len(sites) and all(value == values[0] for value in values)
    return values[0] if is_alike else dict(by_site)


def learned(
    candidate: Candidate,
    tried: Sequence[Candidate],
    speed_of: Callable[[Candidate], SpeedUp | None],
) -> Interval | None:
    """Returns the forecast corrected by measured changes of the same subject, if narrower.

    Scales the measured speedup of the other change by the model's ratio of the two.
    """
    if candidate.predicted is None:
        return None
    narrowest = candidate.predicted
    for other in tried:
        if other.subject != candidate.subject or other.predicted is None or other is candidate:
            continue
        speed = speed_of(other)
        if speed is None or speed.mid is None or speed.low is None or speed.high is None:
            continue
        ratios = [my / its for my, its in zip(candidate.predicted, other.predicted, strict=True)]
        below, above = (
            math.hypot(math.log(part), _BETWEEN)
            for part in (speed.mid / speed.low, speed.high / speed.mid)
        )
        low = speed.mid * min(ratios) * math.exp(-below)
        interval = low, speed.mid * max(ratios) * math.exp(above)
        if _width(interval) < _width(narrowest):
            narrowest = interval
    return narrowest


def _width(interval: Interval) -> float:
    return math.log(interval[1] / interval[0]) if interval[0] > 0 else math.inf
