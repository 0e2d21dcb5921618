"""Another thread of the script's that keeps the one that trains from running."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from trainprof.analysis.fetches import Details
from trainprof.analysis.ledger import KEY, LOADER_KEYS
from trainprof.analysis.looks import MIN_LOOKS, LineNames, PartsOfLoop
from trainprof.analysis.summary import CompetingThread
from trainprof.record.schema import Kind

# Of training, and of that time: from here on it is worth a word.
KEPT_FROM_SHARE: Final = 0.1
AT_WORK_FROM_SHARE: Final = 0.2
# In these the training thread may wait for something else, or for a device.
_WAITING: Final = (
    "transfer",
    "sync",
    "device_wait",
    "checkpoint",
    "evaluation",
)


def holds_the_interpreter(told: CompetingThread | None) -> bool:
    """Whether another thread kept training from running."""
    return (
        told is not None
        and told.site is not None
        and told.kept_share >= KEPT_FROM_SHARE
        and told.at_work_share >= AT_WORK_FROM_SHARE
    )


def competing_thread(
    details: Details,
    thread: int,
    parts: PartsOfLoop,
    names: LineNames,
    training_s: float,
    *,
    has_workers: bool,
) -> CompetingThread | None:
    """Returns which other thread was at work beside training, and what that kept training from.

    None where there was none, or too few looks met one. On a core the training thread is at work,
    and while it waits for one the cores are too few: what is left is waiting for the interpreter,
    once the parts in which it waits for something else are taken off as a whole.

    Args:
        details: Of the process.
        thread: That trains.
        parts: What it did when.
        names: Of stacks.
        training_s: Of the training loop.
        has_workers: Other processes make its batches, so that it waits for them.
    """
    rows = details[(details["kind"] == Kind.BESIDE) & (details["thread"] == thread)]
    at = parts.at(rows["end"].astype(np.int64))
    rows, at = rows[at >= 0], at[at >= 0]
    if len(rows) < MIN_LOOKS or training_s <= 0:
        return None
    took_ns = (rows["end"] - rows["start"]).astype(np.float64)
    own_ns = np.minimum(rows["value"].astype(np.float64), took_ns)
    waiting = (*_WAITING, *(LOADER_KEYS if has_workers else ()))
    waits = np.isin(at, [KEY[name] for name in waiting])
    kept_ns = float((took_ns - own_ns).sum() - took_ns[waits].sum())
    cores = float((took_ns * rows["flags"]).sum() / 100 / took_ns.sum())
    stacks = names.stacks(rows["site"].astype(np.int64))
    lines = Counter({stack[0]: count for stack, count in stacks.items() if stack})
    site, function = lines.most_common(1)[0][0] if lines else (None, "")
    return CompetingThread(
        site=site,
        function=function,
        at_work_share=cores,
        kept_s=max(kept_ns, 0.0) / 1e9,
        kept_share=min(max(kept_ns / 1e9 / training_s, 0.0), 1.0),
        looks=len(rows),
    )
