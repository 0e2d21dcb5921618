"""Forwards that repeat what was computed, as probes/unused_forwards.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, number
from trainprof.analysis.names import Sites

_KEY: Final = "repeated_forwards"


@dataclass(frozen=True, slots=True)
class RepeatedForwards:
    """The calls of modules from one line, without gradients.

    Attributes:
        site: The user's line, None where that is not known.
        name: Of the module's class.
        calls: That were seen, for a batch that it had been called for with gradients.
        seconds: Of the host, in the run, by those.
    """

    site: str | None
    name: str
    calls: int
    seconds: float


def repeated_forwards(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[RepeatedForwards]:
    """Reads what was told last, the lines of the most time first; nothing in it is trusted."""
    found = [
        RepeatedForwards(
            site=sites.known(integer(one.get("site"))),
            name=str(one.get("class", "unknown")),
            calls=integer(one.get("calls")) or 0,
            seconds=max(number(one.get("seconds"), 0.0), 0.0),
        )
        for one in dicts_in(last_note(told, _KEY).get(_KEY))
    ]
    return sorted(found, key=lambda one: -one.seconds)
