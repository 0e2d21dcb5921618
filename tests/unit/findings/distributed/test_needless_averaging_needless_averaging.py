"""Gradients that ranks average after each of several batches of an update."""

from __future__ import annotations

from dataclasses import replace

from support.cases import Planted, case_of, noted

from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsNote
from trainprof.findings.run_context import Case


def found(case: Case, rule: str) -> list[Finding]:
    return [one for one in diagnose(case).findings if one.id == rule]


def called(*notes: GradientSyncsNote) -> Case:
    """Two seconds of forward and one of backward."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(healthy, parts={"backward": 1.0}, notes=noted(*notes, places=("train.py:40",)))


def averaged(batches: float, *, ranks: int = 2) -> Case:
    case = called(GradientSyncsNote(9, 1.0), GradientSyncsNote(1, batches))
    run = replace(case.summary.run, world_size=ranks)
    return replace(case, summary=replace(case.summary, run=run))


def test_gradients_averaged_for_nothing() -> None:
    [finding] = found(averaged(4.0), "needless_averaging")
    assert finding.site == "train.py:40"
    assert "after each of 4 batches, and use them once" in finding.title
    assert "of the first 3 of each update" in (finding.advice or "")
    assert finding.predicted_speedup is None
    assert any("the last batch" in one for one in finding.cautions)


def test_one_batch_or_one_rank_averages_nothing_for_nothing() -> None:
    for case in (averaged(1.2), averaged(4.0, ranks=1), called()):
        assert found(case, "needless_averaging") == []
    little = replace(averaged(4.0), training={**averaged(4.0).training, "backward": 0.01})
    assert found(little, "needless_averaging") == []
