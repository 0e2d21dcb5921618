"""When padding is told of, and what leaving it out is said to give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, noted
from support.found import found, only

from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.finding import LIKELY
from trainprof.findings.model.padded_batches.probe import PaddingNote
from trainprof.findings.run_context import RunContext

# Of batches of 10 rows.
COUNTS = {"looks": 12, "rows": 120, "places": 19_200, "filled": 4_320, "longest": 10_800}
LEFT = 10_800 / 19_200


def padded(at: str | None = None, *, collate: str | None = None, **changes: Any) -> RunContext:
    """Most of training is forward and backward."""
    planted = Planted(workers=2, fetch_s=0.001, compute_s=0.01)
    planted.loader = replace(planted.loader, collate_site=collate)
    parts = {"forward": 0.7, "backward": 1.3}
    values: dict[str, Any] = {**COUNTS, **changes, "sites": (1,) if at else ()}
    notes = noted(PaddingNote(**values), places=(at,) if at else ())
    return case_of(planted, parts=parts, notes=notes)


@pytest.mark.parametrize(
    ("context", "site"),
    [
        (padded("train.py:40"), "train.py:40"),
        (padded(collate="data.py:30"), "data.py:30"),
        (padded(), "train.py:41"),
    ],
)
def test_padding_beyond_the_longest_of_a_batch_is_told_with_who_asks_for_it(
    context: RunContext, site: str
) -> None:
    finding = only(context)
    assert (finding.id, finding.site) == ("padded_batches", site)
    of_a_row = [finding.evidence[name] for name in ("width", "longest", "length")]
    assert of_a_row == [160, 90, 36]
    computing_s = sum(context.training.get(part, 0.0) for part in ("forward", "loss", "backward"))
    spent_s = (1 - LEFT) * computing_s
    assert finding.recoverable_s == pytest.approx(spent_s, rel=0.01)
    likely = finding.evidence[LIKELY]
    assert likely == pytest.approx(context.training_s / (context.training_s - spent_s), rel=0.02)
    # Attention grows with the square.
    assert finding.is_at_most
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] > 1.1 * likely


def test_of_several_models_those_count_that_read() -> None:
    finding = only(padded(reading_ns=3, all_ns=4))
    assert finding.recoverable_s == pytest.approx(0.75 * (only(padded()).recoverable_s or 0))


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
def test_nothing_is_told_of_others(changes: dict[str, Any]) -> None:
    assert found(padded(**changes)) == []


@pytest.mark.parametrize(("at_work", "is_told"), [(0.9, True), (0.1, False)])
def test_on_a_device_only_its_own_work_counts(at_work: float, is_told: bool) -> None:
    context = padded()
    seconds: dict[str, Any] = {"seconds": {"forward": 10.0, "backward": 20.0}}
    busy, idle = [at_work, 0.95], {"host_s": 0.1}
    device = Device(0, "cuda:0", busy, idle, {}, None, None, 2000, **seconds)
    run = replace(context.summary.run, device="cuda:0")
    context = replace(context, summary=replace(context.summary, run=run, devices=[device]))
    assert ("padded_batches" in found(context)) is is_told
