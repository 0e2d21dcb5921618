"""Batches that are padded beyond their longest sequence, and what leaving that out gives."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import Planted, case_of, noted, with_run, with_summary
from support.findings import finding_of, high_of, only, reported

from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.finding import LIKELY
from trainprof.findings.model.padded_batches.probe import PaddingNote
from trainprof.findings.run_context import RunContext

# Of batches of 10 rows.
COUNTS = {"looks": 12, "rows": 120, "places": 19_200, "filled": 4_320, "longest": 10_800}
LEFT = 10_800 / 19_200


def padded(at: str | None = None, *, collate: str | None = None, **changes: Any) -> RunContext:
    """Most of training is forward and backward."""
    planted = Planted(workers=2, fetch_s=0.001, compute_s=0.01).having(collate_site=collate)
    values: dict[str, Any] = {**COUNTS, **changes, "sites": (1,) if at else ()}
    notes = noted(PaddingNote(**values), places=(at,) if at else ())
    return case_of(planted, parts={"forward": 0.7, "backward": 1.3}, notes=notes)


@pytest.mark.parametrize(
    ("context", "site", "of_computing"),
    [
        (padded("train.py:40"), "train.py:40", 1.0),
        (padded(collate="data.py:30"), "data.py:30", 1.0),
        (padded(), "train.py:41", 1.0),
        (padded(reading_ns=3, all_ns=4), "train.py:41", 0.75),  # of several models
    ],
    ids=["its line", "the collate function", "the loader", "one of several models"],
)
def test_padded_batches(context: RunContext, site: str, of_computing: float) -> None:
    finding = only(context)
    assert (finding.id, finding.site, finding.is_at_most) == ("padded_batches", site, True)
    assert [finding.evidence[x] for x in ("width", "longest", "length")] == [160, 90, 36]
    computing_s = sum(context.training.get(part, 0.0) for part in ("forward", "loss", "backward"))
    spent_s = (1 - LEFT) * of_computing * computing_s
    assert finding.recoverable_s == pytest.approx(spent_s, rel=0.01)
    likely = finding.evidence[LIKELY]
    assert likely == pytest.approx(context.training_s / (context.training_s - spent_s), rel=0.02)
    # Attention grows with the square.
    assert high_of(finding) > 1.1 * likely


@pytest.mark.parametrize(
    "changes",
    [
        {"looks": 3},
        {"longest": 19_000},  # padded to the longest of each batch
        {"filled": 11_000},
        {"rows": -1},
        {"is_left_out": True},
        {"reading_ns": 1, "all_ns": 100},
    ],
)
def test_others(changes: dict[str, Any]) -> None:
    assert reported(padded(**changes)) == []


@pytest.mark.parametrize(("at_work", "is_reported"), [(0.9, True), (0.1, False)])
def test_on_a_device_only_its_own_work_counts(at_work: float, is_reported: bool) -> None:
    seconds: dict[str, Any] = {"seconds": {"forward": 10.0, "backward": 20.0}}
    busy, idle = [at_work, 0.95], {"host_s": 0.1}
    device = Device(0, "cuda:0", busy, idle, {}, None, None, 2000, **seconds)
    context = with_summary(with_run(padded(), device="cuda:0"), devices=[device])
    assert (finding_of("padded_batches", context) is not None) is is_reported
