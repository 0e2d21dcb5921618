"""What a change of a loader's arguments alters, and what it needs first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of

from trainprof.findings.diagnose import diagnose
from trainprof.findings.loading.loader_cautions import cautions_of, needed_first, one_iterator
from trainprof.findings.run_context import Feeder

KEPT = {"persistent_workers": True}
KEPT_TWO = {"num_workers": 2, **KEPT}
ONE, TWO, NONE = ({"num_workers": number} for number in (1, 2, 0))
SPAWNED = {"workers_started_by": "spawn"}
FILE = {"open_files": ["archive (NpzFile)"]}
STREAM = {"is_iterable": True}
RNG = {"generators": ["rng"]}
LEVEL = {"changed_between_passes": ["level"]}


def loader_case(workers: int, metadata: dict[str, Any]) -> Feeder:
    (feeder,) = case_of(Planted(workers=workers)).feeding
    # Nothing is random unless a row says so.
    plain = {"holds_tensors": True, "draws_in_order": True}
    return replace(feeder, loader=replace(feeder.loader, **{**plain, **metadata}))


@pytest.mark.parametrize(
    ("workers", "facts", "change", "needed", "cautions"),
    [
        (0, {}, KEPT_TWO, [], []),
        # Random numbers.
        (0, {"holds_tensors": False}, TWO, [], ["in workers"]),
        (0, {"collate_site": "train.py:3"}, TWO, [], ["in workers"]),
        (1, {"holds_tensors": False}, TWO, [], []),
        (2, {"holds_tensors": False}, NONE, [], ["refuses them without", "without workers"]),
        (0, RNG, TWO, [], ["self.rng"]),
        (0, RNG, ONE, [], ["self.rng"]),  # the same again in each epoch
        (0, RNG, {**ONE, **KEPT}, [], []),
        (1, RNG, KEPT_TWO, [], ["self.rng"]),
        (2, RNG, {"num_workers": 3}, [], []),  # they do so now
        (2, {"draws_in_order": False}, KEPT, [], ["shuffling"]),
        (2, {"draws_in_order": False, **STREAM}, KEPT, [], []),
        # Streams.
        (0, {**STREAM, "shares_samples": True}, TWO, [], []),
        (0, {**STREAM, "has_asked_for_worker": True}, TWO, [], []),
        (0, {**STREAM, "shares_samples": False}, TWO, ["its share"], ["each sample 2 times"]),
        (0, STREAM, TWO, ["its share"], ["unless it shares"]),
        (0, {**STREAM, "shares_samples": False}, ONE, [], []),
        (2, {**STREAM, "shares_samples": True}, NONE, ["without workers"], ["refuses them"]),
        # Open files and connections.
        (0, FILE, TWO, ["open archive (NpzFile)"], ["share its file offset"]),
        (0, {**FILE, **SPAWNED}, TWO, ["open archive"], ["cannot be given", "pickled"]),
        (2, FILE, {"num_workers": 4}, [], []),
        # New interpreters.
        (0, SPAWNED, TWO, [], ["get the dataset and functions pickled, and the script needs if"]),
        (0, {**SPAWNED, "guards_main": True}, TWO, [], ["pickled"]),
        (0, {**SPAWNED, "guards_main": False}, TWO, ["put what the script runs"], ["pickled"]),
        (0, {**SPAWNED, "unpicklable": ["f (a lambda)"]}, TWO, ["make f (a lambda)"], ["pickled"]),
        (0, {"unpicklable": ["f (a lambda)"], "guards_main": False}, TWO, [], []),
        (1, SPAWNED, TWO, [], []),
        # Datasets that change between epochs.
        (0, LEVEL, TWO, [], ["changes the dataset's level between epochs"]),
        (0, LEVEL, KEPT_TWO, ["keep the dataset's level"], []),
        (2, LEVEL, KEPT, ["keep the dataset's level"], []),
        # Batches on a device, overlapping iterations.
        (0, {"touches_device": True}, TWO, ["move .to(device) out"], []),
        (1, {"touches_device": True}, TWO, [], []),
        (2, {"overlaps": True}, KEPT, ["its own loader"], []),
        (0, {"overlaps": True}, TWO, [], []),
    ],
)
def test_what_a_change_needs_and_alters(
    workers: int,
    facts: dict[str, Any],
    change: dict[str, Any],
    needed: list[str],
    cautions: list[str],
) -> None:
    feeder = loader_case(workers, facts)
    for parts, texts in (
        (needed, needed_first(feeder.loader, change)),
        (cautions, cautions_of(feeder, change)),
    ):
        assert len(texts) == len(parts), texts
        assert all(part in text for part, text in zip(parts, texts, strict=True))


@pytest.mark.parametrize(("shards", "workers"), [(1, 1), (2, 2), (8, 3)])
def test_no_more_workers_than_a_stream_has_shards(shards: int, workers: int) -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01, shards=shards)
    planted.loader = replace(planted.loader, is_iterable=True, has_asked_for_worker=True)
    (finding,) = diagnose(case_of(planted)).findings
    assert (finding.id, finding.change["num_workers"]) == ("serial_loading", workers)


@pytest.mark.parametrize("facts", [{"overlaps": True}, LEVEL, {"built": 10}])
def test_workers_that_cannot_be_kept_are_not_advised_to_be(facts: dict[str, Any]) -> None:
    serial = Planted(fetch_s=0.03, compute_s=0.01, passes=10)
    serial.loader = replace(serial.loader, **facts)
    (finding,) = diagnose(case_of(serial)).findings
    assert finding.change.keys() == {"num_workers"}
    restarted = Planted(workers=2, fetch_s=0.02, passes=10, start_s=0.3)
    restarted.loader = replace(restarted.loader, **facts)
    (finding,) = diagnose(case_of(restarted)).findings
    assert (finding.id, finding.change) == ("worker_restart", {})


def test_workers_for_each_step_need_one_iterator_first() -> None:
    loader = Planted(passes=10).loader
    each = replace(loader, passes=loader.iterations)
    assert needed_first(each, TWO) == [one_iterator(each)]
    assert needed_first(each, {"pin_memory": True}) == []
    assert needed_first(loader, TWO) == []
