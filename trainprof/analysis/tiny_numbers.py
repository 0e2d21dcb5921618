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
        since: Steps before the first such.
        operators_s: Of a step since then: what operators of models' forwards took longer for them.
        optimizers_s: And what optimizers did.
        share: The most of one tensor's numbers that were such.
        site: The user's line that calls the first such model, None where no model is concerned.
    """

    looks: int
    since: int
    operators_s: float
    optimizers_s: float
    share: float
    site: str | None


def tiny_numbers(told: Iterable[Mapping[str, Any]], sites: Sites) -> TinyNumbers | None:
    """Reads what was told last; nothing in it is trusted. None where there were none."""
    found = last_note(told, _TINY_NUMBERS).get(_TINY_NUMBERS)
    if not isinstance(found, dict):
        return None
    looks = _of(found, "looks")
    if not looks:
        return None
    operators_s, optimizers_s = (
        _of(found, f"{name}_ns") / 1e9 / max(_of(found, f"{name}_looks"), 1)
        for name in ("operators", "optimizers")
    )
    site = integer(found.get("site"))
    return TinyNumbers(
        looks=looks,
        since=_of(found, "since"),
        operators_s=operators_s,
        optimizers_s=optimizers_s,
        share=share_in(found.get("share", 0.0)),
        site=sites.known(site) if site else None,
    )


def _of(found: Mapping[str, Any], name: str) -> int:
    return max(integer(found.get(name)) or 0, 0)
