"""Workers by number, and samples that are out of the ordinary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.loader import (
    Fetch,
    are_begun_parts,
    unusual_samples,
    worker_totals,
)


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


@pytest.mark.parametrize("odd", [None, True, "9", [], float("nan"), float("inf"), 1e300])
def test_rows_that_somebody_edited_are_taken_as_not_known(odd: Any) -> None:
    assert known(odd) is None
    row = dict.fromkeys(summaries.worker(0, 0.1, 1), odd)
    (worker,) = worker_totals([row, odd])
    assert set(worker.figures.values()) == {None}


def slow(*rows: tuple[float, float | None]) -> list[dict[str, Any]]:
    """Samples by index: what each took, and for how long it was kept from the cores, s."""
    return [
        summaries.slow_sample(index, s) | {"kept_off_s": off} for index, (s, off) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("typical", "samples", "unusual"),
    [
        (0.004, [(0.1, 0), (0.02, 0), (0.0199, 0)], [0, 1]),  # from five times the typical one on
        (0.004, [(0.1, 0.081), (0.1, 0.08), (0.1, None)], [1, 2]),  # what kept it off is not its
        (0.0001, [(0.01, 0), (0.0099, 0)], [0]),  # ten ms at least
        (None, [(9.0, 0)], []),
        (0.0, [(9.0, 0)], []),
        (float("nan"), [(9.0, 0)], []),
    ],
)
def test_unusual_samples(typical, samples, unusual):
    prepared = fetch(typical_sample_s=typical, slow_samples=[*slow(*samples), {}, None])
    assert [sample["index"] for sample in unusual_samples(prepared)] == unusual


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
def test_samples_that_are_slow_for_the_part_of_the_data_they_begin(indices, are_parts):
    assert are_begun_parts([summaries.slow_sample(index, 0.3) for index in indices]) is are_parts
