"""Losses that ignore some of their targets, as probes/ignored_positions.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, share_in, times_in
from trainprof.analysis.names import Sites

_KEY: Final = "ignored_positions"
_MOST_TIMES: Final = 10.0


@dataclass(frozen=True, slots=True)
class IgnoringLoss:
    """A line that computes a loss of classes.

    Attributes:
        site: The user's.
        positions: Targets in a step.
        classes: Of which each logit is one.
        ignored: Share of the targets that the loss ignores.
        times: What all of the loss, and the matrix product that makes its logits, take in forward
            and backward: so many times what forwards and losses take.
    """

    site: str
    positions: int
    classes: int
    ignored: float
    times: float

    @property
    def spent(self) -> float:
        """What it takes for what it ignores, by the same measure."""
        return self.ignored * self.times


def ignored_positions(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[IgnoringLoss]:
    """Reads what was told last, longest first; nothing in it is trusted."""
    found = last_note(told, _KEY).get(_KEY)
    lines = [
        IgnoringLoss(
            site,
            positions=max(integer(one.get("positions")) or 1, 1),
            classes=max(integer(one.get("classes")) or 1, 1),
            ignored=ignored,
            times=times,
        )
        for one in dicts_in(found.get("lines") if isinstance(found, dict) else None)
        if (ignored := share_in(one.get("ignored"))) > 0
        and (times := times_in(one.get("times"), _MOST_TIMES)) > 0
        and (site := sites.known(integer(one.get("site")))) is not None
    ]
    return sorted(lines, key=lambda one: -one.spent)
