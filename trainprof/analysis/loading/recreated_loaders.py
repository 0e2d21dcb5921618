"""Loaders that are built anew for each use: Hugging Face's Trainer does so at every evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.timeline.iterations import Passes

# So many one after the other, of data of another length each, are parts of one.
_MANY_PARTS: Final = 4
_OF_ONE: Final = ("serial",)
_OF_ONE_PART: Final = (*_OF_ONE, "dataset_length", "length", "dataset_number")

Id = TypeVar("Id", np.uint32, np.int64)


def rebuilt_loaders(passes: list[Passes], metadata: Metadata) -> dict[int, int]:
    """Returns the id of each loader that an earlier one was built anew as, and that one's id.

    Built by the same line, of the same dataset, alike in all else that is known of them, of the
    same role, and none used until the one before had been used for the last time. While something
    holds on to the earlier ones they have ids of their own. Of many (files of a data set, rounds of
    a growing one) the datasets may differ.

    Args:
        passes: Of every loader, their stages decided.
        metadata: Of every loader.
    """
    found: dict[int, int] = {}
    for chain in _chains(passes, metadata, _OF_ONE):
        found |= {p.loader: chain[0].loader for p in chain[1:]}
    for chain in _chains(passes, metadata, _OF_ONE_PART):
        if len({found.get(p.loader, p.loader) for p in chain}) >= _MANY_PARTS:
            found |= {p.loader: chain[0].loader for p in chain[1:]}
    return found


def _chains(
    passes: list[Passes], metadata: Metadata, left_out: tuple[str, ...]
) -> list[list[Passes]]:
    """Returns loaders that were used one after the other, alike but for some facts."""
    chains: dict[tuple[str, str], list[list[Passes]]] = {}
    for p in sorted(passes, key=lambda p: int(p.start[0])):
        key = likeness(metadata.loader(p.loader), left_out)
        if key is None:
            continue
        alike = chains.setdefault((p.role, key), [])
        before = next((chain for chain in alike if chain[-1].end.max() <= p.start[0]), None)
        if before is None:
            alike.append([p])
        else:
            before.append(p)
    return [chain for alike in chains.values() for chain in alike]


def likeness(metadata: Mapping[str, Any], left_out: tuple[str, ...]) -> str | None:
    """Returns what is equal of loaders that one line builds alike; None where no line is known.

    Args:
        metadata: Of the loader.
        left_out: Names of those that may differ.
    """
    if not isinstance(metadata.get("site"), int):
        return None
    return json.dumps({k: v for k, v in metadata.items() if k not in left_out}, sort_keys=True)


def joined_passes(passes: list[Passes], first_of: Mapping[int, int]) -> list[Passes]:
    """Gives the passes of loaders that count as one to that one, in order of time.

    Args:
        passes: Of every loader; no two of those that count as one overlap.
        first_of: By the id of each of the others, that of the one.
    """
    groups: dict[int, list[Passes]] = {}
    for p in sorted(passes, key=lambda p: int(p.start[0])):
        groups.setdefault(first_of.get(p.loader, p.loader), []).append(p)
    return [_joined(loader, groups[loader]) for loader in sorted(groups)]


def _joined(loader: int, group: list[Passes]) -> Passes:
    names = [field.name for field in fields(Passes) if field.name not in ("loader", "role")]
    order = np.argsort(np.concatenate([p.start for p in group]), kind="stable")
    columns: dict[str, Any] = {
        n: np.concatenate([getattr(p, n) for p in group])[order] for n in names
    }
    return replace(group[0], loader=loader, **columns)


def renumbered(ids: npt.NDArray[Id], first_of: Mapping[int, int]) -> npt.NDArray[Id]:
    """Replaces the ids of loaders that count as another one by that one's."""
    if not first_of:
        return ids
    known = np.array(sorted(first_of), dtype=ids.dtype)
    firsts = np.array([first_of[number] for number in known.tolist()], dtype=ids.dtype)
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[place] == ids, firsts[place], ids)
