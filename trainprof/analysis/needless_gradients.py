"""Gradients that backward computes for nothing, as probes/gradient_use.py noted them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainprof.analysis.facts import dicts_in, integer, last_note, share_in
from trainprof.analysis.names import Sites


@dataclass(frozen=True, slots=True)
class NeedlessGradients:
    """Gradients that no optimizer has, or that are thrown away before theirs steps.

    Attributes:
        unused_share: Of backward, what such gradients alone need.
        mixed_share: Of backward, what computes them in modules that used gradients go through.
        parameters: That have them.
        is_of_whole_run: It was so from the first steps on.
        model: Class of the module that has most of them, "" where none is known.
        model_site: The user's line that calls it.
        is_all_of_model: It has no others.
        site: The user's line that begins the passes, of those that are thrown away.
        called_from: The line that calls that one, where others do so for other passes.
    """

    unused_share: float
    mixed_share: float
    parameters: int
    is_of_whole_run: bool
    model: str = ""
    model_site: str | None = None
    is_all_of_model: bool = True
    site: str | None = None
    called_from: str | None = None


def unused_gradients(notes: Iterable[Mapping[str, Any]], sites: Sites) -> NeedlessGradients | None:
    """Reads what was noted last; nothing in it is trusted. None where nothing was."""
    note = last_note(notes, "unused_gradients").get("unused_gradients")
    return _read(note, note, sites) if isinstance(note, dict) else None


def discarded_gradients(
    notes: Iterable[Mapping[str, Any]], sites: Sites
) -> list[NeedlessGradients]:
    """Reads what was noted last, the lines of the most time first; nothing in it is trusted."""
    last = last_note(notes, "discarded_gradients")
    read = [_read(one, last, sites) for one in dicts_in(last.get("discarded_gradients"))]
    return sorted(read, key=lambda one: -(one.unused_share + one.mixed_share))


def _read(note: Mapping[str, Any], all_of_it: Mapping[str, Any], sites: Sites) -> NeedlessGradients:
    unused, mixed = (share_in(note.get(name)) for name in ("unused_share", "mixed_share"))
    model: Mapping[str, Any] = next(iter(dicts_in(note.get("models"))), {})
    return NeedlessGradients(
        unused,
        min(mixed, 1 - unused),
        integer(note.get("tensors")) or 0,
        all_of_it.get("from_start") is True,
        str(model.get("class", "")),
        sites.known(integer(model.get("site"))),
        integer(model.get("tensors")) == integer(model.get("of")),
        sites.known(integer(note.get("site"))),
        sites.known(integer(note.get("caller"))),
    )
