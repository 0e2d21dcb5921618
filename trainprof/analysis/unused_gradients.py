"""Gradients that no optimizer uses, as probes/unused_gradients.py told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainprof.analysis.facts import integer
from trainprof.analysis.names import Sites

_KEY = "unused_gradients"


@dataclass(frozen=True, slots=True)
class UnupdatedModel:
    """A module whose parameters no optimizer updates, all or some of them.

    Attributes:
        name: Of its class.
        site: The user's line that calls it, None where that is not known.
        parameters: How many it has.
        unused: How many of them have a gradient that nothing uses.
        parts: The largest parts that those make up, such as "backbone"; [""] for all of it.
        more_parts: How many more there are.
    """

    name: str
    site: str | None
    parameters: int
    unused: int
    parts: list[str]
    more_parts: int


@dataclass(frozen=True, slots=True)
class UnusedGradients:
    """What backward computes for nothing, by a few of its passes.

    Attributes:
        looks: How many passes were looked at.
        unused_share: Of a pass's time, what went to nodes that such gradients alone need.
        mixed_share: What went to nodes that compute such gradients beside some that are used.
        parameters: How many have them.
        numbers: In all of those.
        is_of_whole_run: It was so from the first steps on.
        models: Largest first.
    """

    looks: int
    unused_share: float
    mixed_share: float
    parameters: int
    numbers: int
    is_of_whole_run: bool
    models: list[UnupdatedModel]


def unused_gradients(told: Iterable[Mapping[str, Any]], sites: Sites) -> UnusedGradients | None:
    """Reads what was told last; nothing in it is trusted. None where nothing was found."""
    notes = [note for note in told if _KEY in note]
    last = max(notes, key=lambda note: integer(note.get("number")) or 0, default=None)
    found = last[_KEY] if last is not None else None
    if not isinstance(found, dict):
        return None
    shares = [_share(found.get(name)) for name in ("unused_share", "mixed_share")]
    models = found.get("models")
    return UnusedGradients(
        looks=integer(found.get("looks")) or 0,
        unused_share=shares[0],
        mixed_share=min(shares[1], 1 - shares[0]),
        parameters=integer(found.get("tensors")) or 0,
        numbers=integer(found.get("numbers")) or 0,
        is_of_whole_run=found.get("from_start") is True,
        models=[
            _model(one, sites)
            for one in (models if isinstance(models, list) else [])
            if isinstance(one, dict)
        ],
    )


def _share(told: object) -> float:
    return min(max(float(told), 0.0), 1.0) if isinstance(told, (int, float)) else 0.0


def _model(told: Mapping[str, Any], sites: Sites) -> UnupdatedModel:
    parts = told.get("parts")
    return UnupdatedModel(
        name=str(told.get("class", "unknown")),
        site=sites.known(integer(told.get("site"))),
        parameters=integer(told.get("of")) or 0,
        unused=integer(told.get("tensors")) or 0,
        parts=[str(part) for part in parts] if isinstance(parts, list) else [],
        more_parts=integer(told.get("more_parts")) or 0,
    )
