"""Workers by number, and samples that are out of the ordinary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.loading.loader_figures import (
    are_begun_parts,
    unusual_samples,
    worker_totals,
)
from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.loader import Fetch


def fetch(**changes: Any) -> Fetch:
    return replace(summaries.fetch(0.1, 200, workers=4, running=1.0), **changes)


def test_the_processes_of_a_worker_are_joined_by_its_number() -> None:
    first = summaries.worker(1, 0.1, 10, busy=0.5, running=1.0) | {"pid": 11}
    later = summaries.worker(1, 0.3, 10, busy=1.0, running=1.0) | {"pid": 12}
    alone = summaries.worker(0, 0.2, 10, busy=0.25, running=1.0)
    zero, first_worker = worker_totals([first, alone, later])
    assert (zero.number, first_worker.number) == (0, 1)
    assert first_worker.figures["n"] == 20
    assert first_worker.mean_s == pytest.approx(0.2)
    assert first_worker.figures["running_s"] == pytest.approx(4.0)
    # It was busy for 1 s of 2 and 3 s of 3.
    assert first_worker.busy_share == pytest.approx(4 / 5)


def test_the_process_that_trains_has_no_number_and_comes_first() -> None:
    rows = [summaries.worker(0, 0.1, 1), summaries.worker(None, 0.1, 1)]
    assert [worker.number for worker in worker_totals(rows)] == [None, 0]


def test_what_no_process_tells_is_not_known() -> None:
    (worker,) = worker_totals([{"worker": 0}])
    assert set(worker.figures.values()) == {None}
    assert worker.busy_share is worker.mean_s is None


@pytest.mark.parametrize("odd", [None, True, "9", [], float("nan"), float("inf"), 1e300])
def test_rows_that_somebody_edited_are_taken_as_not_known(odd: Any) -> None:
    assert known(odd) is None
    row = dict.fromkeys(summaries.worker(0, 0.1, 1), odd)
    (worker,) = worker_totals([row, odd])
    assert set(worker.figures.values()) == {None}


def slow(*seconds: float) -> list[dict[str, Any]]:
    return [summaries.slow_sample(index, s) for index, s in enumerate(seconds)]


def test_samples_of_five_times_the_typical_one_are_unusual() -> None:
    made = fetch(typical_sample_s=0.004, slow_samples=slow(0.1, 0.02, 0.0199))
    assert [sample["index"] for sample in unusual_samples(made)] == [0, 1]


def test_a_sample_that_was_kept_from_the_cores_is_not_slow_itself() -> None:
    kept_off, slow_itself, unknown = slow(0.1, 0.1, 0.1)
    kept_off["kept_off_s"], slow_itself["kept_off_s"], unknown["kept_off_s"] = 0.081, 0.08, None
    made = fetch(typical_sample_s=0.004, slow_samples=[kept_off, slow_itself, unknown])
    assert [sample["index"] for sample in unusual_samples(made)] == [1, 2]


def test_what_takes_less_than_ten_ms_is_not_worth_a_word() -> None:
    made = fetch(typical_sample_s=0.0001, slow_samples=slow(0.01, 0.0099))
    assert [sample["index"] for sample in unusual_samples(made)] == [0]


@pytest.mark.parametrize(
    ("indices", "are_parts"),
    [
        ([0, 3000, 1000, 2000], True),
        ([1000, 5000, 3000], True),
        ([1037, 2037, 3037], False),  # broken ones, that lie as far apart
        ([0, 1000], False),
        ([0, 2, 6, 8], False),
        ([17, 203, 1444, 2048], False),
        ([None, None, None], False),
        ([], False),
    ],
)
def test_samples_that_are_slow_for_the_part_of_the_data_they_begin(
    indices: list[int | None], are_parts: bool
) -> None:
    assert are_begun_parts([summaries.slow_sample(index, 0.3) for index in indices]) is are_parts


@pytest.mark.parametrize("typical", [None, 0.0, float("nan")])
def test_without_a_typical_sample_none_is_unusual(typical: float | None) -> None:
    made = fetch(typical_sample_s=typical, slow_samples=[*slow(9.0), {}, None])
    assert unusual_samples(made) == []
    with_a_typical_sample = replace(made, typical_sample_s=0.1)
    assert len(unusual_samples(with_a_typical_sample)) == 1
