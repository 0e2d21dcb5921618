"""Large files that each trial copies first, since the script opens them to change them in place."""

from __future__ import annotations

from typing import Final

from trainprof.experiments.found import Found

_MOST_NAMED: Final = 3


def copied_files(found: Found) -> list[str]:
    """Returns what is to be said of them; nothing where there was none."""
    copied = {path: size for run in found.runs for path, size in run.copied.items()}
    if not copied:
        return []
    largest = sorted(copied, key=lambda path: -copied[path])
    names = ", ".join(largest[:_MOST_NAMED])
    if len(largest) > _MOST_NAMED:
        names += f" and {len(largest) - _MOST_NAMED} more"
    size = sum(copied.values()) / (1 << 30)
    return [
        f"the script opens {names} for writing, so that each trial copied {size:,.1f} GiB first: "
        "that took room and time, and what reading it from disk costs does not show, since the "
        'copy was in memory. numpy.memmap opens so unless it is told mode="r"'
    ]
