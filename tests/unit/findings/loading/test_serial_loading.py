"""Batches that the training process makes itself: workers, or cheaper samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of, idle_device, with_summary
from support.findings import high_of, hot_line, only, reported

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import LIKELY, MODELLED_WORKERS, Finding
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

UNSURE = {"compute_cores": Interval(1.0, 1.4, 2.0), "receive_s": Interval(0.0, 0.001, 0.012)}
WORKERS = {"num_workers": 3, "persistent_workers": True}
OPEN_FILES = ["archive (NpzFile)"]


def with_lines(planted: Planted, share: float = 0.9) -> Planted:
    return planted.having(hot_lines=[hot_line("making batches", share)])


def serial(passes: int = 2, **loader: Any) -> Finding:
    return only(case_of(Planted(fetch_s=0.03, compute_s=0.01, passes=passes).having(**loader)))


@pytest.mark.parametrize(
    ("loader", "change"),
    [
        pytest.param({}, WORKERS, id="its own"),
        pytest.param({"built_by": "transformers"}, WORKERS, id="of a Trainer"),
        pytest.param({"built_by": "timm"}, WORKERS, id="of timm"),
        pytest.param({"built_by": "planted"}, WORKERS, id="of another package"),
        pytest.param({"overlaps": True}, {"num_workers": 3}, id="epochs that overlap"),
        pytest.param(
            {"changed_between_passes": ["level"]}, {"num_workers": 3}, id="changed between epochs"
        ),
        pytest.param({"passes": 10, "built": 10}, {"num_workers": 3}, id="built for each epoch"),
        pytest.param({"passes": 10, "built": 5}, WORKERS, id="folds"),
        # Something has to be done first: no matter of arguments alone.
        pytest.param({"open_files": OPEN_FILES}, {}, id="an open file"),
    ],
)
def test_serial_loading(loader: dict[str, Any], change: dict[str, Any]) -> None:
    finding = serial(**loader)
    assert (finding.id, finding.site, finding.change) == ("serial_loading", "train.py:41", change)
    assert finding.evidence[MODELLED_WORKERS] == 3
    assert finding.evidence["built_by"] == loader.get("built_by")
    # Three workers give a batch each 10 ms, as fast as training takes them.
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low <= 4.0 <= high
    # What sleep waits for may give no more to more workers.
    assert (finding.severity, finding.is_at_most) == ("high", True)


def test_batches_that_are_computed_have_a_lower_bound_too() -> None:
    finding = only(case_of(Planted(fetch_s=0.03, running=0.6, compute_s=0.01)))
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low <= 4.0 <= high < 1.6 * low
    assert (finding.severity, finding.is_at_most) == ("high", False)


@pytest.mark.parametrize(("left", "change"), [(0, WORKERS), (1000, {"num_workers": 3})])
def test_workers_live_on_only_where_epochs_end(left: int, change: dict[str, Any]) -> None:
    planted = Planted(fetch_s=0.5, running=1.0, compute_s=0.01, cores=2.0, passes=10, left=left)
    finding = only(case_of(planted))
    assert finding.change.keys() == change.keys()


def test_workers_for_the_loaders_of_folds_are_started_for_each() -> None:
    started = {"spawn_s": Interval.exactly(0.2)}
    gains = [serial(passes=10, built=built, inputs=started).run_speedup for built in (1, 5)]
    assert gains[0] is not None
    assert gains[1] is not None
    assert gains[1][1] < gains[0][1]


@pytest.mark.parametrize(("shards", "workers"), [(1, 1), (2, 2), (8, 3)])
def test_no_more_workers_than_a_stream_has_shards(shards: int, workers: int) -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01, shards=shards)
    finding = only(case_of(planted.having(is_iterable=True, has_asked_for_worker=True)))
    assert (finding.id, finding.change["num_workers"]) == ("serial_loading", workers)


def test_waits_that_most_of_the_run_does_not_have_are_not_saved_in_all_of_it() -> None:
    whole_s, part_s = (
        serial(wait_total_s=share * 200 * 0.03).recoverable_s for share in (1.0, 0.25)
    )
    assert whole_s is not None
    assert part_s is not None
    assert part_s < whole_s / 3


# -- where workers may take what they give

BOTH_CORES = {"compute_cores": Interval(1.0, 1.8, 2.0), "running": 1.0, "cores": 2}


def test_where_workers_may_take_what_they_give_samples_are_to_be_cheaper() -> None:
    planted = Planted(fetch_s=0.0065, running=1.0, compute_s=0.0155, cores=2, **UNSURE)
    assert reported(case_of(planted)) == []  # nobody's line is known
    finding = only(case_of(with_lines(planted)))
    assert (finding.id, finding.site, finding.change) == ("serial_loading", "data.py:12", {})
    assert finding.is_at_most
    # Without them a step takes 15.5 ms instead of 22; what remains may get faster besides.
    assert finding.evidence[LIKELY] == pytest.approx(22 / 15.5, rel=0.02)


@pytest.mark.parametrize(("share", "comes_first"), [(0.95, True), (0.5, False)])
def test_one_function_that_takes_nearly_all_comes_ahead_of_workers_that_give_little(
    share: float, comes_first: bool
) -> None:
    unsure = {**BOTH_CORES, "receive_s": Interval(0.0, 0.008, 0.012)}
    spread = hot_line("making batches", share, line_share=share / 2)
    planted = Planted(fetch_s=0.024, compute_s=0.02, **unsure).having(hot_lines=[spread])
    finding = only(case_of(planted))
    assert finding.id == "serial_loading"
    assert (finding.change == {}) is comes_first
    if comes_first:
        # As with data that costs nothing, and not without that line alone.
        assert finding.evidence[LIKELY] == pytest.approx(44 / 20, rel=0.05)


@pytest.mark.parametrize(
    ("loader", "is_reported"),
    [({}, True), ({"dataset": "Dataset"}, True), ({"holds_tensors": True}, False)],
)
def test_samples_of_a_librarys_dataset_are_to_be_cheaper_where_workers_may_lose(
    loader: dict[str, Any], is_reported: bool
) -> None:
    """No line of the user's makes them: samples of the wait met the loop alone."""
    unsure = {**BOTH_CORES, "receive_s": Interval(0.0, 0.012, 0.03)}
    context = case_of(Planted(fetch_s=0.024, compute_s=0.02, **unsure).having(**loader))
    assert reported(context) == []
    loop = hot_line("data_wait", site="train.py:50")
    findings = diagnose(with_summary(context, part_lines=[loop])).findings
    expected = [("serial_loading", "train.py:41", {})] * is_reported
    assert [(x.id, x.site, x.change) for x in findings] == expected


@pytest.mark.parametrize("threads", [2.0, 1.0])
def test_workers_may_lose_where_threads_that_compute_wait_for_one_another(threads: float) -> None:
    # Making a batch and computing with it want both cores: what is lost once is lost for all.
    cores = Interval.exactly(threads)
    planted = Planted(fetch_s=0.15, running=1.0, compute_s=0.04, cores=2, compute_cores=cores)
    finding = only(case_of(with_lines(planted, 0.7)))
    assert finding.id == "serial_loading"
    assert finding.predicted_speedup is not None
    assert (finding.predicted_speedup[0] < 1) is (threads > 1)


@pytest.mark.parametrize(("running", "expected"), [(1.0, []), (0.0, ["serial_loading"])])
def test_workers_that_may_cost_more_than_they_gain(running: float, expected: list[str]) -> None:
    # A batch takes a tenth of a step, and to hand it over may take longer than to make it.
    receive = {"receive_s": Interval(0.0004, 0.0008, 0.006)} if running else {}
    planted = Planted(fetch_s=0.0017, running=running, compute_s=0.011, cores=2, **receive)
    assert reported(case_of(planted)) == expected


# Another program on the only core: each of the two has half of it, and waits for as long.
BESIDE_ANOTHER: dict[str, Any] = {
    "others": Interval(0.5, 1.0, 2.0),
    "runnable_s": np.full(STEPS, 0.01),
    "fetch_slowdown": 1.0,
    "main_slowdown": 1.0,
}


@pytest.mark.parametrize(
    ("running", "cores", "taken", "beside", "is_advised"),
    [
        (1.0, 1, 0.0, {}, False),
        (0.1, 1, 0.0, {}, True),
        (1.0, 4, 0.0, {}, True),
        (1.0, 4, 1.0, {}, True),
        (1.0, 4, 3.5, {}, False),
        (0.1, 2, 1.5, {}, True),
        (0.5, 1, 0.5, BESIDE_ANOTHER, False),
    ],
)
def test_workers_need_a_core_unless_they_sleep(
    running: float, cores: int, taken: float, beside: dict[str, Any], is_advised: bool
) -> None:
    """Other programs keep `taken` cores busy."""
    planted = Planted(fetch_s=0.02, running=running, compute_s=0.01, cores=float(cores), **beside)
    host = 100 * (taken + 0.1) / cores
    cpu = {
        "cores_usable": float(cores),
        "per_core_percent": [host] * cores,
        "host_percent": {"mean": host},
        "tree_percent": {"mean": 10.0},
        "pressure_some_share": 0.5,
    }
    findings = diagnose(case_of(planted, system=summaries.system(cpu=cpu))).findings
    assert findings
    assert any(finding.change.get("num_workers") for finding in findings) is is_advised
    assert is_advised or not any("num_workers=" in finding.advice for finding in findings)


def test_a_wait_of_the_first_epoch_alone_is_over() -> None:
    cold, still = (
        Planted(fetch_s=0.01, compute_s=0.01, passes=5, cold_passes=count) for count in (1, 4)
    )
    assert cold.loader.wait_total_s > 0.1 * float(cold.step_s.sum())
    assert reported(case_of(cold)) == []
    assert reported(case_of(still)) == ["serial_loading"]


# -- on a device


def felt(planted: Planted, idle_s: float) -> RunContext:
    """Returns a run on a device that was idle for its loader for so long."""
    return case_of(planted, devices=[idle_device({"loader_s": idle_s})], device="cuda:0")


@pytest.mark.parametrize(("idle_s", "expected"), [(6.0, ["serial_loading"]), (0.1, [])])
def test_a_wait_that_the_device_did_not_feel(idle_s: float, expected: list[str]) -> None:
    context = felt(Planted(fetch_s=0.03, compute_s=0.01), idle_s)
    findings = diagnose(context).findings
    assert [x.id for x in findings] == expected
    most = context.training_s / (context.training_s - idle_s)
    assert all(high_of(x) <= most + 1e-9 for x in findings)


@pytest.mark.parametrize(("workers", "rule"), [(0, "serial_loading"), (1, "too_few_workers")])
def test_no_more_workers_than_a_device_can_use(workers: int, rule: str) -> None:
    # The host is done with a step after 4 ms, and a batch takes 60: sixteen workers would keep up.
    planted = Planted(workers=workers, fetch_s=0.06, running=1.0, compute_s=0.004, cores=32)
    of_host = only(case_of(planted)).change["num_workers"]
    assert of_host > 10
    waited_s = sum(case_of(planted).training[key] for key in LOADER_KEYS)
    # For half of the waits the device works: it takes some 30 ms a step, for which two will do.
    finding = only(felt(planted, 0.5 * waited_s))
    assert finding.id == rule
    assert finding.change["num_workers"] in (2, 3)
    assert only(felt(planted, waited_s)).change["num_workers"] == of_host


def test_a_loader_that_the_model_does_not_know_is_not_judged() -> None:
    context = case_of(Planted(fetch_s=0.03, compute_s=0.01))
    unknown = replace(context.feeding[0], inputs=None, cause=None)
    assert reported(replace(context, feeding=[unknown])) == []


def test_a_batch_has_its_own_percentage_where_it_is_not_that_of_training() -> None:
    """Its golden page has both."""
    context = case_of(Planted(fetch_s=0.03, compute_s=0.01), parts={"evaluation": 4.0})
    assert "serial_loading" in reported(context)
