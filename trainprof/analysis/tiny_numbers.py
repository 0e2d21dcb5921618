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
        forward_kept_s: Of a step: what those operators take without, as far as that was timed.
            Older runs do not tell.
        backward_kept_s: And what backward takes for them.
        optimizers_kept_s: Likewise, what optimizers take.
        gradients_s: What operators took longer in backward for gradients that were such.
        gradients_kept_s: What these take without.
        gradients_share: The most of one gradient's numbers that were such.
        gradients_site: The user's line that calls the first such backward, None where there is
            none.
    """

    looks: int
    since: int
    operators_s: float
    optimizers_s: float
    share: float
    site: str | None
    forward_kept_s: float = 0.0
    backward_kept_s: float = 0.0
    optimizers_kept_s: float = 0.0
    gradients_s: float = 0.0
    gradients_kept_s: float = 0.0
    gradients_share: float = 0.0
    gradients_site: str | None = None


def tiny_numbers(told: Iterable[Mapping[str, Any]], sites: Sites) -> TinyNumbers | None:
    """Reads what was told last; nothing in it is trusted. None where there were none."""
    found = last_note(told, _TINY_NUMBERS).get(_TINY_NUMBERS)
    if not isinstance(found, dict):
        return None
    looks = _of(found, "looks")
    if not looks:
        return None
    site, behind = (integer(found.get(name)) for name in ("site", "gradients_site"))
    return TinyNumbers(
        looks=looks,
        since=_of(found, "since"),
        operators_s=_seconds(found, "operators"),
        optimizers_s=_seconds(found, "optimizers"),
        share=share_in(found.get("share", 0.0)),
        site=sites.known(site) if site else None,
        forward_kept_s=_seconds(found, "operators", "_kept"),
        backward_kept_s=_seconds(found, "operators", "_kept_behind"),
        optimizers_kept_s=_seconds(found, "optimizers", "_kept"),
        gradients_s=_seconds(found, "gradients"),
        gradients_kept_s=_seconds(found, "gradients", "_kept"),
        gradients_share=share_in(found.get("gradients_share", 0.0)),
        gradients_site=sites.known(behind) if behind else None,
    )


def _seconds(found: Mapping[str, Any], whose: str, what: str = "") -> float:
    """Returns what was told of all looks, of one of them."""
    return _of(found, f"{whose}{what}_ns") / 1e9 / max(_of(found, f"{whose}_looks"), 1)


def _of(found: Mapping[str, Any], name: str) -> int:
    return max(integer(found.get(name)) or 0, 0)
