"""Copies between devices: what each line's cost."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from trainprof.analysis.summary.device import Transfer
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.sections import by_site
from trainprof.report.text.layout import Page
from trainprof.report.text.ledger_table import waits_are_merged
from trainprof.report.text.units import (
    byte_count,
    counted,
    is_known,
    percent,
    seconds,
    share_of,
    three_digits,
)

DIRECTIONS: Final = {"h2d": "to the device", "d2h": "to the host", "d2d": "between devices"}
# Smaller copies take a time of their own, whatever the link can do.
_FULL_RATE_BYTES: Final = 256 << 10
_SMALL_BYTES: Final = 64 << 10
_MANY_A_STEP: Final = 8
_MOST: Final = 0.5


def transfers_section(summary: RunSummary, page: Page) -> list[Text]:
    """Copies between devices by line, the dearest first; models that were moved are apart."""
    is_merged = waits_are_merged(summary)
    # By host time, where it is not known what they cost the device, one cannot rank them.
    ranked = (
        sorted(summary.transfers, key=lambda one: -one.bytes) if is_merged else summary.transfers
    )
    if not ranked:
        lines = page.labelled("Transfers", ["none seen"]) if page.verbose else []
    else:
        told = [_transfer(one, summary, page, is_merged=is_merged) for one in ranked]
        lines = by_site("Transfers", told, page)
    if not page.verbose or not summary.placements:
        return lines
    moved = [
        f"{page.site(one.site)} {counted(one.count, 'time')}, {seconds(one.host_s)}"
        for one in summary.placements
    ]
    return lines + page.labelled("Models", [f"moved or converted: {moved[0]}", *moved[1:]])


def _transfer(transfer: Transfer, summary: RunSummary, page: Page, *, is_merged: bool) -> list[str]:
    direction = DIRECTIONS.get(transfer.direction, "between unknown devices")
    pinned = f"{percent(transfer.pinned_share)} from pinned memory"
    told = [
        f"{page.site(transfer.site)} {direction}: {counted(transfer.count, 'copy', 'copies')}",
        byte_count(transfer.bytes),
        pinned if transfer.direction == "h2d" else "",
        _rate(transfer),
    ]
    if not is_merged:
        told.append(f"{seconds(transfer.host_s)} on the host")
    if transfer.device_s is not None:
        told.append(f"{seconds(transfer.device_s)} on the device")
    if transfer.exposed_s is not None and not is_merged:
        told.append(f"which did nothing else for {seconds(transfer.exposed_s)}")
    if transfer.beside_share is not None and transfer.beside_share > 0:
        told.append(f"{percent(transfer.beside_share)} of them beside other work")
    return [*told, *_notes(transfer, summary)]


def _rate(transfer: Transfer) -> str:
    rate = transfer.gb_per_s
    if rate is None or not is_known(rate) or not transfer.count:
        return ""
    if transfer.bytes / transfer.count < _FULL_RATE_BYTES:
        return ""
    return f"{three_digits(rate)} GB/s"


def _notes(transfer: Transfer, summary: RunSummary) -> list[str]:
    steps, notes = summary.training.steps, []
    size = share_of(transfer.bytes, transfer.count)
    if (
        transfer.direction == "h2d"
        and transfer.non_blocking_share >= _MOST
        and transfer.pinned_share < _MOST
    ):
        notes.append("non_blocking from memory that is not pinned: the host still copies it first")
    is_often = steps > 0 and transfer.count >= _MANY_A_STEP * steps
    if is_often and size is not None and size < _SMALL_BYTES:
        a_step = f"{transfer.count / steps:,.0f} a step"
        notes.append(f"many small ones: {a_step} of {byte_count(size)}, dearer than one large")
    return notes
