"""A few samples, or batches, that hold up those behind them."""

from __future__ import annotations

from typing import Any

import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of
from support.findings import finding_of, is_silent, reports, row

from trainprof.analysis.pipeline.bounds import Interval

FEW: dict[str, Any] = {"slow_indices": list(range(STEPS // 40)), "is_at_most": True, "change": {}}


def slow(each_s: float, **how: Any) -> Planted:
    return Planted(workers=2, fetch_s=each_s, compute_s=each_s, slow_every=40, **how)


def uneven(late: float = 1.0) -> Planted:
    planted = Planted(workers=2, fetch_s=0.003, compute_s=0.0126, passes=1, bursts=(30, 11, 13.3))
    return planted.having(blocked_s=late * planted.loader.wait_total_s)


# Without any wait a step would take 12.6 ms.
MEAN = uneven().step_s.mean() / 0.0126
AHEAD: dict[str, Any] = {"change": {"prefetch_factor": 8}, "low": (1, MEAN), "high": (MEAN, 2)}

test_slow_samples = reports(
    "slow_samples",
    {
        "samples": row(slow(0.01), slowest_s=0.19, **FEW),
        # A batch is late now and then; that each takes 2 ms to be taken over is another matter.
        "beside what handing over costs": row(
            slow(0.006, receive_s=Interval.exactly(0.002)), slowest_s=19 * 0.006, **FEW
        ),
        "batches of uneven cost": row(uneven(), **AHEAD),
    },
)
test_batches_that_were_there = is_silent("slow_samples", {"in time": uneven(late=0.1)})


def test_samples_that_begin_a_part_of_the_data_are_not_to_be_left_out() -> None:
    planted = slow(0.01)
    assert planted.loader.fetch is not None
    samples = enumerate(planted.loader.fetch.slow_samples)
    begins = [{**sample, "index": 1000 * number} for number, sample in samples]
    finding = finding_of("slow_samples", case_of(planted.having(fetch={"slow_samples": begins})))
    assert finding is None or "slow_indices" not in finding.evidence


@pytest.mark.parametrize("kept_off_s", [0.0, None])
def test_other_programs_may_have_slowed_a_sample(kept_off_s: float | None) -> None:
    planted = slow(0.01)
    assert planted.loader.fetch is not None
    samples = [x | {"kept_off_s": kept_off_s} for x in planted.loader.fetch.slow_samples]
    planted.having(fetch={"slow_samples": samples})
    case = case_of(planted, system=summaries.disturbed_system())
    finding = finding_of("slow_samples", case)
    assert finding is not None
    assert ("slow_indices" in finding.evidence) is (kept_off_s is not None)
