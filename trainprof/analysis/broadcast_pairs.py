"""Vectors compared all with all by one large tensor, as probes/broadcast_pairs.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, share_in, times_in
from trainprof.analysis.names import Sites

_KEY: Final = "broadcast_pairs"
PRODUCT: Final = "product"
DISTANCE: Final = "distance"
COSINE: Final = "cosine"
_MOST_TIMES: Final = 100.0


@dataclass(frozen=True, slots=True)
class ComparingLine:
    """A line inside a model that makes a number for each pair of vectors and each of theirs.

    Attributes:
        site: The user's.
        what: PRODUCT, DISTANCE or COSINE: what becomes of a pair.
        first, second: Vectors of either side.
        long: Numbers of a vector.
        numbers: Of the tensor, for all batches.
        share: Of forward, what that takes.
        times: As long as that backward takes for it; 0 where it does not go through it.
    """

    site: str
    what: str
    first: int
    second: int
    long: int
    numbers: int
    share: float
    times: float


@dataclass(frozen=True, slots=True)
class BroadcastPairs:
    """Of a few steps that were looked at.

    Attributes:
        looks: How many.
        lines: Those of the most time first.
    """

    looks: int
    lines: list[ComparingLine]


def broadcast_pairs(told: Iterable[Mapping[str, Any]], sites: Sites) -> BroadcastPairs | None:
    """Reads what was told last; nothing in it is trusted. None where there is no such line."""
    found = last_note(told, _KEY).get(_KEY)
    if not isinstance(found, dict):
        return None
    lines = [
        ComparingLine(
            site,
            what,
            first=(first := _count(one.get("first"))),
            second=(second := _count(one.get("second"))),
            long=(long := _count(one.get("long"))),
            numbers=max(_count(one.get("numbers")), first * second * long),
            share=share,
            times=times_in(one.get("times"), _MOST_TIMES),
        )
        for one in dicts_in(found.get("lines"))
        if (share := share_in(one.get("share"))) > 0
        and (what := one.get("what")) in (PRODUCT, DISTANCE, COSINE)
        and (site := sites.known(integer(one.get("site")))) is not None
    ]
    looks = integer(found.get("looks")) or 0
    if looks <= 0 or not lines:
        return None
    return BroadcastPairs(looks, sorted(lines, key=lambda one: -one.share))


def _count(value: object) -> int:
    return max(integer(value) or 1, 1)
