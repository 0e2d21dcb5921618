"""What of a loader its workers, or those that live on, would not do as training means it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.events import US, FakeRun

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose
from trainprof.record.schema import Kind, Topic


def give(run: FakeRun, loader: int, number: int) -> None:
    run.leaf(Kind.LOADER_NEXT, 100 * US, site=loader, value=number)


def in_pairs(run: FakeRun, loader: int) -> None:
    """`zip(loader, loader)`."""
    run.iterate(loader)
    run.iterate(loader)
    for number in range(1, 5):
        give(run, loader, number)
        give(run, loader, number)
    run.stop(loader)


def looked_at_meanwhile(run: FakeRun, loader: int) -> None:
    """An evaluation of some batches in the middle of a pass."""
    run.iterate(loader)
    for number in range(1, 5):
        give(run, loader, number)
    run.iterate(loader)
    give(run, loader, 1)
    give(run, loader, 2)
    for number in range(5, 9):
        give(run, loader, number)
    run.stop(loader)


def one_by_one(run: FakeRun, loader: int) -> None:
    """Passes that are left, after as many batches or fewer."""
    for batches in (4, 3, 4, 1):
        run.iterate(loader)
        for number in range(1, batches + 1):
            give(run, loader, number)


def resumed(run: FakeRun, loader: int) -> None:
    """torchdata's StatefulDataLoader counts on from where its state was."""
    run.iterate(loader)
    for number in range(1, 5):
        give(run, loader, number)
    run.iterate(loader)
    for number in range(5, 9):
        give(run, loader, number)


def made_and_dropped(run: FakeRun, loader: int) -> None:
    run.iterate(loader)
    run.iterate(loader)
    for number in range(1, 5):
        give(run, loader, number)
    run.stop(loader)


@pytest.mark.parametrize(
    ("use", "overlaps"),
    [
        (in_pairs, True),
        (looked_at_meanwhile, True),
        (one_by_one, False),
        (resumed, False),
        (made_and_dropped, False),
    ],
)
def test_whether_passes_of_a_loader_overlap(
    tmp_path, use: Callable[[FakeRun, int], None], overlaps: bool
) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    run.train_pass(loader, optimizer, 4)
    use(run, loader)
    run.train_pass(loader, optimizer, 4)
    (found,) = run.summary(tmp_path).loaders
    assert found.overlaps is overlaps
    assert found.may_keep_workers is not overlaps


def only(planted: Planted) -> Finding:
    (finding,) = diagnose(case_of(planted)).findings
    return finding


def test_workers_of_passes_that_overlap_are_not_to_be_kept() -> None:
    planted = Planted(workers=2, fetch_s=0.02, passes=10, start_s=0.3)
    planted.loader = replace(planted.loader, overlaps=True)
    finding = only(planted)
    assert (finding.id, finding.change) == ("worker_restart", {})
    planted = Planted(fetch_s=0.03, compute_s=0.01, passes=10)
    assert only(planted).change.keys() == {"num_workers", "persistent_workers"}
    planted.loader = replace(planted.loader, overlaps=True)
    assert only(planted).change.keys() == {"num_workers"}


def test_what_training_changes_is_to_be_shared_first() -> None:
    planted = Planted(workers=2, fetch_s=0.02, passes=10, start_s=0.3)
    planted.loader = replace(planted.loader, changed_between_passes=["transform.p", "level"])
    finding = only(planted)
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert "the dataset's transform.p and level" in finding.advice


@pytest.mark.parametrize(
    ("numbers", "is_new"), [((1, 2, 3, 4), True), ((1, 1, 1, 1), False), ((1, 1, 2, 2), False)]
)
def test_whether_loaders_built_anew_have_new_datasets(
    tmp_path, numbers: tuple[int, ...], is_new: bool
) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    for number in numbers:
        run.mark(Kind.LOADER_BUILT, site=loader, value=number)
        # What older runs had besides: numbers of samplers and collate functions.
        run.mark(94, site=loader, value=number)
        run.train_pass(loader, optimizer, 4)
    (found,) = run.summary(tmp_path).loaders
    assert found.is_rebuilt
    assert found.is_of_new_parts is is_new


@pytest.mark.parametrize("line", [10, 11])
def test_what_one_loader_of_a_line_forbids_counts_for_all(tmp_path, line: int) -> None:
    run = FakeRun()
    train, optimizer = run.loader(10, num_workers=2), run.optimizer()
    other = run.loader(line, num_workers=2, length=3)
    changed = {"loader": other, "attribute": "level"}
    run.text(Topic.ENVIRONMENT, {"changed_dataset": changed})
    for _ in range(2):
        run.train_pass(train, optimizer, 4)
        in_pairs(run, other)
    found, _ = run.summary(tmp_path).loaders
    is_one = line == 10
    assert found.overlaps is is_one
    assert found.changed_between_passes == (["level"] if is_one else [])
    assert found.may_keep_workers is not is_one


def of_folds(built: int, **metadata: Any) -> Planted:
    """Ten passes over loaders that are built one after the other."""
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.3)
    planted.loader = replace(planted.loader, built=built, **metadata)
    return planted


def test_the_first_start_of_each_fold_is_not_saved() -> None:
    value, folds, halves = (only(of_folds(built)) for built in (1, 5, 2))
    for finding in (value, folds, halves):
        assert (finding.id, finding.change) == ("worker_restart", {"persistent_workers": True})
    assert value.recoverable_s is not None
    assert folds.recoverable_s == pytest.approx(5 / 9 * value.recoverable_s, rel=1e-6)
    assert halves.recoverable_s == pytest.approx(8 / 9 * value.recoverable_s, rel=1e-6)


def test_loaders_that_a_library_builds_or_that_each_pass_builds_are_counted_as_before() -> None:
    assert of_folds(5, built_by="transformers").loader.later_passes == 9
    anew = of_folds(10)
    assert anew.loader.is_rebuilt
    assert anew.loader.later_passes == 9


def test_workers_for_the_loaders_of_folds_are_started_for_each() -> None:
    gains = []
    for built in (1, 5):
        planted = Planted(fetch_s=0.03, compute_s=0.01, passes=10, spawn_s=Interval.exactly(0.2))
        planted.loader = replace(planted.loader, built=built)
        finding = only(planted)
        assert finding.change.keys() == {"num_workers", "persistent_workers"}
        assert finding.run_speedup is not None
        gains.append(finding.run_speedup[1])
    assert gains[1] < gains[0]
