"""Loaders that one call of the user's builds: what is changed in it counts for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.names import UNKNOWN_SITE


def with_others_of_line(loaders: Sequence[Loader], serials: Sequence[object]) -> list[Loader]:
    """Says of each loader what those are for that its line builds besides, and what they forbid.

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
            # The arguments of one call are those of all.
            overlaps=any(one.overlaps for one in (loader, *_of_call(loader, loaders))),
            changed_between_passes=_all(loader, loaders, lambda one: one.changed_between_passes),
            changed_in_sampler=_all(loader, loaders, lambda one: one.changed_in_sampler),
        )
        for loader, serial in numbered
    ]


def _all(
    loader: Loader, loaders: Sequence[Loader], names: Callable[[Loader], list[str]]
) -> list[str]:
    """Returns the names of a loader, and further ones of those that its call builds."""
    found = (name for one in (loader, *_of_call(loader, loaders)) for name in names(one))
    return list(dict.fromkeys(found))


def _of_call(loader: Loader, loaders: Sequence[Loader]) -> list[Loader]:
    return [one for one in loaders if _is_of_one_call(loader, one)]


def _is_of_one_call(one: Loader, other: Loader) -> bool:
    if one.built_by is not None or other.built_by is not None or one.site == UNKNOWN_SITE:
        return False
    ends = [None if loader.call is None else loader.call.ends_at for loader in (one, other)]
    return one.site == other.site and (None in ends or ends[0] == ends[1])
