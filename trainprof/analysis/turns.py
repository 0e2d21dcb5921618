"""Loaders of one line that live side by side and take turns: one a client, a task, a file."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from trainprof.analysis.facts import Facts
from trainprof.analysis.passes import TRAINING, Passes
from trainprof.analysis.rebuilt import OF_ONE_PART, likeness


def loaders_taking_turns(
    passes: list[Passes], facts: Facts, rebuilt: Collection[int]
) -> dict[int, int]:
    """Returns the id of each loader that takes turns with others of its line, and of one of them.

    They train, are alike in all that is known but their data, each pass ends before another one's
    begins, and they come again. The one is that with most batches, whose passes are the epochs.

    Args:
        passes: Of every loader, their stages decided.
        facts: Of every loader.
        rebuilt: Ids of those that stand for several, built anew: they do not live side by side.
    """
    alike: dict[str, list[Passes]] = {}
    for p in passes:
        key = likeness(facts.loader(p.loader), OF_ONE_PART)
        if key is not None and p.role == TRAINING and p.loader not in rebuilt:
            alike.setdefault(key, []).append(p)
    found: dict[int, int] = {}
    for group in alike.values():
        if _take_turns(group):
            most = max(group, key=lambda p: (int(p.batches[p.trained()].sum()), -int(p.start[0])))
            found |= {p.loader: most.loader for p in group if p is not most}
    return found


def _take_turns(group: list[Passes]) -> bool:
    """Whether each pass ends before another loader's begins, and some loader's come again."""
    if len(group) < 2:
        return False
    start, end = (np.concatenate([getattr(p, x) for p in group]) for x in ("start", "end"))
    order = np.argsort(start, kind="stable")
    if (end[order][:-1] > start[order][1:]).any():
        return False
    whose = np.repeat([p.loader for p in group], [len(p) for p in group])[order]
    changes = np.count_nonzero(whose[1:] != whose[:-1])
    return bool(changes >= len(group))
