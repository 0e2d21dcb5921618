"""A device that waits for copies: what is advised by where tensors come from, and their size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import summaries
from support.cases import Planted, case_of, on_device, with_run, with_summary
from support.findings import Row, is_silent, reports, row

from trainprof.findings.run_context import RunContext

PIN, UNBLOCK = {"pin_memory": True}, {"non_blocking": True}
BOTH = PIN | UNBLOCK
BACK = {"direction": "d2h", "exposed_s": 0.0}
BY_TRAINER = {"built_by": "transformers"}


def copies(
    each: float = 4 * summaries.MIB,
    *,
    copy_s: float = 0.6,
    wait_s: float = 0.0,
    loader: dict[str, Any] | None = None,
    is_both_ways: bool = False,
    is_beside_large: bool = False,
    **changes: Any,
) -> RunContext:
    """A run of which copies of `each` bytes take 0.6 s; the host waits for `wait_s` of it."""
    planted = Planted(workers=2, fetch_s=0.002).having(**(loader or {}))
    context = on_device(case_of(planted), copy_s=copy_s)
    [plain] = context.summary.transfers
    plain = replace(plain, bytes=round(plain.count * each), **changes)
    rows = [plain]
    if is_both_ways:
        rows.append(replace(plain, **BACK))
    if is_beside_large:
        rows.append(replace(plain, site="train.py:99", exposed_s=0.2, bytes=1 << 40))
    devices = [replace(device, copy_wait_s=wait_s) for device in context.summary.devices or ()]
    return with_summary(context, transfers=rows, devices=devices)


def saving(saved_s: float, change: dict[str, Any], context: RunContext) -> Row:
    return row(context, "train.py:57", saved_s=saved_s, change=change)


PINNED = {"pinned_share": 1.0}
SMALL_AND_LARGE = copies(4_096, exposed_s=0.4, is_beside_large=True)
NO_LOADER = replace(with_summary(copies(), loaders=[]), feeding=[])

test_blocking_copies = reports(
    "blocking_copies",
    {
        "a batch": saving(0.6, BOTH, copies()),
        "no batch": saving(0.6, UNBLOCK, copies(1.5 * 4.6 * summaries.MIB)),
        "what no loader gives": saving(0.6, UNBLOCK, NO_LOADER),
        "a package builds the loader": saving(0.6, PIN, copies(loader=BY_TRAINER)),
        "a class that the loader does not pin": saving(0.6, UNBLOCK, copies(loader=PIN)),
        "in a loader": saving(0.6, {}, copies(loader={"touches_device": True})),
        "by a library": saving(0.6, PIN, copies(by_library_share=0.5)),
        "both ways": saving(0.6, PIN, copies(is_both_ways=True)),
        "a part of a run": saving(0.6, PIN, with_run(copies(), part="epoch 2")),
        "made": saving(0.5, {}, copies(is_made_there=True, exposed_s=0.5)),
        "small": saving(0.3, {}, copies(65_535)),
        "small and large": saving(0.2, {}, SMALL_AND_LARGE),
        "back": saving(0.6, {}, copies(64, direction="d2h")),
        "pinned, waits": saving(0.5, UNBLOCK, copies(wait_s=0.5, **PINNED)),
        "pinned, of a package": saving(0.5, {}, copies(wait_s=0.5, loader=BY_TRAINER, **PINNED)),
        "pinned": saving(0.6, {}, copies(wait_s=0.1, **PINNED)),
    },
)
test_little = is_silent("blocking_copies", {"a little": copies(copy_s=0.1)})
