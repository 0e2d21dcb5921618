"""What models compute again within one forward, as probes/repeated_calls.py told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note
from trainprof.analysis.names import Sites

_KEY: Final = "repeated_calls"
PARAMETRIZATION: Final = "parametrization"
WEIGHT_NORM: Final = "weight_norm"
ATTENTION: Final = "attention"
_INSIDE: Final = (PARAMETRIZATION, WEIGHT_NORM, ATTENTION)


@dataclass(frozen=True, slots=True)
class RepeatedLine:
    """A line inside a model that gave what it had given before in the same forward.

    Attributes:
        site: The user's.
        calls: Of torch's functions, that could go, of a step.
        step_s: What those took, of a step, on the host.
        learns_s: Of it, what backward goes through, too.
        package: The library that the line calls, and which calls them; None where it does so.
        inside: What of torch's does, for the line: PARAMETRIZATION, WEIGHT_NORM or ATTENTION; None
            where the line does.
        acts: The line also calls what draws random numbers, or updates running statistics.
    """

    site: str
    calls: int
    step_s: float
    learns_s: float
    package: str | None = None
    inside: str | None = None
    acts: bool = False


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """Of a few steps that were looked at.

    Attributes:
        looks: How many.
        lines: Those of the most time first.
        steps: Of training, up to the newest look; None: not known.
    """

    looks: int
    lines: list[RepeatedLine]
    steps: int | None = None

    @property
    def step_s(self) -> float:
        return sum(one.step_s for one in self.lines)

    @property
    def learns_s(self) -> float:
        return sum(one.learns_s for one in self.lines)


def repeated_calls(told: Iterable[Mapping[str, Any]], sites: Sites) -> RepeatedCalls | None:
    """Reads what was told last; nothing in it is trusted. None where there is no such line."""
    found = last_note(told, _KEY).get(_KEY)
    if not isinstance(found, dict):
        return None
    lines = [
        RepeatedLine(
            site,
            calls,
            step_ns / 1e9,
            min(max(integer(one.get("learns_ns")) or 0, 0), step_ns) / 1e9,
            package if isinstance(package := one.get("package"), str) else None,
            inside if (inside := one.get("inside")) in _INSIDE else None,
            one.get("acts") is True,
        )
        for one in dicts_in(found.get("lines"))
        if (step_ns := integer(one.get("step_ns")) or 0) > 0
        and (calls := integer(one.get("calls")) or 0) > 0
        and (site := sites.known(integer(one.get("site")))) is not None
    ]
    looks = integer(found.get("looks")) or 0
    if looks <= 0 or not lines:
        return None
    lines.sort(key=lambda one: -one.step_s)
    return RepeatedCalls(looks, lines, integer(found.get("steps")))
