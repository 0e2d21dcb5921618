"""How much of what a model is given is padding, as probes/padding.py told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainprof.analysis.facts import integer, integers, last_note, share_in
from trainprof.analysis.names import Sites

_PADDING = "padding"


@dataclass(frozen=True, slots=True)
class Padding:
    """Of a few batches of sequences.

    Attributes:
        looks: How many batches, spread over the run.
        width: Places of a row, on average.
        length: Of those, how many are no padding.
        longest: And how many in a batch's longest.
        sites: The user's lines that ask for rows of one length.
        of_calls: Of the time of models that are trained, in those that are given sequences.
        is_left_out: The script's files name what leaves padding out of what is computed.
        is_left: Padding stands in front, of most rows of batches.
        has_labels: The model is given a table of labels as well, one for each place.
    """

    looks: int
    width: float
    length: float
    longest: float
    sites: tuple[str, ...]
    is_left_out: bool
    of_calls: float = 1.0
    is_left: bool = False
    has_labels: bool = False

    @property
    def share(self) -> float:
        """Of all places, padding."""
        return 1 - self.length / self.width

    @property
    def needless_share(self) -> float:
        """Of all places, padding beyond the longest of each batch."""
        return 1 - self.longest / self.width


def padding(told: Iterable[Mapping[str, Any]], sites: Sites) -> Padding | None:
    """Reads what was told last; nothing in it is trusted. None where no sequences were met."""
    found = last_note(told, _PADDING).get(_PADDING)
    if not isinstance(found, dict):
        return None
    rows, places, filled, longest = (
        max(integer(found.get(name)) or 0, 0) for name in ("rows", "places", "filled", "longest")
    )
    if not 0 < rows <= places or not filled <= longest <= places:
        return None
    asked = [sites.known(one) for one in integers(found.get("sites"))]
    return Padding(
        looks=max(integer(found.get("looks")) or 0, 0),
        width=places / rows,
        length=filled / rows,
        longest=longest / rows,
        sites=tuple(dict.fromkeys(one for one in asked if one is not None)),
        is_left_out=found.get("is_left_out") is True,
        of_calls=share_in(found.get("of_calls", 1.0)),
        is_left=2 * (integer(found.get("left")) or 0) > rows,
        has_labels=found.get("has_labels") is True,
    )
