"""A device that waits for copies: what is advised by where tensors come from, and their size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of, on_device, with_run, with_summary
from support.findings import only, reported

from trainprof.findings.run_context import RunContext

BATCH = 4.6 * summaries.MIB
PIN, UNBLOCK = {"pin_memory": True}, {"non_blocking": True}
BOTH = PIN | UNBLOCK
BACK = {"direction": "d2h", "exposed_s": 0.0}
PINNED = {"pinned_share": 1.0}
BY_TRAINER = {"built_by": "transformers"}


def copies(
    each: float = 4 * summaries.MIB,
    *,
    copy_s: float = 0.6,
    wait_s: float = 0.0,
    loader: dict[str, Any] | None = None,
    back_at: str | None = None,
    beside_large: bool = False,
    part: str | None = None,
    **changes: Any,
) -> RunContext:
    """A run of which copies of `each` bytes take 0.6 s; the host waits for `wait_s` of it."""
    planted = Planted(workers=2, fetch_s=0.002).having(**(loader or {}))
    context = on_device(case_of(planted), copy_s=copy_s)
    [row] = context.summary.transfers
    row = replace(row, bytes=round(row.count * each), **changes)
    rows = [row]
    if back_at is not None:
        rows.append(replace(row, site=back_at, **BACK))
    if beside_large:
        rows.append(replace(row, site="train.py:99", exposed_s=0.2, bytes=1 << 40))
    devices = [replace(device, copy_wait_s=wait_s) for device in context.summary.devices or ()]
    return with_run(with_summary(context, transfers=rows, devices=devices), part=part)


SITE = copies().summary.transfers[0].site


@pytest.mark.parametrize(
    ("how", "change", "saved_s"),
    [
        pytest.param({}, BOTH, 0.6, id="a batch"),
        pytest.param({"each": 1.04 * BATCH}, BOTH, 0.6, id="nearly as large"),
        pytest.param({"each": 1.5 * BATCH}, UNBLOCK, 0.6, id="no batch"),
        pytest.param({"loader": BY_TRAINER}, PIN, 0.6, id="a package builds the loader"),
        pytest.param({"loader": PIN}, UNBLOCK, 0.6, id="a class that the loader does not pin"),
        pytest.param({"loader": {"touches_device": True}}, {}, 0.6, id="in a loader"),
        pytest.param({"by_library_share": 0.5}, PIN, 0.6, id="by a library"),
        pytest.param({"back_at": SITE}, PIN, 0.6, id="both ways"),
        pytest.param({"back_at": "train.py:99"}, BOTH, 0.6, id="back elsewhere"),
        pytest.param({"part": "epoch 2"}, PIN, 0.6, id="a part of a run"),
        pytest.param({"is_made_there": True, "exposed_s": 0.5}, {}, 0.5, id="made"),
        pytest.param({"each": 65_535}, {}, 0.3, id="small"),
        pytest.param(
            {"each": 4_096, "exposed_s": 0.4, "beside_large": True}, {}, 0.2, id="small and large"
        ),
        pytest.param({"each": 65_536}, BOTH, 0.6, id="not small"),
        pytest.param({"each": 64, "direction": "d2h"}, {}, 0.6, id="back"),
        pytest.param({**PINNED, "wait_s": 0.5}, UNBLOCK, 0.5, id="pinned, waits"),
        pytest.param(
            {**PINNED, "wait_s": 0.5, "loader": BY_TRAINER}, {}, 0.5, id="pinned, waits, a package"
        ),
        pytest.param({**PINNED, "wait_s": 0.1}, {}, 0.6, id="pinned"),
        pytest.param({**PINNED, "non_blocking_share": 1.0}, {}, 0.6, id="pinned, not blocking"),
    ],
)
def test_blocking_copies(how: dict[str, Any], change: dict[str, Any], saved_s: float) -> None:
    finding = only(copies(**how))
    assert (finding.id, finding.site, finding.change) == ("blocking_copies", SITE, change)
    assert finding.recoverable_s == pytest.approx(saved_s)


def test_what_no_loader_gives_is_pinned_by_itself() -> None:
    finding = only(replace(with_summary(copies(), loaders=[]), feeding=[]))
    assert (finding.id, finding.change) == ("blocking_copies", UNBLOCK)


def test_copies_that_take_little_are_left_alone() -> None:
    assert reported(copies(copy_s=0.1)) == []
