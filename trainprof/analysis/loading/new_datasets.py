"""Which batches are of a dataset that was made lately: of what a policy has collected, say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.recreated_loaders import renumbered
from trainprof.analysis.timeline.events import Bool, Int64
from trainprof.record.schema import Kind


@dataclass(frozen=True, slots=True)
class BuiltLoaders:
    """When loaders were iterated for the first time, in order.

    Attributes:
        loader: Their ids, shape (n,).
        built_ns: When each was, ns.
        first_ns: When a loader of its dataset was for the first time, ns; 0 where nobody knows.
    """

    loader: Int64
    built_ns: Int64
    first_ns: Int64

    @staticmethod
    def of(details: npt.NDArray[np.void]) -> BuiltLoaders:
        """Finds them in the details of the process that trains."""
        built = details[details["kind"] == Kind.LOADER_BUILT]
        built = built[np.argsort(built["start"], kind="stable")]
        start, dataset = built["start"].astype(np.int64), built["value"].astype(np.int64)
        _, first, which = np.unique(dataset, return_index=True, return_inverse=True)
        first_ns = np.where(dataset > 0, start[first][which], 0)
        return BuiltLoaders(built["site"].astype(np.int64), start, first_ns)

    def joined(self, first_of: Mapping[int, int]) -> BuiltLoaders:
        """Returns them with those that count as another one under that one's id."""
        return replace(self, loader=renumbered(self.loader, first_of))

    def are_of_new_data(self, loader: Int64, asked_ns: Int64, since_ns: Int64) -> Bool:
        """Whether batches are of a dataset that no loader had before some time.

        Args:
            loader: Of each batch, shape (n,).
            asked_ns: When each was asked for.
            since_ns: That time, of each.
        """
        found = np.zeros(len(loader), dtype=bool)
        for number in np.unique(loader).tolist():
            mine, asked = self.loader == number, loader == number
            first_ns = np.append(self.first_ns[mine], 0)
            last = np.searchsorted(self.built_ns[mine], asked_ns[asked], side="right") - 1
            found[asked] = (first_ns[last] > 0) & (first_ns[last] >= since_ns[asked])
        return found
