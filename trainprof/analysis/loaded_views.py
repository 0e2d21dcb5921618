"""Files of which a dataset uses a part of what they hold, as processes told it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.facts import integer, last_note
from trainprof.analysis.loader_figures import LoadedViews
from trainprof.analysis.names import Sites

_KEY: Final = "loaded_views"


def told_views(environments: Iterable[Mapping[str, Any]], sites: Sites) -> list[LoadedViews]:
    """Returns what a process told last; nothing in it is trusted.

    Args:
        environments: What it told of itself.
        sites: Names of its places.
    """
    told = last_note(environments, _KEY).get(_KEY)
    found = []
    for one in told if isinstance(told, list) else []:
        site, files, held, used = (
            integer(one.get(name)) if isinstance(one, dict) else None
            for name in ("site", "files", "held_bytes", "used_bytes")
        )
        known = sites.known(site)
        if known is not None and files and held and used is not None and 0 <= used < held:
            found.append(LoadedViews(known, files, held / files, used / files))
    return found


def views_at(lines: Iterable[HotLine], told: Sequence[LoadedViews]) -> LoadedViews | None:
    """Returns what the first of some lines loads, as told of most files."""
    for line in lines:
        here = [one for one in told if one.site == line.site]
        if here:
            return max(here, key=lambda one: one.files)
    return None
