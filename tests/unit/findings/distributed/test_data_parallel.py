"""Models in nn.DataParallel."""

from __future__ import annotations

import pytest
from support.cases import healthy, noted
from support.findings import finding_of

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
    finding = finding_of(RULE.id, healthy(notes=notes, settings=settings))
    assert (finding and finding.site) == site
    assert finding is None or finding.predicted_speedup is None
