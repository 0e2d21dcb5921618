"""How torch is set: anomalies, numbers, threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import STEPS, Planted, case_of, idle_device, on_device
from support.found import found, only

from trainprof.analysis.code_figures import Numerics
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import _without_symptoms, diagnose
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.finding import LIKELY
from trainprof.analysis.pipeline_scenario import Interval
from trainprof.analysis.torch_settings import TorchSettings


def test_anomaly_detection_comes_first_for_it_slows_what_else_is_measured() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    on = TorchSettings(detects_anomalies=True)
    told = diagnose(case_of(planted, torch=on)).findings
    assert [one.id for one in told] == ["anomaly_detection", "serial_loading"]
    assert told[0].predicted_speedup is None
    assert told[0].recoverable_s is None
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
        case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=healthy)
        assert found(case) == []


def test_what_float32_changes_is_minded_on_a_device_too() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=DOUBLE))
    case = replace(case, summary=replace(case.summary, devices=[idle_device({})]))
    [finding] = [one for one in diagnose(case).findings if one.id == "double_precision"]
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


@pytest.mark.parametrize(
    ("threads", "there", "cores", "expected"),
    [
        (16, 40, 2.0, ["torch_threads"]),
        (16, 5, 2.0, []),  # so many were never needed
        (2, 9, 2.0, []),
        (2, 9, 1.5, []),  # a quota of a core and a half
        (None, 9, 2.0, []),
    ],
)
def test_more_threads_than_cores(
    threads: int | None, there: int, cores: float, expected: list[str]
) -> None:
    case = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=TorchSettings(threads=threads)
    )
    assert case.summary.system is not None
    system = replace(
        case.summary.system,
        cpu=case.summary.system.cpu | {"cores_usable": cores},
        processes=[{"role": "main", "threads": there}],
    )
    assert found(replace(case, summary=replace(case.summary, system=system))) == expected


def test_how_many_threads_are_advised_goes_by_cores_not_hyper_threads() -> None:
    case = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=TorchSettings(threads=16)
    )
    assert case.summary.system is not None
    cpu = case.summary.system.cpu | {"cores_usable": 8.0, "cores_physical": 4.0}
    system = replace(case.summary.system, cpu=cpu, processes=[{"role": "main", "threads": 20}])
    known = replace(case, summary=replace(case.summary, system=system))
    finding = only(known)
    assert finding.title.startswith("torch computes with 16 threads on 4 cores (8 hyper-threads):")
    assert finding.advice == "torch.set_num_threads(4), or OMP_NUM_THREADS=4"
    # Each hyper-thread runs one: what that costs is not known.
    assert found(replace(known, torch=TorchSettings(threads=8))) == []


def on_cores(
    case: Case,
    cores: float,
    own: float = 1.0,
    all_busy: float = 1.0,
    physical: float | None = None,
) -> Case:
    """Returns a case of a machine of eight cores, or hyper-threads.

    Args:
        case: Of the run.
        cores: That it may use.
        own: Cores that it keeps busy.
        all_busy: That all programs do.
        physical: Of `cores`, hyper-threads of one counted once; None: not told, as of old runs.
    """
    assert case.summary.system is not None
    cpu = {
        "cores_usable": cores,
        "cores_physical": physical,
        "per_core_percent": [0.0] * 8,
        "host_percent": {"mean": 100 * all_busy / 8},
        "tree_percent": {"mean": 100 * own},
    }
    system = replace(case.summary.system, cpu=cpu)
    return replace(case, summary=replace(case.summary, system=system))


# An operator of the backward takes 1 ms of the 10.
ONE_THREAD = TorchSettings(threads=1, optimizers=1, backward_nodes=10)


COMPUTES: dict[str, Any] = {"parts": {"backward": 10e-3 * STEPS}}


def test_one_thread_beside_cores_that_have_nothing_to_do() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    finding = only(on_cores(case_of(planted, torch=ONE_THREAD, **COMPUTES), 4.0))
    assert (finding.id, finding.site, finding.change) == ("few_threads", None, {})
    assert "torch.set_num_threads(4)" in finding.advice
    assert finding.is_at_most
    # 15 of the 15.1 ms of a step at a quarter.
    assert finding.evidence[LIKELY] == pytest.approx(15.1 / 3.85, rel=0.05)
    assert finding.evidence["operator_s"] == pytest.approx(0.001)


@pytest.mark.parametrize(("backwards", "is_found"), [(4, True), (6, False)])
def test_each_of_several_backwards_of_a_step_has_operators_of_its_own(
    backwards: int, is_found: bool
) -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    case = case_of(planted, torch=ONE_THREAD, backwards=backwards * STEPS, **COMPUTES)
    assert ("few_threads" in found(on_cores(case, 4.0))) is is_found


def test_the_line_that_sets_too_few_threads_is_named() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    settings = replace(ONE_THREAD, threads_set_at="train.py:2")
    finding = only(on_cores(case_of(planted, torch=settings, **COMPUTES), 4.0))
    assert (finding.id, finding.site) == ("few_threads", "train.py:2")
    assert finding.advice.startswith("4 threads at train.py:2, or take that line out;")


def test_more_threads_and_less_python_give_more_than_either() -> None:
    """It is ranked by half of what cores that share all of it would save, which is the most."""
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    parts = {"backward": 10e-3 * STEPS, "other": 5e-3 * STEPS}
    case = on_cores(case_of(planted, torch=ONE_THREAD, parts=parts), 4.0)
    told = diagnose(case).findings
    assert [one.id for one in told] == ["few_threads", "python_in_loop"]
    everything = together(case, told)
    assert everything is not None
    # Of 20 ms a step 5 go, and a quarter of the other 15 is left.
    assert everything == pytest.approx(20.1 / (0.1 + 15 / 4), rel=0.15)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        pytest.param({"threads": 4}, {}, id="as many as cores"),
        pytest.param({"threads": 3}, {}, id="one less"),
        pytest.param({"threads": None}, {}, id="not known"),
        pytest.param({"backward_nodes": 1_000}, {}, id="small operators"),
        pytest.param({"backward_nodes": None}, {}, id="operators that nobody has counted"),
        pytest.param({"optimizers": 2}, {}, id="passes of several graphs"),
        pytest.param({"cores_allotted": 1}, {}, id="a batch system gave it one core"),
        pytest.param({"is_data_parallel": True}, {}, id="ranks share the cores"),
        pytest.param({}, {"cores": 1.0}, id="one core"),
        pytest.param({}, {"all_busy": 4.0}, id="others have them"),
    ],
)
def test_threads_that_are_as_many_as_they_should_be(
    settings: dict[str, Any], where: dict[str, float]
) -> None:
    torch = replace(ONE_THREAD, **settings)
    case = case_of(Planted(fetch_s=0.0001, compute_s=0.005), torch=torch, **COMPUTES)
    assert found(on_cores(case, **{"cores": 4.0, **where})) == []


def test_hyper_threads_are_no_cores_that_have_nothing_to_do() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    case = on_cores(case_of(planted, torch=ONE_THREAD, **COMPUTES), 8.0, physical=4.0)
    finding = only(case)
    assert finding.id == "few_threads"
    assert "with 1 thread, and 4 cores are there" in finding.title
    assert "torch.set_num_threads(4)" in finding.advice
    assert finding.evidence[LIKELY] == pytest.approx(15.1 / 3.85, rel=0.05)


@pytest.mark.parametrize("physical", [4.0, None])
def test_as_many_threads_as_torch_takes_by_itself_are_not_few(physical: float | None) -> None:
    torch = replace(ONE_THREAD, threads=4)
    case = case_of(Planted(fetch_s=0.0001, compute_s=0.005), torch=torch, **COMPUTES)
    assert found(on_cores(case, 8.0, physical=physical)) == []
    assert found(on_cores(case, 8.0, physical=8.0)) == ["few_threads"]


def test_cores_that_workers_keep_busy_are_not_free() -> None:
    planted = Planted(workers=3, fetch_s=0.03, running=1.0, compute_s=0.005, cores=4)
    case = on_cores(case_of(planted, torch=ONE_THREAD, **COMPUTES), 4.0, own=4.0, all_busy=4.0)
    assert "few_threads" not in found(case)


def test_where_a_device_computes_the_hosts_threads_are_no_matter() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    case = on_cores(case_of(planted, torch=ONE_THREAD, device="cuda:0", **COMPUTES), 4.0)
    assert "few_threads" not in found(case)


def test_cores_full_of_waiting_threads_are_no_matter_of_the_samples() -> None:
    planted = Planted(workers=2, fetch_s=0.05, running=1.0, compute_s=0.02, cores=2)
    alone = case_of(planted)
    assert found(alone) == ["saturated_cpu"]
    assert alone.summary.system is not None
    system = replace(
        alone.summary.system,
        cpu=alone.summary.system.cpu | {"cores_usable": 2},
        processes=[{"role": "main", "threads": 20}],
    )
    crowded = replace(
        alone,
        summary=replace(alone.summary, system=system),
        torch=TorchSettings(threads=16),
    )
    finding = only(crowded)
    assert finding.id == "torch_threads"
    assert finding.also[-1].startswith("it may be why making batches needs more of the CPU")


@pytest.mark.parametrize("low", [0.6, 1.2])
def test_workers_that_may_not_help_are_no_cure_for_too_many_threads(low: float) -> None:
    case = case_of(Planted(fetch_s=0.01, compute_s=0.01))
    (serial,) = diagnose(case).findings
    threads = replace(serial, id="torch_threads", change={}, predicted_speedup=None)
    told, _ = _without_symptoms([replace(serial, predicted_speedup=[low, 1.7]), threads])
    assert ("serial_loading" in [one.id for one in told]) == (low > 1)


def test_workers_that_may_cost_more_than_they_gain_are_not_advised() -> None:
    # A batch takes a tenth of a step, and to hand it over may take longer than to make it.
    unsure = {"receive_s": Interval(0.0004, 0.0008, 0.006), "delivery_s": 0.0008}
    planted = Planted(fetch_s=0.0017, running=1.0, compute_s=0.011, cores=2, **unsure)
    assert found(case_of(planted)) == []
    sure = Planted(fetch_s=0.0017, running=0.0, compute_s=0.011, cores=2)
    assert found(case_of(sure)) == ["serial_loading"]


def test_drawing_indices_is_found_beside_what_handing_over_costs_anyway() -> None:
    handed_over = {"receive_s": Interval.exactly(0.003), "delivery_s": 0.003}
    planted = Planted(workers=2, fetch_s=0.002, compute_s=0.01, sampler_s=0.0015, **handed_over)
    assert found(case_of(planted)) == ["slow_sampler"]
    quick = Planted(workers=2, fetch_s=0.002, compute_s=0.01, sampler_s=0.0001, **handed_over)
    assert found(case_of(quick)) == []
