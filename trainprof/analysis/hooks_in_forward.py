"""What hooks on modules take of a forward, by looks at where training stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from trainprof.analysis.code_figures import HooksInForward
from trainprof.analysis.facts import integer
from trainprof.analysis.hot_lines import lines_met
from trainprof.analysis.ledger import KEY
from trainprof.analysis.looks import MIN_LOOKS, LineNames, Looks, PartsOfLoop, Stack
from trainprof.analysis.names import Sites

_FORWARD: Final = "forward"
# A damaged log may tell any number.
_MOST_LINES: Final = 2_000


def lines_of_hooks(told: Iterable[Mapping[str, Any]], sites: Sites) -> frozenset[str]:
    """Returns the lines of the functions that probes/module_hooks.py told of, as file:line."""
    found: set[str] = set()
    for note in told:
        first = sites.known(integer(note.get("module_hook")))
        if first is None:
            continue
        file, _, number = first.rpartition(":")
        begin, last = int(number), integer(note.get("last_line")) or 0
        found.update(f"{file}:{line}" for line in range(begin, min(last, begin + _MOST_LINES) + 1))
    return frozenset(found)


def hooks_in_forward(
    looks: Looks,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    names: LineNames,
    hooks: frozenset[str],
    *,
    settled_ns: int,
) -> HooksInForward | None:
    """Returns what looks tell; None where too few of them met a hook.

    Args:
        looks: At the training thread.
        parts: Its.
        seconds: Of each part inside the loop, by ledger key.
        names: Of what was seen.
        hooks: Lines of functions that run as hooks, as file:line.
        settled_ns: When warm-up was over.
    """
    if not hooks:
        return None
    told = looks.where(looks.wanted_ns >= settled_ns)
    told = told.where(told.is_known & (parts.at(told.wanted_ns) == KEY[_FORWARD]))
    stacks = names.stacks(told.stack)
    inside: Counter[Stack] = Counter(
        {frames: n for frames, n in stacks.items() if any(site in hooks for site, _ in frames)}
    )
    met = inside.total()
    if met < MIN_LOOKS:
        return None
    share = met / int(np.size(told.stack))
    spent_s = share * seconds.get(_FORWARD, 0.0)
    return HooksInForward(met, share, spent_s, lines_met(_FORWARD, inside, met, spent_s))
