"""What is advised against waiting for copies, by where the tensors come from and their size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of, on_device
from support.found import found, only

from trainprof.findings.run_context import RunContext

BATCH = 4.6 * summaries.MIB
BOTH = {"pin_memory": True, "non_blocking": True}
UNBLOCK = {"non_blocking": True}
BACK = {"direction": "d2h", "exposed_s": 0.0}
HF_PIN = "TrainingArguments(..., dataloader_pin_memory=True)"
HF_COPY = 'accelerator_config={"non_blocking": True}'


def copies(
    each: float = 4 * summaries.MIB,
    *,
    copy_s: float = 0.6,
    wait_s: float = 0.0,
    loader: dict[str, Any] | None = None,
    back_at: str | None = None,
    part: str | None = None,
    **changes: Any,
) -> RunContext:
    """A run of which copies of so many bytes each take 0.6 s, for `wait_s` of it the host waits."""
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, **(loader or {}))
    context = on_device(case_of(planted), copy_s=copy_s)
    [row] = context.summary.transfers
    row = replace(row, bytes=round(row.count * each), **changes)
    rows = [row] if back_at is None else [row, replace(row, site=back_at, **BACK)]
    devices = [replace(device, copy_wait_s=wait_s) for device in context.summary.devices or ()]
    run = replace(context.summary.run, part=part)
    summary = replace(context.summary, transfers=rows, devices=devices, run=run)
    return replace(context, summary=summary)


SITE = copies().summary.transfers[0].site


@pytest.mark.parametrize(
    ("how", "advice", "change", "saved_s"),
    [
        pytest.param({}, "DataLoader(..., pin_memory=True) with .to(", BOTH, 0.6, id="a batch"),
        pytest.param({"each": 1.04 * BATCH}, "DataLoader(", BOTH, 0.6, id="nearly as large"),
        pytest.param({"each": 1.5 * BATCH}, ".pin_memory() on the", UNBLOCK, 0.6, id="no batch"),
        pytest.param(
            {"loader": {"built_by": "transformers"}},
            f"{HF_PIN} with {HF_COPY}",
            {"pin_memory": True},
            0.6,
            id="a package builds the loader",
        ),
        pytest.param(
            {"loader": {"pin_memory": True}},
            "a pin_memory() method for the batch's own class",
            UNBLOCK,
            0.6,
            id="a class that the loader does not pin",
        ),
        pytest.param(
            {"loader": {"touches_device": True}}, "move .to(device) out", {}, 0.6, id="in a loader"
        ),
        pytest.param(
            {"by_library_share": 0.5}, "DataLoader(", {"pin_memory": True}, 0.6, id="by a library"
        ),
        pytest.param({"back_at": SITE}, "DataLoader(", {"pin_memory": True}, 0.6, id="both ways"),
        pytest.param({"back_at": "train.py:99"}, "DataLoader(", BOTH, 0.6, id="back elsewhere"),
        pytest.param(
            {"part": "epoch 2"}, "DataLoader(", {"pin_memory": True}, 0.6, id="a part of a run"
        ),
        pytest.param(
            {"is_made_there": True, "exposed_s": 0.5}, "make it on the device", {}, 0.5, id="made"
        ),
        pytest.param({"each": 65_535}, "fewer and larger copies", {}, 0.3, id="small"),
        pytest.param({"each": 65_536}, "DataLoader(", BOTH, 0.6, id="not small"),
        pytest.param({"each": 64, "direction": "d2h"}, "bring fewer values", {}, 0.6, id="back"),
        pytest.param(
            {"pinned_share": 1.0, "wait_s": 0.5}, ".to(device", UNBLOCK, 0.5, id="pinned, waits"
        ),
        pytest.param(
            {"pinned_share": 1.0, "wait_s": 0.5, "loader": {"built_by": "transformers"}},
            f"TrainingArguments(..., {HF_COPY})",
            {},
            0.5,
            id="pinned, waits, a package",
        ),
        pytest.param(
            {"pinned_share": 1.0, "wait_s": 0.1}, "copy the next batch on", {}, 0.6, id="pinned"
        ),
        pytest.param(
            {"pinned_share": 1.0, "non_blocking_share": 1.0},
            "copy the next batch on",
            {},
            0.6,
            id="pinned, not blocking",
        ),
    ],
)
def test_what_is_advised(
    how: dict[str, Any], advice: str, change: dict[str, Any], saved_s: float
) -> None:
    finding = only(copies(**how))
    assert (finding.id, finding.site, finding.change) == ("blocking_copies", SITE, change)
    assert finding.advice.startswith(advice)
    assert finding.recoverable_s == pytest.approx(saved_s)
    assert bool(finding.cautions) is ("non_blocking" in finding.advice)


def test_small_copies_beside_large_ones_save_no_more_than_they_take() -> None:
    context = copies(4_096, exposed_s=0.4)
    large = replace(context.summary.transfers[0], site="train.py:99", exposed_s=0.2, bytes=1 << 40)
    rows = [*context.summary.transfers, large]
    finding = only(replace(context, summary=replace(context.summary, transfers=rows)))
    assert finding.recoverable_s == pytest.approx(0.2)


def test_what_no_loader_gives_is_pinned_by_itself() -> None:
    context = copies()
    context = replace(context, feeding=[], summary=replace(context.summary, loaders=[]))
    finding = only(context)
    assert (finding.id, finding.change) == ("blocking_copies", UNBLOCK)
    assert finding.advice == ".pin_memory() on the tensor with .to(device, non_blocking=True)"


def test_copies_that_take_little_are_left_alone() -> None:
    assert found(copies(copy_s=0.1)) == []
