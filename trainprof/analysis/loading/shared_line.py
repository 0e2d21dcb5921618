"""Loaders that one call of the user's builds: what is changed in it counts for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainprof.analysis.summary.loader import Loader
from trainprof.record.names import UNKNOWN_SITE


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
            changed_between_passes=_changed(loader, loaders),
        )
        for loader, serial in numbered
    ]


def _changed(loader: Loader, loaders: Sequence[Loader]) -> list[str]:
    """Returns what training changes of a loader's dataset, and of those that its call builds."""
    all_of_call = (loader, *_of_call(loader, loaders))
    names = (name for one in all_of_call for name in one.changed_between_passes)
    return list(dict.fromkeys(names))


def _of_call(loader: Loader, loaders: Sequence[Loader]) -> list[Loader]:
    return [one for one in loaders if _is_of_one_call(loader, one)]


def _is_of_one_call(one: Loader, other: Loader) -> bool:
    if one.built_by is not None or other.built_by is not None or one.site == UNKNOWN_SITE:
        return False
    ends = [None if loader.call is None else loader.call.ends_at for loader in (one, other)]
    return one.site == other.site and (None in ends or ends[0] == ends[1])
