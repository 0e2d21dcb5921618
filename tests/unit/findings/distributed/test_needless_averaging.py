"""Ranks that average gradients after each of several batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of, noted

from trainprof.findings.diagnose import diagnose
from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsNote
from trainprof.findings.distributed.needless_averaging.rule import ID


@pytest.mark.parametrize(
    ("batches", "ranks", "backward_s", "site"),
    [
        (4.0, 2, 1.0, "train.py:40"),
        (1.2, 2, 1.0, None),
        (4.0, 1, 1.0, None),
        (4.0, 2, 0.01, None),
        (None, 2, 1.0, None),
    ],
)
def test_needless_averaging(
    batches: float | None, ranks: int, backward_s: float, site: str | None
) -> None:
    syncs = [] if batches is None else [GradientSyncsNote(9, 1.0), GradientSyncsNote(1, batches)]
    context = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01),
        parts={"backward": backward_s},
        notes=noted(*syncs, places=("train.py:40",)),
    )
    run = replace(context.summary.run, world_size=ranks)
    findings = diagnose(replace(context, summary=replace(context.summary, run=run))).findings
    known = [finding for finding in findings if finding.id == ID]
    assert [finding.site for finding in known] == ([site] if site else [])
    assert all(finding.predicted_speedup is None for finding in known)
    assert all(finding.evidence["batches_of_an_update"] == batches for finding in known)
