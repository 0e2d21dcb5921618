"""Which call gives a loader of some class arguments, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainprof.analysis.summary.loader import Loader


def own_call(loader: Loader, given: Mapping[str, str]) -> str:
    """Returns the call that gives a loader arguments which the user's own code gives it.

    A class of the user's own may not take all that torch's does: what it lacks is given where its
    constructor calls its base's.

    Args:
        loader: Built by the user's own code.
        given: The arguments as one writes them, by name.
    """
    lacking = not_taken(loader, given)
    taken = [f"{name}={value}" for name, value in given.items() if name not in lacking]
    told = [f"{loader.kind}(..., {', '.join(taken)})"] if taken else []
    if lacking:
        others = ", ".join(f"{name}={given[name]}" for name in lacking)
        told.append(f"{others} {by_base(loader)}")
    return ", and ".join(told)


def not_taken(loader: Loader, names: Collection[str]) -> list[str]:
    """Returns which arguments a loader's class does not take; none where that is not known."""
    takes = loader.call.takes if loader.call is not None else ["**"]
    return [] if "**" in takes else [name for name in names if name not in takes]


def by_base(loader: Loader) -> str:
    """Returns where a loader's base is given what its class does not take."""
    if loader.call is None or not loader.call.constructors:
        return f"for this loader, by another way than {loader.kind}(...), which does not take it"
    return f"where the constructor at {loader.call.constructors[-1]} calls its base's"
