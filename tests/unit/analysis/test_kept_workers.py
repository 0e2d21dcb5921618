"""What keeps the workers of a loader from living on: two passes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.cases import Planted, case_of
from support.events import US, FakeRun

from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.finding import Finding
from trainprof.record.schema import Kind


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
    assert finding.advice.startswith("give each use of the loader a loader of its own")
    planted = Planted(fetch_s=0.03, compute_s=0.01, passes=10)
    assert only(planted).change.keys() == {"num_workers", "persistent_workers"}
    planted.loader = replace(planted.loader, overlaps=True)
    assert only(planted).change.keys() == {"num_workers"}
