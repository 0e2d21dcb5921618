"""Forwards that no backward pass goes through, as probes/unused_forwards.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, number, share_in
from trainprof.analysis.names import Sites

_KEY: Final = "unused_forwards"


@dataclass(frozen=True, slots=True)
class UnusedForwards:
    """The calls of modules from one line.

    Attributes:
        site: The user's line, None where that is not known.
        name: Of the module's class.
        looks: Calls whose graph went without a pass of backward through it: all that were seen.
        share: Of the host's time in forwards with gradients.
        seconds: Of the host, by the calls that were looked at.
        may_be_target: Another line calls the same module for other tensors, and that is learned
            from: it may learn to give what these calls do.
    """

    site: str | None
    name: str
    looks: int
    share: float
    seconds: float
    may_be_target: bool = False


def unused_forwards(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[UnusedForwards]:
    """Reads what was told last, the lines of the most time first; nothing in it is trusted."""
    found = [
        UnusedForwards(
            site=sites.known(integer(one.get("site"))),
            name=str(one.get("class", "unknown")),
            looks=integer(one.get("looks")) or 0,
            share=share_in(one.get("share")),
            seconds=max(number(one.get("seconds"), 0.0), 0.0),
            may_be_target=one.get("may_be_target") is True,
        )
        for one in dicts_in(last_note(told, _KEY).get(_KEY))
    ]
    return sorted(found, key=lambda one: -one.share)
