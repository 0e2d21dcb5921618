"""Lines whose micro-batches are all averaged among ranks, as probe.py notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.run.metadata import dicts_in, integer, last_note, number
from trainprof.analysis.run.place_names import Sites

_SYNCS: Final = "gradient_syncs"


@dataclass(frozen=True, slots=True)
class GradientSyncs:
    """Calls from one line of a model in DistributedDataParallel.

    Attributes:
        site: The user's line, None where that is not known.
        batches: Of an update, as a mean; gradients are averaged after each.
    """

    site: str | None
    batches: float


def gradient_syncs(told: Iterable[Mapping[str, Any]], sites: Sites) -> list[GradientSyncs]:
    """Reads what was noted last, those of the most batches first; nothing in it is trusted."""
    found = [
        GradientSyncs(sites.known(integer(one.get("site"))), batches)
        for one in dicts_in(last_note(told, _SYNCS).get(_SYNCS))
        if (batches := number(one.get("batches"), 0.0)) > 1
    ]
    return sorted(found, key=lambda one: -one.batches)
