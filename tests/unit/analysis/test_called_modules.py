"""What is found of modules that are called row by row, beside the model, or averaged each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, idle_device

from trainprof.analysis.calls_told import (
    DATA,
    METRIC,
    WATCHED,
    GradientSyncs,
    SampleCalls,
    SideModule,
    gradient_syncs,
    sample_calls,
    side_modules,
)
from trainprof.analysis.code_figures import PythonInModel
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.same_line import joined_by_line
from trainprof.analysis.finding import Finding
from trainprof.analysis.names import Sites
from trainprof.analysis.torch_settings import TorchSettings

ROWS = SampleCalls("train.py:30", "Net", rows=32.0, each_s=0.0005, seconds=1.6, share=0.8)
AUGMENT = SideModule("train.py:22", "Augment", DATA, calls=40, seconds=0.5)
ACCURACY = SideModule("train.py:25", "BinaryAccuracy", METRIC, calls=40, seconds=0.4)
LOOK = SideModule(None, "Distance", WATCHED, calls=40, seconds=0.3)


def found(case: Case, rule: str) -> list[Finding]:
    return [one for one in diagnose(case).findings if one.id == rule]


def called(planted: Planted | None = None, **told: Any) -> Case:
    """Two seconds of forward and one of backward."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(
        healthy if planted is None else planted,
        parts={"backward": 1.0},
        torch=TorchSettings(**told),
    )


def test_a_batch_that_is_taken_apart() -> None:
    case = called(sample_calls=[ROWS])
    [finding] = found(case, "forward_by_sample")
    most_s = 0.8 * (1 - 1 / 32) * (2.0 + 1.0)
    assert finding.site == "train.py:30"
    assert "Net is called here for one row of a batch at a time, 32 times" in finding.title
    assert finding.evidence["at_most_saved_s"] == pytest.approx(most_s)
    assert finding.recoverable_s == pytest.approx(most_s / 2)
    assert finding.is_at_most
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] > case.training_s / (case.training_s - most_s / 2)
    assert any("BatchNorm" in one for one in finding.cautions)


@pytest.mark.parametrize(
    "told",
    [[], [replace(ROWS, each_s=0.004)], [replace(ROWS, share=0.05)], [replace(ROWS, rows=1.05)]],
)
def test_calls_that_gain_little(told: list[SampleCalls]) -> None:
    assert found(called(sample_calls=told), "forward_by_sample") == []


def test_rows_that_are_computed_again_may_be_for_want_of_memory() -> None:
    case = called(sample_calls=[ROWS], is_checkpointing=True)
    assert found(case, "forward_by_sample") == []


def test_on_a_device_launches_are_told_of_instead() -> None:
    case = called(sample_calls=[ROWS], side_modules=[AUGMENT])
    run = replace(case.summary.run, device="cuda:0")
    summary = replace(case.summary, run=run, devices=[idle_device({"host_s": 1.0})])
    told = {one.id for one in diagnose(replace(case, summary=summary)).findings}
    assert not told & {"forward_by_sample", "untrained_modules"}


def test_python_between_the_calls_belongs_to_the_loop_over_rows() -> None:
    case = called(sample_calls=[ROWS])
    [rows] = found(case, "forward_by_sample")
    loop = replace(rows, id="python_in_loop", title="Python code takes", recoverable_s=0.2)
    [joined] = joined_by_line([loop, rows], case)
    assert joined.id == "forward_by_sample"
    assert joined.recoverable_s == pytest.approx(0.2 + (rows.recoverable_s or 0.0))
    elsewhere = replace(loop, site="train.py:31")
    assert joined_by_line([elsewhere, rows], case) == [elsewhere, rows]


@pytest.mark.parametrize(
    ("told", "does", "advice"),
    [
        (AUGMENT, "prepares here what the model is given", "in the dataset or collate_fn"),
        (ACCURACY, "is a metric, and is called here in each step", "compute() once an epoch"),
        (LOOK, "looks here at what the model gave", "every hundredth step"),
    ],
)
def test_a_module_that_has_nothing_to_learn(told: SideModule, does: str, advice: str) -> None:
    [finding] = found(called(side_modules=[told]), "untrained_modules")
    assert finding.site == told.site
    assert finding.title.startswith(f"{told.name}, which has nothing to learn, {does}")
    assert advice in (finding.advice or "")
    assert finding.recoverable_s == pytest.approx(told.seconds, rel=0.05)
    assert finding.is_at_most
    assert finding.cautions


def test_several_such_modules_are_one_finding() -> None:
    [finding] = found(called(side_modules=[AUGMENT, ACCURACY]), "untrained_modules")
    assert "with those below" in finding.title
    assert finding.evidence["calls_s"] == pytest.approx(0.9)
    assert "BinaryAccuracy is a metric" in finding.also[0]


def test_short_modules_are_not_told() -> None:
    told = [replace(AUGMENT, seconds=0.05)]
    assert found(called(side_modules=told), "untrained_modules") == []


def test_workers_that_are_late_are_not_given_more_to_do() -> None:
    late = Planted(workers=2, fetch_s=0.04, compute_s=0.01)
    assert found(called(late, side_modules=[AUGMENT]), "untrained_modules") == []
    without = Planted(fetch_s=0.001, compute_s=0.01)
    assert found(called(without, side_modules=[AUGMENT]), "untrained_modules") != []


def test_without_a_loader_or_a_second_core_nothing_can_be_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, metric = called(side_modules=[AUGMENT]), called(side_modules=[ACCURACY])
    for one, is_told in ((case, False), (metric, True)):
        assert bool(found(replace(one, feeding=[]), "untrained_modules")) is is_told
    monkeypatch.setattr(Case, "cores", lambda _: 1.0)
    assert found(case, "untrained_modules") == []
    assert found(metric, "untrained_modules") != []


def test_python_code_is_left_to_who_names_its_lines() -> None:
    case = called(side_modules=[AUGMENT])
    told = PythonInModel(looks=100, held=20, seconds={"forward": 0.4}, lines=[])
    case = replace(case, summary=replace(case.summary, python_in_model=told))
    assert found(case, "untrained_modules") == []


def averaged(batches: float, *, ranks: int = 2) -> Case:
    case = called(gradient_syncs=[GradientSyncs("train.py:40", batches)])
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


def test_what_was_told_is_read_with_care() -> None:
    sites = Sites({}, "")
    row = {"site": 1, "class": "Net", "rows": 8.0, "each_s": 1e-3, "seconds": 2.0, "share": 3}
    note = {"sample_calls": [row, {**row, "rows": "x"}, "x", {"rows": 0.5}], "number": 1}
    [one] = sample_calls([note], sites)
    assert (one.rows, one.share, one.site) == (8.0, 1.0, None)
    side = {"site": 1, "class": "Net", "role": "data", "calls": 3, "seconds": -1.0}
    note = {"side_modules": [side, {**side, "role": "x"}, {}, {**side, "seconds": 2}], "number": 1}
    assert [one.seconds for one in side_modules([note], sites)] == [2.0, 0.0]
    sync = {"site": 1, "class": "DistributedDataParallel", "batches": 2.0}
    note = {"gradient_syncs": [sync, {**sync, "batches": 4}, {"batches": None}, 7], "number": 1}
    assert [one.batches for one in gradient_syncs([note], sites)] == [4.0, 2.0]
