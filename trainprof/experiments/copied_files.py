"""What each trial copies first, since the script changes large files in place, or moves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainprof.experiments.found import Found

_MOST_NAMED: Final = 3


def copied_files(found: Found) -> list[str]:
    """Returns what is to be said of them; nothing where there was none."""
    copied = {path: size for run in found.runs for path, size in run.copied.items()}
    moved = {path: size for run in found.runs for path, size in run.moved.items()}
    told = []
    if copied:
        told.append(
            f"the script opens {_names(copied)} for writing, so that each trial copied "
            f"{_size(copied)} first: that took room and time, and what reading it from disk costs "
            "does not show, since the copy was in memory. numpy.memmap opens so unless it is told "
            'mode="r"'
        )
    if moved:
        told.append(
            f"the script moves {_names(moved)} away, so that each trial copied {_size(moved)} "
            "first: that took room and time, as no run of it does. With {trial} in the argument "
            "that names its place nothing is in its way"
        )
    return told


def _names(sizes: Mapping[str, int]) -> str:
    largest = sorted(sizes, key=lambda path: -sizes[path])
    names = ", ".join(largest[:_MOST_NAMED])
    return f"{names} and {len(largest) - _MOST_NAMED} more" if largest[_MOST_NAMED:] else names


def _size(sizes: Mapping[str, int]) -> str:
    return f"{sum(sizes.values()) / (1 << 30):,.1f} GiB"
