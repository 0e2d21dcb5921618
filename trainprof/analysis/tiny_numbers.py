"""What denormal numbers cost, as probes/tiny_numbers.py told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainprof.analysis.facts import integer, last_note, share_in
from trainprof.analysis.names import Sites

_TINY_NUMBERS = "tiny_numbers"


@dataclass(frozen=True, slots=True)
class TinyNumbers:
    """Of a few steps that were looked at.

    Attributes:
        looks: In how many of them there were any.
        operators_s: Of a step: what operators of models' forwards took longer for them.
        optimizers_s: And what optimizers did.
        share: The most of one tensor's numbers that were such.
        site: The user's line that calls the first such model, None where no model is concerned.
    """

    looks: int
    operators_s: float
    optimizers_s: float
    share: float
    site: str | None


def tiny_numbers(told: Iterable[Mapping[str, Any]], sites: Sites) -> TinyNumbers | None:
    """Reads what was told last; nothing in it is trusted. None where there were none."""
    found = last_note(told, _TINY_NUMBERS).get(_TINY_NUMBERS)
    if not isinstance(found, dict):
        return None
    looks = max(integer(found.get("looks")) or 0, 0)
    if not looks:
        return None
    operators_ns, optimizers_ns = (
        max(integer(found.get(name)) or 0, 0) for name in ("operators_ns", "optimizers_ns")
    )
    site = integer(found.get("site"))
    return TinyNumbers(
        looks=looks,
        operators_s=operators_ns / looks / 1e9,
        optimizers_s=optimizers_ns / looks / 1e9,
        share=share_in(found.get("share", 0.0)),
        site=sites.known(site) if site else None,
    )
