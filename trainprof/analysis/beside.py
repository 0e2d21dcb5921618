"""Another thread of the script's that keeps the one that trains from running."""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeGuard

import numpy as np

from trainprof.analysis.code_figures import CompetingThread
from trainprof.analysis.events import Bool
from trainprof.analysis.fetches import Details
from trainprof.analysis.ledger import KEY, LOADER_KEYS
from trainprof.analysis.looks import MIN_LOOKS, LineNames, Looks, PartsOfLoop
from trainprof.record.schema import Kind

# Of training, kept from running and the other thread on a core: from here on it is worth a word.
KEPT_FROM_SHARE: Final = 0.1
AT_WORK_FROM_SHARE: Final = 0.2
# In these the training thread may wait for something else.
_WAITING: Final = ("transfer", "sync", "device_wait", "checkpoint", "evaluation")
# Of the looks beside the other thread: where the interpreter was free so often, the training
# thread may as well have slept over its data.
_FREE_MINDED: Final = 0.2
# Of the looks that met another thread: so many in one function.
_MOSTLY: Final = 0.5


def holds_the_interpreter(told: CompetingThread | None) -> TypeGuard[CompetingThread]:
    """Whether another thread kept training from running."""
    return (
        told is not None
        and told.site is not None
        and told.kept_share >= KEPT_FROM_SHARE
        and told.at_work_share >= AT_WORK_FROM_SHARE
    )


def competing_thread(
    details: Details,
    looks: Looks,
    thread: int,
    parts: PartsOfLoop,
    names: LineNames,
    training_s: float,
    *,
    has_workers: bool,
) -> CompetingThread | None:
    """Returns which other thread was at work beside training, and what that kept training from.

    None where there was none, or too few looks met one. On a core the training thread is at work,
    and while it waits for one the cores are too few. What is left is waiting for the interpreter at
    most. It is not where a look found the interpreter free and that thread asleep all the same, nor
    where it waited for a device, a file, another thread, or for data that workers make: as much
    time as such looks stand for is taken off.

    Args:
        details: Of the process.
        looks: At the thread that trains, in order.
        thread: That.
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
    site, function, is_of_it = _most_met(rows, names)
    is_free, waits = _as_looked(rows, looks)
    keys = [*_WAITING]
    if has_workers or took_ns[is_free].sum() >= _FREE_MINDED * took_ns.sum():
        keys += LOADER_KEYS
    no_matter = is_free | waits | np.isin(at, [KEY[name] for name in keys]) | ~is_of_it
    asleep_ns = took_ns - own_ns
    kept_ns = float(asleep_ns.sum() - took_ns[no_matter].sum())
    at_work_ns = float((took_ns * rows["flags"] / 100)[is_of_it].sum())
    return CompetingThread(
        site=site,
        function=function,
        at_work_share=min(at_work_ns / 1e9 / training_s, 1.0),
        kept_s=max(kept_ns, 0.0) / 1e9,
        kept_share=min(max(kept_ns / 1e9 / training_s, 0.0), 1.0),
        looks=len(rows),
        asleep_s=float(asleep_ns[is_of_it].sum()) / 1e9,
    )


def _most_met(rows: Details, names: LineNames) -> tuple[str | None, str, Bool]:
    """Returns the line and function that most rows met, and which rows met that function.

    No line where none of the user's functions has most of them.
    """
    top: dict[int, tuple[str, str]] = {}
    for number in np.unique(rows["site"]).tolist():
        (stack,) = names.stacks(np.array([number], dtype=np.int64))
        if stack:
            top[number] = stack[0]
    stacks = rows["site"].tolist()
    functions = Counter(top[number][1] for number in stacks if number in top)
    function, count = functions.most_common(1)[0] if functions else ("", 0)
    is_of_it = np.array([number in top and top[number][1] == function for number in stacks])
    if count < _MOSTLY * len(rows):
        return None, "", is_of_it
    sites = Counter(top[n][0] for n, met in zip(stacks, is_of_it.tolist(), strict=True) if met)
    return sites.most_common(1)[0][0], function, is_of_it


def _as_looked(rows: Details, looks: Looks) -> tuple[Bool, Bool]:
    """Returns which rows found it asleep though the interpreter was free, and which waiting."""
    if not len(looks):
        nowhere = np.zeros(len(rows), dtype=bool)
        return nowhere, nowhere
    ends = rows["end"].astype(np.int64)
    place = np.minimum(np.searchsorted(looks.taken_ns, ends), len(looks) - 1)
    is_told = looks.taken_ns[place] == ends
    free: Bool = is_told & (looks.held_ns[place] == 0) & ~looks.runs[place]
    waits: Bool = is_told & looks.waits[place]
    return free, waits
