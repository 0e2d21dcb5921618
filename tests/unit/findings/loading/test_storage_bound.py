"""Batches that wait for a disk."""

from __future__ import annotations

from typing import Any

from support.cases import Planted
from support.findings import Row, is_silent, reports, row


def reading(workers: int = 2, **fetch: Any) -> Planted:
    planted = Planted(workers=workers, fetch_s=0.08, reading=0.9, compute_s=0.005)
    return planted.having(fetch=fetch)


def calls(read: float | None, count: float | None) -> Planted:
    figures = {"read_bytes_per_s": read, "read_calls_per_s": count}
    return reading(per_worker=[{"worker": number, **figures} for number in range(2)])


def of_reads(planted: Planted, brings: float | None) -> Row:
    return row(planted, reading_share=0.9, a_read_brings_bytes=brings, is_at_most=True)


# Forty workers at one disk: no more are tried.
FORTY = Planted(workers=40, fetch_s=0.8, running=0.3, reading=0.4, compute_s=0.005, cores=40)

test_storage_bound = reports(
    "storage_bound",
    {
        "calls are unknown": of_reads(calls(None, None), None),
        "small reads": of_reads(calls(40e6, 2000), 20_000.0),
        "large reads": of_reads(calls(400e6, 200), 2_000_000.0),
        "neither workers nor cores are short": row(FORTY),
    },
)
test_no_disk = is_silent("storage_bound", {"no bytes are read": reading(4, read_bytes=0)})
