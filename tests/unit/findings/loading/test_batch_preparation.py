"""Preparing a batch around its samples: indices, rows asked for one by one, collate functions."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import STEPS, Planted, case_of, with_summary
from support.findings import finding_of, high_of, hot_line, in_rows, only, reported

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import LIKELY

RULES_HERE = ("sample_by_sample", "slow_collate", "slow_sampler")


@pytest.mark.parametrize(
    ("loader", "cautions"),
    [
        ({}, 0),
        # __getitem__ then gets a list of indices.
        ({"holds_tensors": False}, 1),
        # A list of samples is put into tensors first: they are in memory twice.
        ({"holds_tensors": False, "is_stackable": True}, 1),
        # The sampler of training would shuffle evaluation.
        ({"also_builds": ["evaluation"]}, 0),
        ({"whole_batches": "sampler=sampler"}, 0),
        ({"whole_batches": "sampler=sampler", "sampler_takes_epoch": True}, 1),
    ],
    ids=["tensors", "samples", "a list", "evaluation too", "a sampler", "a sampler with epochs"],
)
def test_sample_by_sample(loader: dict[str, Any], cautions: int) -> None:
    finding = only(case_of(in_rows().having(**loader)))
    assert (finding.id, finding.site, finding.change) == ("sample_by_sample", "train.py:41", {})
    assert (finding.is_at_most, len(finding.cautions)) == (True, cautions)
    assert finding.evidence["sample_s"] == pytest.approx(10e-6)
    assert finding.evidence[LIKELY] == pytest.approx(0.82 / 0.5, rel=0.05)


@pytest.mark.parametrize(
    "planted",
    [
        in_rows(fetch_s=0.003),  # samples of 0.1 ms are work
        in_rows(compute_s=0.005),  # 6 % of a step
        in_rows().having(whole_batches=None),  # it takes lists already
    ],
    ids=["work", "a little", "lists"],
)
def test_what_is_asked_for_as_it_is(planted: Planted) -> None:
    assert finding_of("sample_by_sample", case_of(planted)) is None


@pytest.mark.parametrize(
    ("planted", "site", "times"),
    [
        pytest.param(
            Planted(workers=4, fetch_s=0.004, compute_s=0.01, sampler_s=0.02),
            *("train.py:41", 3.0 / (1 - 0.25 * 2 / 3)),
            id="beside workers",
        ),
        pytest.param(in_rows(sampler_s=0.002), "data.py:36", None, id="ahead of rows"),
        pytest.param(
            Planted(
                workers=2,
                fetch_s=0.002,
                compute_s=0.01,
                sampler_s=0.0015,
                receive_s=Interval.exactly(0.003),
            ),
            *("train.py:41", None),
            id="beside what handing over costs anyway",
        ),
    ],
)
def test_slow_sampler(planted: Planted, site: str, times: float | None) -> None:
    wait = hot_line("data_wait", 0.56, site="data.py:36", function="__iter__", line_share=0.56)
    lines = [wait] if site == "data.py:36" else []
    finding = only(with_summary(case_of(planted), part_lines=lines))
    assert (finding.id, finding.site, len(finding.cautions)) == ("slow_sampler", site, 1)
    assert times is None or high_of(finding) == pytest.approx(times, rel=0.15)


def collating(**loader: Any) -> Planted:
    return Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=0.8).having(**loader)


# Whoever takes more than the dataset has is the function, or called by it.
ITS_LINE, ANY_LINE = (hot_line("making batches", share, site="data.py:33") for share in (0.7, 0.15))


@pytest.mark.parametrize(
    ("planted", "site", "times"),
    [
        pytest.param(collating(), "data.py:30", 0.05 / 0.026, id="serial"),
        pytest.param(
            collating(hot_lines=[ITS_LINE]), "data.py:33", 0.05 / 0.026, id="a line of it"
        ),
        pytest.param(collating(hot_lines=[ANY_LINE]), "data.py:30", 0.05 / 0.026, id="any line"),
        # Each is made in time, and handed over late: its worker is at the next one.
        pytest.param(
            Planted(
                workers=1,
                fetch_s=0.024,
                running=1.0,
                compute_s=0.016,
                collate=0.99,
                receive_s=Interval.exactly(0.009),
            ).having(receive_s=0.009 * STEPS, receive_cpu_s=0.001 * STEPS),
            *("data.py:30", 0.025 / 0.017),
            id="a busy worker",
        ),
    ],
)
def test_slow_collate(planted: Planted, site: str, times: float) -> None:
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_collate", site)
    assert finding.evidence["collate_per_batch_s"] == pytest.approx(0.024, rel=0.02)
    assert high_of(finding) == pytest.approx(times, rel=0.25)


@pytest.mark.parametrize("collate", [0.3, None])
def test_a_collate_function_that_does_little_or_is_torchs_own(collate: float | None) -> None:
    planted = Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=collate)
    assert reported(case_of(planted)) == ["serial_loading"]


def test_what_is_prepared_in_time() -> None:
    handed_over = {"receive_s": Interval.exactly(0.003), "sampler_s": 0.0001}
    for how in ({"fetch_s": 0.01, "collate": 0.9}, {"fetch_s": 0.002, **handed_over}):
        compute_s = 0.02 if "collate" in how else 0.01
        assert reported(case_of(Planted(workers=2, compute_s=compute_s, **how))) == []
