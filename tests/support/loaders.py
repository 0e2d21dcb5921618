"""Datasets of numbers, and the probes that watch their loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.utils.data import Dataset, IterableDataset

from trainprof.inside.session import Probe
from trainprof.inside.spans.loader import LoaderProbe


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, length: int = 6) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """Yields 0 to 4, in each worker all of them."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def loader_probes(*behind: Callable[[LoaderProbe], Probe]) -> list[Probe]:
    """Returns a loader's probe, and those that are attached behind it."""
    loader = LoaderProbe()
    return [loader, *(probe(loader) for probe in behind)]
