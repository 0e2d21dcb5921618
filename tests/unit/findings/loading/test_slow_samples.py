"""A few samples, or batches, that hold up those behind them."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import STEPS, Planted, case_of
from support.findings import finding_of, only, reported

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.loader import BLOCKED, RECEIVE

BURSTS: dict[str, Any] = {"fetch_s": 0.003, "compute_s": 0.0126, "passes": 1}


@pytest.mark.parametrize(
    "how",
    [
        {"fetch_s": 0.01, "compute_s": 0.01},
        # A batch is late now and then; that each takes 2 ms to be taken over is another matter.
        {"fetch_s": 0.006, "compute_s": 0.006, "receive_s": Interval.exactly(0.002)},
    ],
    ids=["samples", "beside what handing over costs"],
)
def test_slow_samples(how: dict[str, Any]) -> None:
    finding = only(case_of(Planted(workers=2, slow_every=40, **how)))
    assert (finding.id, finding.site, finding.change) == ("slow_samples", "train.py:41", {})
    assert finding.is_at_most
    assert finding.evidence["slow_indices"] == list(range(STEPS // 40))
    assert finding.evidence["slowest_s"] == pytest.approx(19 * how["fetch_s"])


def test_samples_that_begin_a_part_of_the_data_are_not_to_be_left_out() -> None:
    planted = Planted(workers=2, fetch_s=0.01, compute_s=0.01, slow_every=40)
    assert planted.loader.fetch is not None
    samples = planted.loader.fetch.slow_samples
    slow = [{**sample, "index": 1000 * number} for number, sample in enumerate(samples)]
    finding = finding_of("slow_samples", case_of(planted.having(fetch={"slow_samples": slow})))
    assert finding is None or "slow_indices" not in finding.evidence


def test_batches_of_uneven_cost_want_more_of_them_ahead() -> None:
    planted = Planted(workers=2, bursts=(30, 11, 13.3), **BURSTS)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_samples", "train.py:41")
    assert finding.change == {"prefetch_factor": 8}
    low, high = finding.predicted_speedup or (0, 0)
    # Without any wait a step would take 12.6 ms.
    assert low < planted.step_s.mean() / 0.0126 < high
    # Batches that were there are not late.
    in_time = planted.having(blocked_s=0.1 * planted.loader.wait_total_s)
    assert reported(case_of(in_time)) == []


def test_late_batches_are_named_beside_what_handing_over_costs() -> None:
    # Of 15.0 ms a step 0.9 are for late batches, and 1.5 ms for taking over any.
    receiving = {"receive_s": Interval.exactly(0.0015)}
    context = case_of(Planted(workers=2, bursts=(30, 11, 12.8), **BURSTS, **receiving))
    assert context.feeding[0].now is not None
    parts_s = context.feeding[0].now.bound.parts_s
    assert 0.05 * sum(parts_s.values()) < parts_s[BLOCKED] < parts_s[RECEIVE]
    finding = only(context)
    assert finding.id == "slow_samples"
    # More batches ahead delay none.
    assert (finding.predicted_speedup or (0, 0))[0] == 1.0
