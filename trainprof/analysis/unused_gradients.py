"""Gradients that backward computes for nothing, as the probes of that name told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.facts import dicts_in, integer, last_note, share_in
from trainprof.analysis.names import Sites

_UNUSED: Final = "unused_gradients"
_DISCARDED: Final = "discarded_gradients"


@dataclass(frozen=True, slots=True)
class PartOfModel:
    """A module, and those of its parameters that something is told of.

    Attributes:
        name: Of its class.
        site: The user's line that calls it, None where that is not known.
        parameters: How many it has.
        told: How many of them it is about.
        parts: The largest parts that those make up, such as "backbone"; [""] for all of it.
        more_parts: How many more there are.
    """

    name: str
    site: str | None
    parameters: int
    told: int
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
    models: list[PartOfModel]


@dataclass(frozen=True, slots=True)
class DiscardedGradients:
    """What passes from one line compute for optimizers that do not use it.

    Attributes:
        site: The user's line that begins them, None where that is not known.
        called_from: The line that calls that one, where others do so for other passes.
        looks: How many were looked at.
        unused_share: Of the time of all passes of backward, what went to nodes that such gradients
            alone need.
        mixed_share: What went to nodes that compute such gradients beside some that are used.
        goes_through: Other gradients, that are used, go through the same models.
        parameters: How many have them.
        numbers: In all of those.
        is_of_whole_run: It was so from the first steps on.
        models: Those that have them, largest first.
        kept: Those whose gradients are used, largest first; empty where these are not all.
    """

    site: str | None
    called_from: str | None
    looks: int
    unused_share: float
    mixed_share: float
    goes_through: bool
    parameters: int
    numbers: int
    is_of_whole_run: bool
    models: list[PartOfModel]
    kept: list[PartOfModel]


def unused_gradients(told: Iterable[Mapping[str, Any]], sites: Sites) -> UnusedGradients | None:
    """Reads what was told last; nothing in it is trusted. None where nothing was found."""
    found = last_note(told, _UNUSED).get(_UNUSED)
    if not isinstance(found, dict):
        return None
    unused, mixed = _shares(found)
    return UnusedGradients(
        looks=integer(found.get("looks")) or 0,
        unused_share=unused,
        mixed_share=mixed,
        parameters=integer(found.get("tensors")) or 0,
        numbers=integer(found.get("numbers")) or 0,
        is_of_whole_run=found.get("from_start") is True,
        models=_models(found.get("models"), sites),
    )


def discarded_gradients(
    told: Iterable[Mapping[str, Any]], sites: Sites
) -> list[DiscardedGradients]:
    """Reads what was told last, the lines of the most time first; nothing in it is trusted."""
    last = last_note(told, _DISCARDED)
    found = [_discarded(one, last, sites) for one in dicts_in(last.get(_DISCARDED))]
    return sorted(found, key=lambda one: -(one.unused_share + one.mixed_share))


def _discarded(
    told: Mapping[str, Any], note: Mapping[str, Any], sites: Sites
) -> DiscardedGradients:
    unused, mixed = _shares(told)
    kept = _models(told.get("kept"), sites)
    is_all = sum(one.told for one in kept) == integer(told.get("kept_tensors"))
    return DiscardedGradients(
        site=sites.known(integer(told.get("site"))),
        called_from=sites.known(integer(told.get("caller"))),
        looks=integer(told.get("looks")) or 0,
        unused_share=unused,
        mixed_share=mixed,
        # Not told by older runs: what cuts the graph is not advised unless it is known to be safe.
        goes_through=told.get("goes_through") is not False,
        parameters=integer(told.get("tensors")) or 0,
        numbers=integer(told.get("numbers")) or 0,
        is_of_whole_run=note.get("from_start") is True,
        models=_models(told.get("models"), sites),
        kept=kept if is_all else [],
    )


def _shares(told: Mapping[str, Any]) -> tuple[float, float]:
    unused, mixed = (share_in(told.get(name)) for name in ("unused_share", "mixed_share"))
    return unused, min(mixed, 1 - unused)


def _models(told: object, sites: Sites) -> list[PartOfModel]:
    return [_model(one, sites) for one in dicts_in(told)]


def _model(told: Mapping[str, Any], sites: Sites) -> PartOfModel:
    parts = told.get("parts")
    return PartOfModel(
        name=str(told.get("class", "unknown")),
        site=sites.known(integer(told.get("site"))),
        parameters=integer(told.get("of")) or 0,
        told=integer(told.get("tensors")) or 0,
        parts=[str(part) for part in parts] if isinstance(parts, list) else [],
        more_parts=integer(told.get("more_parts")) or 0,
    )
