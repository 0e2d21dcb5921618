"""Preparing a batch around its samples: indices, rows asked for one by one, collate functions."""

from __future__ import annotations

from typing import Any

from support.cases import STEPS, Planted, case_of, with_summary
from support.findings import hot_line, in_rows, is_silent, reports, row

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import PREPARATION

RULES_HERE = ("sample_by_sample", "slow_collate", "slow_sampler")

ROWS: dict[str, Any] = {"change": {}, "sample_s": 10e-6, "likely": 0.82 / 0.5, "rel": 0.05}
A_SAMPLER = {"whole_batches": "sampler=sampler"}

test_sample_by_sample = reports(
    "sample_by_sample",
    {
        "tensors": row(in_rows(), **ROWS, is_at_most=True),
        # __getitem__ then gets a list of indices.
        "samples": row(in_rows().having(holds_tensors=False), **ROWS),
        # A list of samples is put into tensors first: they are in memory twice.
        "a list": row(in_rows().having(holds_tensors=False, is_stackable=True), **ROWS),
        # The sampler of training would shuffle evaluation.
        "evaluation too": row(in_rows().having(also_builds=["evaluation"]), **ROWS),
        "a sampler": row(in_rows().having(**A_SAMPLER), **ROWS),
        "with epochs": row(in_rows().having(**A_SAMPLER, sampler_takes_epoch=True), **ROWS),
    },
)
test_what_is_asked_for_as_it_is = is_silent(
    "sample_by_sample",
    {
        "samples of 0.1 ms are work": in_rows(fetch_s=0.003),
        "6 % of a step": in_rows(compute_s=0.005),
        "it takes lists already": in_rows().having(whole_batches=None),
    },
)

WAIT = hot_line("data_wait", 0.56, site="data.py:36", function="__iter__", line_share=0.56)
AHEAD_OF_ROWS = with_summary(case_of(in_rows(sampler_s=0.002)), part_lines=[WAIT])


def drawing(fetch_s: float, sampler_s: float, receive_s: float) -> Planted:
    handed_over = Interval.exactly(receive_s)
    how = {"sampler_s": sampler_s, "receive_s": handed_over}
    return Planted(workers=2, fetch_s=fetch_s, compute_s=0.01, **how)


test_slow_sampler = reports(
    "slow_sampler",
    {
        "beside workers": row(drawing(0.002, 0.02, 0.0), high=3.6, rel=0.15),
        "ahead of rows": row(AHEAD_OF_ROWS, "data.py:36"),
        "beside what handing over costs anyway": row(drawing(0.002, 0.0015, 0.003)),
    },
)
test_quick_sampler = is_silent("slow_sampler", {"quick": drawing(0.002, 0.0001, 0.003)})


def collating(collate: float | None = 0.8, **loader: Any) -> Planted:
    return Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=collate).having(**loader)


def busy_worker() -> Planted:
    """Each batch is made in time, and handed over late: its worker is at the next one."""
    how = {"fetch_s": 0.024, "running": 1.0, "compute_s": 0.016, "collate": 0.99}
    planted = Planted(workers=1, receive_s=Interval.exactly(0.009), **how)
    return planted.having(receive_s=0.009 * STEPS, receive_cpu_s=0.001 * STEPS)


# Whoever takes more than the dataset has is the function, or called by it.
ITS_LINE = collating(hot_lines=[hot_line(PREPARATION, 0.7, site="data.py:33")])
ANY_LINE = collating(hot_lines=[hot_line(PREPARATION, 0.15, site="data.py:33")])
MOST = {"high": 0.05 / 0.026, "collate_per_batch_s": 0.024, "rel": 0.25}

test_slow_collate = reports(
    "slow_collate",
    {
        "serial": row(collating(), "data.py:30", **MOST),
        "a line of it": row(ITS_LINE, "data.py:33", **MOST),
        "any line": row(ANY_LINE, "data.py:30", **MOST),
        "a busy worker": row(busy_worker(), "data.py:30", high=0.025 / 0.017, rel=0.25),
    },
)
test_a_collate_function_that_does_little = is_silent(
    "slow_collate",
    {
        "a third": collating(0.3),
        "torch's own": collating(None),
        "in time": Planted(workers=2, fetch_s=0.01, compute_s=0.02, collate=0.9),
    },
)
