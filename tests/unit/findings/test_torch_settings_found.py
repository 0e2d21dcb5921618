"""How torch is set: anomalies, numbers, threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of, idle_device, on_device
from support.found import found, only

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import Numerics
from trainprof.findings.catalogue import RULES
from trainprof.findings.diagnose import _without_symptoms, diagnose


def test_anomaly_detection_comes_first_for_it_slows_what_else_is_measured() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    on = TorchSettings(detects_anomalies=True)
    findings = diagnose(case_of(planted, torch=on)).findings
    assert [x.id for x in findings] == ["anomaly_detection", "serial_loading"]
    assert findings[0].predicted_speedup is None
    assert findings[0].recoverable_s is None
    off = TorchSettings(detects_anomalies=False)
    assert found(case_of(planted, torch=off)) == ["serial_loading"]


DOUBLE = TorchSettings(numerics=Numerics("float64", "unknown"))


def test_a_model_in_double_precision() -> None:
    finding = only(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=DOUBLE))
    assert finding.id == "double_precision"
    assert finding.title.startswith("the model computes in float64: ")
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low == 1
    assert 1.5 < high < 2.5
    assert finding.cautions[0].startswith("the numbers change")
    assert finding.site is None
    for places, site, also in (
        (["train.py:9"], "train.py:9", []),
        (["train.py:9", "data.py:4"], None, ["it may be made so by train.py:9 or data.py:4"]),
    ):
        known = TorchSettings(numerics=Numerics("float64", "unknown", places))
        finding = only(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=known))
        assert (finding.site, finding.also) == (site, also)
    single = TorchSettings(numerics=Numerics("float32", "unknown"))
    meant = replace(DOUBLE, decomposes_in_float64=True)
    for healthy in (single, meant):
        context = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=healthy)
        assert found(context) == []


def test_what_float32_changes_is_minded_on_a_device_too() -> None:
    context = on_device(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=DOUBLE))
    context = replace(context, summary=replace(context.summary, devices=[idle_device({})]))
    [finding] = [x for x in diagnose(context).findings if x.id == "double_precision"]
    assert finding.cautions == [
        "the numbers change from the seventh digit on: not where double is meant"
    ]
    assert finding.also == ["what it costs only a rerun tells"]


def test_convolutions_in_double_precision_may_gain_more() -> None:
    """torch has its fast ones for float32 alone."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    plain = only(case_of(healthy, torch=DOUBLE))
    finding = only(case_of(healthy, torch=replace(DOUBLE, convolves_in_float64=True)))
    assert plain.predicted_speedup is not None
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low == 1
    # A batch takes the two workers 1 ms, whatever the model does.
    assert high > 3 * plain.predicted_speedup[1]
    assert finding.is_at_most
    part = finding.evidence["computing_share"]
    assert (plain.recoverable_s, finding.recoverable_s) == (
        pytest.approx(0.5 * part * 2, rel=0.1),
        pytest.approx(0.75 * part * 2, rel=0.1),
    )


@pytest.mark.parametrize("low", [0.6, 1.2])
def test_workers_that_may_not_help_are_no_cure_for_too_many_threads(low: float) -> None:
    context = case_of(Planted(fetch_s=0.01, compute_s=0.01))
    (serial,) = diagnose(context).findings
    threads = replace(serial, id="thread_count", change={}, predicted_speedup=None)
    unsure = replace(serial, predicted_speedup=[low, 1.7])
    known, _ = _without_symptoms([unsure, threads], {rule.id: rule for rule in RULES})
    assert ("serial_loading" in [x.id for x in known]) == (low > 1)


def test_workers_that_may_cost_more_than_they_gain_are_not_advised() -> None:
    # A batch takes a tenth of a step, and to hand it over may take longer than to make it.
    unsure = {"receive_s": Interval(0.0004, 0.0008, 0.006)}
    planted = Planted(fetch_s=0.0017, running=1.0, compute_s=0.011, cores=2, **unsure)
    assert found(case_of(planted)) == []
    sure = Planted(fetch_s=0.0017, running=0.0, compute_s=0.011, cores=2)
    assert found(case_of(sure)) == ["serial_loading"]


def test_drawing_indices_is_found_beside_what_handing_over_costs_anyway() -> None:
    handed_over = {"receive_s": Interval.exactly(0.003)}
    planted = Planted(workers=2, fetch_s=0.002, compute_s=0.01, sampler_s=0.0015, **handed_over)
    assert found(case_of(planted)) == ["slow_sampler"]
    quick = Planted(workers=2, fetch_s=0.002, compute_s=0.01, sampler_s=0.0001, **handed_over)
    assert found(case_of(quick)) == []
