"""Workers that are started for each pass, and what else the first batch of one waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted

from trainprof.findings.loading.loader_cautions import one_iterator
from trainprof.findings.run_context import Feeder


def built_anew(planted: Planted, **metadata: Any) -> Planted:
    """Returns a loader that is built anew for each pass."""
    planted.loader = replace(planted.loader, built=planted.loader.passes, **metadata)
    return planted


@pytest.mark.parametrize(
    ("workers", "facts", "begins"),
    [
        (0, {}, "one iterator"),
        (2, {}, "one iterator"),
        (0, {"changed_between_passes": ["level"]}, "one iterator"),  # it has no copy
        (2, {"changed_between_passes": ["level"]}, "keep the dataset's level, which"),
        (0, {"built": 10, "datasets": 10}, "where all steps may have one dataset"),
        (2, {"built": 10, "datasets": 10}, "where all steps may have one dataset"),
        (2, {"built": 10, "datasets": 1}, "one iterator"),
    ],
)
def test_one_iterator_gives_the_samples_of_one_dataset(
    workers: int, facts: dict[str, Any], begins: str
) -> None:
    known = one_iterator(replace(Planted(workers=workers, passes=10).loader, **facts))
    assert known.startswith(begins)
    assert "one iterator, batches = iter(loader)" in known


def test_the_only_batch_of_each_pass_is_waited_for_too() -> None:
    planted = Planted(compute_s=0.01, fetch_s=0.04, passes=40)
    loader = planted.loader
    whole = replace(
        loader,
        passes=loader.iterations,
        ended=loader.iterations,
        first_batch_s=summaries.statistics(0.04, n=loader.iterations),
        wait_s=None,
        wait_total_s=0.0,
    )
    assert Feeder(whole, None, None, None, None, 0.05 * loader.iterations).wait_share == (
        pytest.approx(0.8)
    )
    workers = replace(whole, num_workers=2)
    assert Feeder(workers, None, None, None, None, 1.0).wait_share == 0.0
