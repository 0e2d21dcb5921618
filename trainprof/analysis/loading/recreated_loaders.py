"""Loaders that are recreated for each use, and datasets that are new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.analysis.timeline.iterations import LoaderIterations, Turns
from trainprof.record.schema import Kind

# This many one after the other, of data of another length each, are parts of one.
_MANY_PARTS: Final = 4
_OF_ONE: Final = ("serial",)
_OF_ONE_PART: Final = (*_OF_ONE, "dataset_length", "length", "dataset_number")

Id = TypeVar("Id", np.uint32, np.int64)


def rebuilt_loaders(loaders: list[LoaderIterations], metadata: Metadata) -> dict[int, int]:
    """Returns the id of each loader that recreates an earlier one, and that one's id.

    Built by the same line, of the same dataset, alike in all that is known, of the same role, and
    used one after the other. Of many (files of a data set, rounds of a growing one) the datasets
    may differ.
    """
    first_of: dict[int, int] = {}
    for chain in _chains(loaders, metadata, _OF_ONE):
        first_of |= {p.loader: chain[0].loader for p in chain[1:]}
    for chain in _chains(loaders, metadata, _OF_ONE_PART):
        if len({first_of.get(p.loader, p.loader) for p in chain}) >= _MANY_PARTS:
            first_of |= {p.loader: chain[0].loader for p in chain[1:]}
    return first_of


def _chains(
    loaders: list[LoaderIterations], metadata: Metadata, left_out: tuple[str, ...]
) -> list[list[LoaderIterations]]:
    """Returns loaders that one line built alike, and that were used one after the other."""
    chains: dict[tuple[str, str], list[list[LoaderIterations]]] = {}
    for p in sorted(loaders, key=lambda p: int(p.start[0])):
        record = metadata.loader(p.loader)
        if not isinstance(record.get("site"), int):
            continue
        likeness = {k: v for k, v in record.items() if k not in left_out}
        alike = chains.setdefault((p.role, json.dumps(likeness, sort_keys=True)), [])
        before = next((chain for chain in alike if chain[-1].end.max() <= p.start[0]), None)
        if before is None:
            alike.append([p])
        else:
            before.append(p)
    return [chain for alike in chains.values() for chain in alike]


def joined_iterations(
    loaders: list[LoaderIterations], first_of: Mapping[int, int]
) -> list[LoaderIterations]:
    """Gives the iterations of recreated loaders to the first of each, in order of time."""
    groups: dict[int, list[LoaderIterations]] = {}
    for p in sorted(loaders, key=lambda p: int(p.start[0])):
        groups.setdefault(first_of.get(p.loader, p.loader), []).append(p)
    return [_joined(loader, groups[loader]) for loader in sorted(groups)]


def _joined(loader: int, group: list[LoaderIterations]) -> LoaderIterations:
    order = np.argsort(np.concatenate([p.start for p in group]), kind="stable")
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(p, field.name) for p in group])[order]
        for field in fields(LoaderIterations)
        if field.name not in ("loader", "role", "dataset", "turns")
    }
    return replace(group[0], loader=loader, turns=_joined_turns(group), **columns)


def _joined_turns(group: list[LoaderIterations]) -> Turns | None:
    if all(p.turns is None for p in group):
        return None
    before = np.cumsum([0, *(len(p) for p in group)])
    turns = [p.turns or Turns(p.start, np.arange(len(p))) for p in group]
    return Turns(
        np.concatenate([x.start for x in turns]),
        np.concatenate([x.number + first for x, first in zip(turns, before, strict=False)]),
    )


def renumbered(ids: npt.NDArray[Id], first_of: Mapping[int, int]) -> npt.NDArray[Id]:
    """Replaces the ids of loaders that count as another one by that one's."""
    if not first_of:
        return ids
    known = np.array(sorted(first_of), dtype=ids.dtype)
    firsts = np.array([first_of[number] for number in known.tolist()], dtype=ids.dtype)
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[place] == ids, firsts[place], ids)


@dataclass(frozen=True, slots=True)
class BuiltLoaders:
    """When loaders were iterated for the first time, in order.

    Attributes:
        built_ns: When each was.
        first_ns: When a loader of its dataset was for the first time; 0 where unknown.
    """

    loader: Int64
    built_ns: Int64
    first_ns: Int64

    @staticmethod
    def of(details: npt.NDArray[np.void]) -> BuiltLoaders:
        built = details[details["kind"] == Kind.LOADER_BUILT]
        built = built[np.argsort(built["start"], kind="stable")]
        start, dataset = built["start"].astype(np.int64), built["value"].astype(np.int64)
        _, first, which = np.unique(dataset, return_index=True, return_inverse=True)
        first_ns = np.where(dataset > 0, start[first][which], 0)
        return BuiltLoaders(built["site"].astype(np.int64), start, first_ns)

    def joined(self, first_of: Mapping[int, int]) -> BuiltLoaders:
        """Returns them with those that count as another one under that one's id."""
        return replace(self, loader=renumbered(self.loader, first_of))

    def dataset_of(self, loader: int) -> int:
        """Returns a number of the dataset that a loader was first built of; 0 where unknown."""
        return int(np.append(self.first_ns[self.loader == loader], 0)[0])

    def are_of_new_data(self, loader: Int64, asked_ns: Int64, since_ns: Int64) -> Bool:
        """Whether batches are of a dataset that no loader had before some time."""
        is_new = np.zeros(len(loader), dtype=bool)
        for number in np.unique(loader).tolist():
            mine, asked = self.loader == number, loader == number
            first_ns = np.append(self.first_ns[mine], 0)
            last = np.searchsorted(self.built_ns[mine], asked_ns[asked], side="right") - 1
            is_new[asked] = (first_ns[last] > 0) & (first_ns[last] >= since_ns[asked])
        return is_new
