"""Workers that make batches more slowly than training takes them."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import Planted, case_of
from support.findings import hot_line, only, reported

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import LIKELY


@pytest.mark.parametrize(
    ("how", "workers", "is_at_most"),
    [
        pytest.param({"fetch_s": 0.06, "compute_s": 0.02}, (3, 4), True, id="asleep"),
        # A lock or a rate limit looks like a server that answers everybody at once.
        pytest.param({"fetch_s": 0.06, "running": 0.3}, None, True, id="mostly asleep"),
        pytest.param({"fetch_s": 0.06, "running": 0.7}, None, False, id="mostly computing"),
        pytest.param(
            {"fetch_s": 0.06, "compute_s": 0.006, "cores": 2, "running": 0.6, "reading": 0.35},
            *(None, True),
            id="a disk",
        ),
        # Two workers of which each is on a core for 56 %: three and a half would fill both.
        pytest.param(
            {"workers": 2, "fetch_s": 0.14, "running": 0.56, "compute_s": 0.006, "cores": 2},
            *((4,), False),
            id="half idle cores",
        ),
        # No buffer lasts where they are made more slowly than they are used, on the whole.
        pytest.param(
            {"workers": 2, "fetch_s": 0.006, "bursts": (30, 11, 13.3), "passes": 1},
            *(None, True),
            id="uneven batches",
        ),
    ],
)
def test_too_few_workers(
    how: dict[str, Any], workers: tuple[int, ...] | None, is_at_most: bool
) -> None:
    finding = only(case_of(Planted(**{"workers": 1, "compute_s": 0.01, **how})))
    assert (finding.id, finding.site) == ("too_few_workers", "train.py:41")
    assert finding.is_at_most is is_at_most
    assert finding.change["num_workers"] in (workers or range(1, 33))
    if workers == (3, 4):
        assert finding.predicted_speedup is not None
        assert finding.predicted_speedup[0] <= 3.0 <= finding.predicted_speedup[1]


def test_more_workers_that_may_lose_and_promise_little_leave_the_line() -> None:
    """The wait is there all the same, and its line is known: that is what is reported then."""
    unsure = {"compute_cores": Interval(1.0, 1.3, 1.6), "receive_s": Interval(0.0, 0.001, 0.02)}
    planted = Planted(
        workers=1, fetch_s=0.03, running=1.0, compute_s=0.021, cores=2, is_persistent=True, **unsure
    )
    assert "too_few_workers" not in reported(case_of(planted))
    finding = only(case_of(planted.having(hot_lines=[hot_line("making batches")])))
    assert (finding.id, finding.site, finding.change) == ("too_few_workers", "data.py:12", {})
    assert finding.is_at_most
    # Without nine tenths of 30 ms, what is computed is what is left of a step.
    assert finding.evidence[LIKELY] == pytest.approx(30 / 21, rel=0.1)


def shared_out(*batches: int, is_iterable: bool = True) -> Planted:
    """A stream of which one worker makes nearly all batches, however many there are."""
    rows = [{"worker": number, "n": n, "seconds": n * 0.02} for number, n in enumerate(batches)]
    planted = Planted(workers=len(batches), fetch_s=0.02, compute_s=0.01, turnaround_s=0.02)
    return planted.having(fetch={"per_worker": rows}, is_iterable=is_iterable)


@pytest.mark.parametrize(
    ("planted", "fair_shares", "is_of_shares"),
    [
        (shared_out(198, 2), None, True),
        (shared_out(198, 2), 1.98, True),  # of 200 batches, for two workers
        (shared_out(198, 2), 1.99, False),
        (shared_out(100, 100), None, False),
        (shared_out(198, 2, is_iterable=False), None, False),
    ],
    ids=["one", "just", "not quite", "alike", "no stream"],
)
def test_workers_that_get_nothing_of_the_data(
    planted: Planted, fair_shares: float | None, is_of_shares: bool
) -> None:
    settings = {} if fair_shares is None else {"too_few_workers.fair_shares": fair_shares}
    finding = only(case_of(planted, settings=settings))
    assert (finding.id, finding.site) == ("too_few_workers", "train.py:41")
    assert ("batches_by_worker" in finding.evidence) is is_of_shares
    if is_of_shares:
        assert finding.change == {}
        assert finding.evidence["batches_by_worker"] == {"0": 198, "1": 2}
        low, high = finding.predicted_speedup or (0, 0)
        assert low < 2.0 < high  # two workers would just keep up
