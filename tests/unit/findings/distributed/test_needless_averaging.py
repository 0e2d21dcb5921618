"""Ranks that average gradients after each of several batches."""

from __future__ import annotations

import pytest
from support.cases import healthy, noted, with_run
from support.findings import finding_of

from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsNote
from trainprof.findings.distributed.needless_averaging.rule import RULE


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
    notes = noted(*syncs, places=("train.py:40",))
    context = with_run(healthy(parts={"backward": backward_s}, notes=notes), world_size=ranks)
    finding = finding_of(RULE.id, context)
    assert (finding and finding.site) == site
    if finding is not None:
        assert finding.predicted_speedup is None
        assert finding.evidence["batches_of_an_update"] == batches
