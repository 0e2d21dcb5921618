"""Streams whose workers leave out each other's samples once they have made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from trainprof.analysis.code_figures import LateSelection
from trainprof.analysis.fetches import FetchTable
from trainprof.analysis.hot_lines import FAIR_KNOWN_SHARE, MIN_KNOWN_SHARE, looks_at_making
from trainprof.analysis.looks import MIN_LOOKS, LineNames, Looks, Stack
from trainprof.analysis.names import Sites

# Of how many lines a damaged log may tell.
_MOST_LINES: Final = 10_000


def late_selection_of(
    facts: Mapping[str, Any],
    sites: Sites,
    fetches: FetchTable,
    loader: int,
    looks_by: Mapping[tuple[int, int], tuple[Looks, LineNames]],
) -> LateSelection | None:
    """Returns where a loader's stream selects samples, and what it has done for all by then.

    Args:
        facts: As probes/loader_description.py tells them.
        sites: Names of places.
        fetches: Of all loaders.
        loader: Its id.
        looks_by: Looks, and the names of what was seen, by pid and thread.

    Returns:
        None where it selects nothing by number, and where that is not known.
    """
    told = facts.get("selects_late")
    # What older runs lack comes last.
    if not isinstance(told, list) or [type(one) for one in told[:5]] != [int, int, int, str, list]:
        return None
    begins, last, at, function, drawn, *more = told
    file, _, first = sites[begins].rpartition(":")
    met = looks_at_making(fetches, loader, looks_by)
    known = met.stacks.total()
    if not first.isdigit() or met.asked < MIN_LOOKS or known < MIN_KNOWN_SHARE * met.asked:
        return None
    lines = {
        f"{file}:{line}" for line in range(int(first), min(last, int(first) + _MOST_LINES) + 1)
    }
    reading = {f"{file}:{line}" for line in drawn}
    ahead, read = _met_within(met.stacks, lines, function, reading)
    counted = met.asked if known < FAIR_KNOWN_SHARE * met.asked else known
    is_random, is_carried = (more[i : i + 1] == [True] for i in range(2))
    return LateSelection(f"{file}:{at}", ahead / counted, read / counted, is_random, is_carried)


def _met_within(
    stacks: Counter[Stack], lines: set[str], function: str, reading: set[str]
) -> tuple[int, int]:
    """Counts the looks that met what was done at one of some lines of a function.

    Returns:
        Those that met work, and those that met nothing but the drawing of a record.
    """
    work = read = 0
    for frames, count in stacks.items():
        if any(site in lines and name == function for site, name in frames):
            if frames[0][0] in reading:
                read += count
            else:
                work += count
    return work, read
