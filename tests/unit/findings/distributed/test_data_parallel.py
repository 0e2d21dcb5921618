"""Models in nn.DataParallel."""

from __future__ import annotations

import pytest
from support.cases import Planted, case_of, noted

from trainprof.findings.diagnose import diagnose
from trainprof.findings.distributed.data_parallel.probe import DataParallelNote
from trainprof.findings.distributed.data_parallel.rule import RULE


@pytest.mark.parametrize(
    ("note", "settings", "site"),
    [
        (DataParallelNote(1, 4), {}, "train.py:12"),
        (DataParallelNote(1, 1), {}, None),
        (DataParallelNote(1, 4), {"data_parallel.devices": 8.0}, None),
        (None, {}, None),
    ],
)
def test_data_parallel(
    note: DataParallelNote | None, settings: dict[str, float], site: str | None
) -> None:
    notes = noted(*([] if note is None else [note]), places=("train.py:12",))
    planted = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    findings = diagnose(case_of(planted, notes=notes, settings=settings)).findings
    known = [finding for finding in findings if finding.id == RULE.id]
    assert [finding.site for finding in known] == ([site] if site else [])
    assert all(finding.predicted_speedup is None for finding in known)
