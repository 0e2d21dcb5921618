"""What a change of a loader's arguments alters, and what it needs first, by its records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.events import US, FakeRun

from trainprof.findings.loading.loader_cautions import cautions_of, needed_first, one_iterator
from trainprof.record.schema import Kind, Topic

KEPT = {"persistent_workers": True}
KEPT_TWO = {"num_workers": 2, **KEPT}
ONE, TWO, NONE = ({"num_workers": number} for number in (1, 2, 0))
SPAWNED = {"workers_started_by": "spawn"}
FILE = {"open_files": ["archive (NpzFile)"]}
STREAM = {"is_iterable": True}
RNG = {"generators": ["rng"]}
LEVEL = {"changed_between_passes": ["level"]}
LAMBDA = {"unpicklable": ["f (a lambda)"]}


@pytest.mark.parametrize(
    ("workers", "loader", "change", "needed", "cautions"),
    [
        (0, {}, KEPT_TWO, 0, 0),
        # Random numbers.
        (0, {"holds_tensors": False}, TWO, 0, 1),
        (0, {"collate_site": "train.py:3"}, TWO, 0, 1),
        (1, {"holds_tensors": False}, TWO, 0, 0),
        (2, {"holds_tensors": False}, NONE, 0, 1),
        (0, RNG, TWO, 0, 1),
        (0, RNG, ONE, 0, 1),  # the same again in each epoch
        (0, RNG, {**ONE, **KEPT}, 0, 0),
        (1, RNG, KEPT_TWO, 0, 1),
        (2, RNG, {"num_workers": 3}, 0, 0),  # they do so now
        # Streams.
        (0, {**STREAM, "shares_samples": True}, TWO, 0, 0),
        (0, {**STREAM, "has_asked_for_worker": True}, TWO, 0, 0),
        (0, {**STREAM, "shares_samples": False}, TWO, 1, 1),
        (0, STREAM, TWO, 1, 1),
        (0, {**STREAM, "shares_samples": False}, ONE, 0, 0),
        (2, {**STREAM, "shares_samples": True}, NONE, 1, 1),
        # Open files and connections.
        (0, FILE, TWO, 1, 1),
        (0, {**FILE, **SPAWNED}, TWO, 1, 2),
        (2, FILE, {"num_workers": 4}, 0, 0),
        # New interpreters.
        (0, SPAWNED, TWO, 0, 1),
        (0, {**SPAWNED, "guards_main": True}, TWO, 0, 0),
        (0, {**SPAWNED, "guards_main": False}, TWO, 1, 0),
        (0, {**SPAWNED, **LAMBDA}, TWO, 1, 1),
        (0, {**LAMBDA, "guards_main": False}, TWO, 0, 0),
        (1, SPAWNED, TWO, 0, 0),
        # Datasets that change between epochs.
        (0, LEVEL, TWO, 0, 1),
        (0, LEVEL, KEPT_TWO, 1, 1),
        (2, LEVEL, KEPT, 1, 1),
        # Batches on a device, overlapping iterations.
        (0, {"touches_device": True}, TWO, 1, 0),
        (1, {"touches_device": True}, TWO, 0, 0),
        (2, {"overlaps": True}, KEPT, 1, 0),
        (0, {"overlaps": True}, TWO, 0, 0),
    ],
)
def test_what_a_change_needs_and_alters(
    workers: int,
    loader: dict[str, Any],
    change: dict[str, Any],
    needed: int,
    cautions: int,
    says: Callable[..., None],
) -> None:
    # Nothing is random unless a row says so.
    plain = {"holds_tensors": True, "draws_in_order": True}
    (feeder,) = case_of(Planted(workers=workers).having(**plain | loader)).feeding
    first, altered = needed_first(feeder.loader, change), cautions_of(feeder, change)
    assert (len(first), len(altered)) == (needed, cautions)
    says(*(f"first: {text}" for text in first), *(f"note: {text}" for text in altered))


@pytest.mark.parametrize(
    ("workers", "loader"),
    [
        (0, {}),
        (2, {}),
        (0, LEVEL),  # it has no copy
        (2, LEVEL),
        (2, {"built": 10, "datasets": 10}),
        (2, {"built": 10, "datasets": 1}),
    ],
)
def test_one_iterator(workers: int, loader: dict[str, Any], says: Callable[..., None]) -> None:
    says(one_iterator(Planted(workers=workers, passes=10).having(**loader).loader))


def use(run: FakeRun, loader: int, batches: str) -> None:
    """Takes batches by their numbers; `i` is a new iterator, `s` the end of one."""
    for each in batches:
        if each.isdigit():
            run.leaf(Kind.LOADER_NEXT, 100 * US, site=loader, value=int(each))
        else:
            (run.iterate if each == "i" else run.stop)(loader)


IN_PAIRS = "ii11223344s"  # zip(loader, loader)


@pytest.mark.parametrize(
    ("batches", "overlaps"),
    [
        (IN_PAIRS, True),
        ("i1234i125678s", True),  # an evaluation of some batches amid an epoch
        ("i1234i123i1234i1", False),  # epochs that are left early
        ("i1234i5678", False),  # torchdata's StatefulDataLoader counts on from its state
        ("ii1234s", False),  # an iterator that is dropped
    ],
)
def test_whether_epochs_of_a_loader_overlap(tmp_path: Path, batches: str, overlaps: bool) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(num_workers=2), run.optimizer()
    run.train_pass(loader, optimizer, 4)
    use(run, loader, batches)
    run.train_pass(loader, optimizer, 4)
    (recorded,) = run.summary(tmp_path).loaders
    assert recorded.overlaps is overlaps
    assert recorded.may_keep_workers is not overlaps


@pytest.mark.parametrize("line", [10, 11])
def test_what_one_loader_of_a_line_forbids_counts_for_all(tmp_path: Path, line: int) -> None:
    run = FakeRun()
    train, optimizer = run.loader(10, num_workers=2), run.optimizer()
    other = run.loader(line, num_workers=2, length=3)
    changed = {"loader": other, "attribute": "level"}
    run.text(Topic.ENVIRONMENT, {"changed_dataset": changed})
    for _ in range(2):
        run.train_pass(train, optimizer, 4)
        use(run, other, IN_PAIRS)
    recorded, _ = run.summary(tmp_path).loaders
    is_same = line == 10
    assert recorded.overlaps is is_same
    assert recorded.changed_between_passes == (["level"] if is_same else [])
    assert recorded.may_keep_workers is not is_same
