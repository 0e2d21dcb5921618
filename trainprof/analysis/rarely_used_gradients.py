"""Gradients that backward uses now and then, as probes/rarely_used_gradients.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, share_in
from trainprof.analysis.names import Sites

_KEY: Final = "rarely_used_gradients"


@dataclass(frozen=True, slots=True)
class RarelyUsedGradients:
    """What a line asks autograd.grad for, with a graph of its own.

    Attributes:
        site: The user's line, None where that is not known.
        called_from: The line that calls that one's function, likewise.
        period: Backward goes through the gradients of one in so many updates that have some.
        updates: Of those, how many were looked at.
        share: Of the time of all passes of backward, what went to those that it did not go through.
    """

    site: str | None
    called_from: str | None
    period: int
    updates: int
    share: float


def rarely_used_gradients(
    told: Iterable[Mapping[str, Any]], sites: Sites
) -> list[RarelyUsedGradients]:
    """Reads what was told last, the lines of the most time first; nothing in it is trusted."""
    found = [
        RarelyUsedGradients(
            site=sites.known(integer(one.get("site"))),
            called_from=sites.known(integer(one.get("caller"))),
            period=period,
            updates=integer(one.get("updates")) or 0,
            share=share_in(one.get("share")),
        )
        for one in dicts_in(last_note(told, _KEY).get(_KEY))
        if (period := integer(one.get("period")) or 0) > 1
    ]
    return sorted(found, key=lambda one: -one.share)
