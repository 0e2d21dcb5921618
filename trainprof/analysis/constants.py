"""What models compute anew in each step though it stays the same, as probes/constants.py told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note
from trainprof.analysis.names import Sites

_KEY: Final = "constants"


@dataclass(frozen=True, slots=True)
class ConstantLine:
    """A line inside a model that gave the same in each step that was looked at.

    Attributes:
        site: The user's.
        step_s: What torch's functions took that it called, of a step, on the host.
        bytes: The most that one of them gave.
        package: The library that the line calls, and which calls them; None where it does so.
    """

    site: str
    step_s: float
    bytes: int
    package: str | None = None


@dataclass(frozen=True, slots=True)
class Constants:
    """Of a few steps that were looked at.

    Attributes:
        looks: How many.
        lines: Those of the most time first.
        steps: Of training, up to the newest look; None: not known.
    """

    looks: int
    lines: list[ConstantLine]
    steps: int | None = None

    @property
    def step_s(self) -> float:
        return sum(one.step_s for one in self.lines)


def constants(told: Iterable[Mapping[str, Any]], sites: Sites) -> Constants | None:
    """Reads what was told last; nothing in it is trusted. None where there is no such line."""
    found = last_note(told, _KEY).get(_KEY)
    if not isinstance(found, dict):
        return None
    lines = [
        ConstantLine(
            site,
            step_ns / 1e9,
            max(integer(one.get("bytes")) or 0, 0),
            package if isinstance(package := one.get("package"), str) else None,
        )
        for one in dicts_in(found.get("lines"))
        if (step_ns := integer(one.get("step_ns")) or 0) > 0
        and (site := sites.known(integer(one.get("site")))) is not None
    ]
    looks = integer(found.get("looks")) or 0
    if looks <= 0 or not lines:
        return None
    lines.sort(key=lambda one: -one.step_s)
    return Constants(looks, lines, integer(found.get("steps")))
