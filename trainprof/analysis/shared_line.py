"""Loaders that one call of the user's builds: what is changed in it counts for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.names import UNKNOWN_SITE


def with_others_of_line(loaders: Sequence[Loader], serials: Sequence[object]) -> list[Loader]:
    """Says of each loader what those are for that its line builds besides.

    Args:
        loaders: Of the run.
        serials: Of each, which tells it from those of its line that live at the same time.
    """
    numbered = list(zip(loaders, serials, strict=True))
    return [
        replace(
            loader,
            also_builds=sorted(
                {
                    other.role
                    for other, other_serial in numbered
                    if _is_of_one_call(loader, other)
                    # One that it is built anew as, for the same with other arguments, is no other.
                    and (other.role, other_serial) != (loader.role, serial)
                }
            ),
        )
        for loader, serial in numbered
    ]


def _is_of_one_call(one: Loader, other: Loader) -> bool:
    if one.built_by is not None or other.built_by is not None or one.site == UNKNOWN_SITE:
        return False
    ends = [None if loader.call is None else loader.call.ends_at for loader in (one, other)]
    return one.site == other.site and (None in ends or ends[0] == ends[1])
