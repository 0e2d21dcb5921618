"""Batches that wait for a disk."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import Planted, case_of
from support.findings import only, reported


def reading(workers: int = 2, **fetch: Any) -> Planted:
    planted = Planted(workers=workers, fetch_s=0.08, reading=0.9, compute_s=0.005)
    return planted.having(fetch=fetch)


def calls(read: float | None, count: float | None) -> list[dict[str, float | None]]:
    row = {"read_bytes_per_s": read, "read_calls_per_s": count}
    return [{"worker": number, **row} for number in range(2)]


@pytest.mark.parametrize(
    ("planted", "brings"),
    [
        (reading(per_worker=calls(None, None)), None),
        (reading(per_worker=calls(40e6, 2000)), 20_000),
        (reading(per_worker=calls(400e6, 200)), 2_000_000),
    ],
    ids=["calls are unknown", "small reads", "large reads"],
)
def test_storage_bound(planted: Planted, brings: float | None) -> None:
    finding = only(case_of(planted))
    assert (finding.id, finding.site, finding.is_at_most) == ("storage_bound", "train.py:41", True)
    assert finding.evidence["reading_share"] == pytest.approx(0.9)
    assert finding.evidence["a_read_brings_bytes"] == brings


def test_without_bytes_read_it_is_no_disk() -> None:
    assert "storage_bound" not in reported(case_of(reading(4, read_bytes=0)))


def test_much_reading_is_named_where_neither_workers_nor_cores_are_short() -> None:
    # Forty workers at one disk: no more are tried.
    planted = Planted(workers=40, fetch_s=0.8, running=0.3, reading=0.4, compute_s=0.005, cores=40)
    assert reported(case_of(planted)) == ["storage_bound"]
