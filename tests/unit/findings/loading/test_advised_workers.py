"""More workers, or cheaper samples: what is advised to a loop that waits for its batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of
from support.found import found, hot_line, only

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import LIKELY, MODELLED_WORKERS

UNSURE = {"compute_cores": Interval(1.0, 1.4, 2.0), "receive_s": Interval(0.0, 0.001, 0.012)}
WORKERS = {"num_workers": 3, "persistent_workers": True}


def with_lines(planted: Planted, share: float = 0.9) -> Planted:
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches", share)])
    return planted


def test_batches_made_between_the_steps_want_workers() -> None:
    finding = only(case_of(Planted(fetch_s=0.03, running=0.6, compute_s=0.01)))
    assert (finding.id, finding.site, finding.change) == ("serial_loading", "train.py:41", WORKERS)
    assert finding.predicted_speedup is not None
    # Three workers give a batch each 10 ms, as fast as training takes them.
    low, high = finding.predicted_speedup
    assert low <= 4.0 <= high < 1.6 * low
    assert (finding.severity, finding.is_at_most) == ("high", False)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("transformers", "TrainingArguments(..., dataloader_num_workers=3, "),
        ("timm", "create_loader(..., num_workers=3, "),
        ("planted", "num_workers=3, "),
    ],
)
def test_a_loader_that_a_package_builds_is_changed_in_its_settings(package: str, call: str) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    planted.loader = replace(planted.loader, built_by=package)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("serial_loading", WORKERS)
    assert finding.advice.startswith(call)
    assert finding.evidence["built_by"] == package


def test_where_workers_may_take_what_they_give_samples_are_to_be_cheaper() -> None:
    planted = Planted(fetch_s=0.0065, running=1.0, compute_s=0.0155, cores=2, **UNSURE)
    assert found(case_of(planted)) == []  # nobody's line is known
    finding = only(case_of(with_lines(planted)))
    assert (finding.id, finding.site, finding.change) == ("serial_loading", "data.py:12", {})
    assert finding.is_at_most
    # Without them a step takes 15.5 ms instead of 22; what remains may get faster besides.
    assert finding.evidence[LIKELY] == pytest.approx(22 / 15.5, rel=0.02)


def test_more_workers_that_may_lose_and_promise_little_leave_the_line() -> None:
    """The wait is there all the same, and its line is known: that is what is reported then."""
    unsure = {"compute_cores": Interval(1.0, 1.3, 1.6), "receive_s": Interval(0.0, 0.001, 0.02)}
    planted = Planted(
        workers=1, fetch_s=0.03, running=1.0, compute_s=0.021, cores=2, is_persistent=True, **unsure
    )
    assert "too_few_workers" not in found(case_of(planted))
    finding = only(case_of(with_lines(planted)))
    assert (finding.id, finding.site, finding.change) == ("too_few_workers", "data.py:12", {})
    assert finding.is_at_most
    # Without nine tenths of 30 ms, what is computed is what is left of a step.
    assert finding.evidence[LIKELY] == pytest.approx(30 / 21, rel=0.1)


@pytest.mark.parametrize(("share", "comes_first"), [(0.95, True), (0.5, False)])
def test_one_function_that_takes_nearly_all_comes_ahead_of_workers_that_give_little(
    share: float, comes_first: bool
) -> None:
    unsure = {"compute_cores": Interval(1.0, 1.8, 2.0), "receive_s": Interval(0.0, 0.008, 0.012)}
    planted = Planted(fetch_s=0.024, running=1.0, compute_s=0.02, cores=2, **unsure)
    spread = replace(hot_line("making batches", share), line_share=share / 2)
    planted.loader = replace(planted.loader, hot_lines=[spread])
    finding = only(case_of(planted))
    assert finding.id == "serial_loading"
    assert (finding.change == {}) is comes_first
    if comes_first:
        assert "data.py:12" in finding.advice
        # As with data that costs nothing, and not without that line alone.
        assert finding.evidence[LIKELY] == pytest.approx(44 / 20, rel=0.05)


@pytest.mark.parametrize("threads", [2.0, 1.0])
def test_workers_may_lose_where_threads_that_compute_wait_for_one_another(threads: float) -> None:
    # Making a batch and computing with it want both cores: what is lost once is lost for all.
    cores = Interval.exactly(threads)
    planted = Planted(fetch_s=0.15, running=1.0, compute_s=0.04, cores=2, compute_cores=cores)
    finding = only(case_of(with_lines(planted, 0.7)))
    assert finding.id == "serial_loading"
    assert finding.predicted_speedup is not None
    assert (finding.predicted_speedup[0] < 1) is (threads > 1)


def test_what_workers_need_first_leaves_their_gain_and_no_patch() -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    planted.loader = replace(planted.loader, open_files=["archive (NpzFile)"])
    finding = only(case_of(planted))
    assert "archive (NpzFile)" in finding.advice
    assert finding.change == {}  # no matter of arguments alone
    assert finding.evidence[MODELLED_WORKERS] == 3
    asleep = Planted(fetch_s=0.03, compute_s=0.01)
    asleep.loader = replace(asleep.loader, open_files=["archive (NpzFile)"])
    finding = only(case_of(asleep))
    assert (finding.is_at_most, finding.change) == (True, {})


def test_workers_are_added_where_they_sleep() -> None:
    planted = Planted(workers=1, fetch_s=0.06, compute_s=0.02)
    finding = only(case_of(planted))
    assert finding.id == "too_few_workers"
    assert finding.change["num_workers"] in (3, 4)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] <= 3.0 <= finding.predicted_speedup[1]
