"""Graphs that backward goes through again, as probes/repeated_backward.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, share_in
from trainprof.analysis.names import Sites

_KEY: Final = "repeated_backward"


@dataclass(frozen=True, slots=True)
class RepeatedBackward:
    """The passes of a line, through what an earlier one of the same update went through.

    Attributes:
        site: The user's line that begins them, None where that is not known.
        called_from: The line that calls that one's function, likewise.
        first: The line whose pass was the first through that graph, likewise.
        passes: Through a graph, in one update, all lines taken together.
        looks: Updates that were looked at.
        share: Of the time of all passes, what went to nodes that were gone through again.
    """

    site: str | None
    called_from: str | None
    first: str | None
    passes: int
    looks: int
    share: float


def repeated_backward(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[RepeatedBackward]:
    """Reads what was told last, the lines of the most time first; nothing in it is trusted."""
    found = [
        RepeatedBackward(
            site=sites.known(integer(one.get("site"))),
            called_from=sites.known(integer(one.get("caller"))),
            first=sites.known(integer(one.get("first"))),
            passes=passes,
            looks=integer(one.get("looks")) or 0,
            share=share_in(one.get("share")),
        )
        for one in dicts_in(last_note(told, _KEY).get(_KEY))
        if (passes := integer(one.get("passes")) or 0) > 1
    ]
    return sorted(found, key=lambda one: -one.share)
