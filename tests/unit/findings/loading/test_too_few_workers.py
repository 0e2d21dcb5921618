"""Workers that make batches more slowly than training takes them."""

from __future__ import annotations

from typing import Any

from support.cases import Planted, case_of
from support.findings import Row, hot_line, is_silent, reports, row

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import PREPARATION
from trainprof.findings.run_context import RunContext


def late(workers: int = 1, fetch_s: float = 0.06, compute_s: float = 0.01, **how: Any) -> Planted:
    return Planted(workers=workers, fetch_s=fetch_s, compute_s=compute_s, **how)


def may_lose(**loader: Any) -> Planted:
    """More of them promise little, and the line is known: that is what is reported then."""
    unsure = {"compute_cores": Interval(1.0, 1.3, 1.6), "receive_s": Interval(0.0, 0.001, 0.02)}
    planted = late(1, 0.03, 0.021, running=1.0, cores=2, is_persistent=True, **unsure)
    return planted.having(**loader)


def shared_out(*batches: int, fair_shares: float = 1.6, is_iterable: bool = True) -> RunContext:
    """A stream of which one worker makes nearly all batches, however many there are."""
    rows = [{"worker": number, "n": n, "seconds": n * 0.02} for number, n in enumerate(batches)]
    planted = late(len(batches), 0.02, turnaround_s=0.02)
    planted.having(fetch={"per_worker": rows}, is_iterable=is_iterable)
    return case_of(planted, settings={"too_few_workers.fair_shares": fair_shares})


def of_shares(context: RunContext) -> Row:
    """Two workers would just keep up."""
    made = {"0": 198, "1": 2}
    return row(context, change={}, batches_by_worker=made, low=(1.0, 2.0), high=(2.0, 4.0))


HALF_IDLE = late(2, 0.14, 0.006, running=0.56, cores=2)
BURSTS = late(2, 0.006, bursts=(30, 11, 13.3), passes=1)
FOUR = {"num_workers": 4, "persistent_workers": True}
LINES = {"hot_lines": [hot_line(PREPARATION)]}

test_too_few_workers = reports(
    "too_few_workers",
    {
        # A lock or a rate limit looks like a server that answers everybody at once.
        "asleep": row(late(compute_s=0.02), modelled_workers=(3, 4), low=1.0, high=(3.0, 4.5)),
        "mostly asleep": row(late(running=0.3), is_at_most=True),
        "mostly computing": row(late(running=0.7), is_at_most=False),
        # Each is on a core for 56 %: three and a half would fill both.
        "half idle cores": row(HALF_IDLE, change=FOUR, is_at_most=False),
        # No buffer lasts where batches are made more slowly than they are used, on the whole.
        "uneven batches": row(BURSTS, is_at_most=True),
        # Without nine tenths of 30 ms, what is computed is what is left of a step.
        "cheaper samples": row(
            may_lose(**LINES), "data.py:12", change={}, is_at_most=True, likely=30 / 21, rel=0.1
        ),
        "one has the data": of_shares(shared_out(198, 2)),
        "just one": of_shares(shared_out(198, 2, fair_shares=1.98)),  # of 200, for two workers
        "not quite one": row(shared_out(198, 2, fair_shares=1.99), modelled_workers=(3, 9)),
        "alike": row(shared_out(100, 100), modelled_workers=(3, 9)),
        "no stream": row(shared_out(198, 2, is_iterable=False), modelled_workers=(3, 9)),
    },
)
test_workers_that_may_lose = is_silent("too_few_workers", {"no line is known": may_lose()})
