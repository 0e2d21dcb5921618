"""Computing beside workers that want the same cores, from planted batches with and without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis import crowded_cores
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.crowding import crowding_of
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.waiting import SAMPLING, UNKNOWN, Cause
from trainprof.analysis.finding import Finding
from trainprof.analysis.pipeline_scenario import Interval

PASSES = 2
IN_PASS = STEPS // PASSES
# Before the last batch of each pass.
AT_ENDS = [pass_ * IN_PASS + at for pass_ in range(PASSES) for at in range(IN_PASS - 11, IN_PASS)]


def planted(
    *,
    beside_s: float = 0.02,
    alone_s: float = 0.01,
    alone: list[int] = AT_ENDS,
    runnable: float = 0.4,
    each_tenth_s: float = 0.0,
) -> Planted:
    """Two workers that make a batch in less time than one is computed with.

    Args:
        beside_s, alone_s: To compute with a batch, with workers at work and without.
        alone: Which batches are computed with alone.
        runnable: Share of a batch's making that waits for a core.
        each_tenth_s: What each tenth batch takes longer.
    """
    one = Planted(
        workers=2, fetch_s=0.012, running=0.6, compute_s=beside_s, passes=PASSES, is_persistent=True
    )
    compute_s, busy = np.full(STEPS, beside_s), np.full(STEPS, 1.5)
    compute_s[alone], busy[alone] = alone_s, 0.0
    compute_s[5::10] += each_tenth_s
    one.inputs = replace(one.inputs, compute_s=compute_s, workers_busy=busy)
    fetch = one.loader.fetch
    assert fetch is not None
    assert fetch.wall_s is not None
    made_s = fetch.wall_s.mean * fetch.n
    fetch = replace(fetch, runnable_s=runnable * made_s, asleep_s=(0.4 - runnable) * made_s)
    one.loader = replace(one.loader, fetch=fetch)
    return one


def found(case: Case) -> Finding | None:
    return next((x for x in diagnose(case).findings if x.id == crowded_cores.ID), None)


def test_computing_that_takes_twice_as_long_beside_workers() -> None:
    finding = found(case_of(planted()))
    assert finding is not None
    assert "a batch takes 20.0 ms to compute with beside them, 10.0 ms while" in finding.title
    assert "wait for one 40 % of the time" in finding.title
    assert finding.site == "train.py:41"
    assert finding.is_at_most
    assert finding.change == {}
    saved_s = 0.01 * (1 - (IN_PASS - 2 - 88) / (IN_PASS - 2))  # of a mean batch
    step_s = finding.evidence["batch_s"]
    assert finding.evidence["likely_speedup"] == pytest.approx(step_s / (step_s - saved_s), 0.01)


@pytest.mark.parametrize(
    "healthy",
    [
        {"alone_s": 0.02},
        {"alone_s": 0.03},
        {"alone_s": 0.0195},
        {"runnable": 0.05},
        {"alone": AT_ENDS[-11:], "runnable": 0.2},
        {"alone": AT_ENDS[9:11] + AT_ENDS[-2:], "runnable": 0.2},
        {"alone_s": 0.02, "each_tenth_s": 0.2},
        {"alone": [], "runnable": 0.2},
    ],
    ids=[
        "as long",
        "longer alone",
        "hardly longer",
        "no waiting for cores",
        "alone at the run's end only",
        "too few alone",
        "work that comes now and then",
        "never alone and little waiting",
    ],
)
def test_what_is_none(healthy: dict[str, Any]) -> None:
    assert found(case_of(planted(**healthy))) is None


def test_a_device_computes_on_no_core() -> None:
    assert found(case_of(planted(), device="cuda")) is None


@pytest.mark.parametrize(("cause", "is_told"), [(SAMPLING, False), (UNKNOWN, True), (None, True)])
def test_a_wait_for_data_that_has_a_cause_of_its_own(cause: str | None, is_told: bool) -> None:
    case = case_of(planted())
    fed = replace(case.feeding[0], cause=None if cause is None else Cause(cause))
    assert (found(replace(case, feeding=[fed])) is not None) is is_told


@pytest.mark.parametrize(("host_percent", "is_told"), [(95.0, True), (99.9, False)])
def test_workers_that_are_never_idle_are_told_by_the_model(
    host_percent: float, is_told: bool
) -> None:
    """Unless other programs may be why all wait for cores."""
    one = planted(alone=[])
    one.inputs = replace(
        one.inputs,
        cores=2.0,
        runnable_s=one.inputs.fetch_s * 0.4,
        compute_cores=Interval.exactly(2.0),
        main_slowdown=0.5,
    )
    system = summaries.healthy().system
    assert system is not None
    own = 190.0 if is_told else 150.0
    cpu = {
        "tree_percent": {"mean": own},
        "host_percent": {"mean": host_percent},
        "per_core_percent": [95.0, 95.0],
        "cores_usable": 2,
        "pressure_some_share": 0.5,
    }
    case = case_of(one, system=replace(system, cpu=cpu))
    finding = found(case)
    assert (finding is not None) == is_told
    if finding is not None:
        assert "to compute with" not in finding.title
        assert finding.is_at_most


def test_a_few_batches_alone_at_the_end_say_how_much_it_may_be() -> None:
    few = crowding_of(planted(alone=AT_ENDS[-4:]).inputs)
    assert few is not None
    assert not few.is_sure
    many = crowding_of(planted().inputs)
    assert many is not None
    assert many.is_sure


def test_batches_at_the_borders_of_passes_tell_nothing() -> None:
    one = planted(alone=[0, IN_PASS - 1, IN_PASS, STEPS - 1])
    assert crowding_of(one.inputs) is None


@pytest.mark.parametrize(
    ("turn", "saved_ms"),
    [(None, 30.0), (3, 10.0)],
    ids=["now and then a batch is held up", "each third batch has more to do"],
)
def test_what_workers_hold_up_is_counted_by_means_where_it_is_they(
    turn: int | None, saved_ms: float
) -> None:
    one = planted(beside_s=0.02, alone_s=0.01)
    compute_s, busy = one.inputs.compute_s.copy(), one.inputs.workers_busy
    assert busy is not None
    is_beside = busy > 0
    chosen = np.random.default_rng(7).random(STEPS) < 1 / 3
    if turn is not None:
        chosen = np.arange(STEPS) % turn == 0
        chosen[~is_beside] = False
    compute_s[chosen & is_beside] += 0.06
    crowding = crowding_of(replace(one.inputs, compute_s=compute_s))
    assert crowding is not None
    share = (IN_PASS - 12) / (IN_PASS - 2)  # of batches beside workers
    assert crowding.saved_s * 1e3 == pytest.approx(saved_ms * share, rel=0.15)


def test_where_a_line_is_named_the_loader_is_too() -> None:
    one = planted()
    line = HotLine("making batches", "features.py:29", "encode", [], 60, 0.9, 2.0, line_share=0.9)
    one.loader = replace(one.loader, hot_lines=[line])
    case = case_of(one)
    two_threads = replace(case, summary=replace(case.summary, torch_threads=2))
    finding = found(two_threads)
    assert finding is not None
    assert finding.site == "features.py:29"
    assert finding.title.startswith("the 2 workers of train.py:41 share the ")
    assert finding.advice.endswith("; torch.set_num_threads(1) may help, too")
    assert "its 2 workers share" in getattr(found(case_of(planted())), "title", "")


def test_one_worker_is_not_said_to_take_all_cores() -> None:
    one = planted()
    one.loader = replace(one.loader, num_workers=1)
    one.inputs = replace(one.inputs, setting=replace(one.inputs.setting, workers=1))
    finding = found(case_of(one))
    assert finding is not None
    assert finding.title.startswith("its worker shares the ")
    assert " cores that training computes on with it, and waits for one 40 % of " in finding.title


def test_what_computing_takes_longer_beside_workers_is_told_where_cores_are_full() -> None:
    for alone_s, by in ((0.005, ""), (0.02, "by the model ")):  # the model shares the cores out
        one = Planted(workers=2, fetch_s=0.05, running=1.0, compute_s=0.02, cores=2, passes=PASSES)
        compute_s, busy = np.full(STEPS, 0.02), np.full(STEPS, 1.5)
        compute_s[AT_ENDS], busy[AT_ENDS] = alone_s, 0.0
        one.inputs = replace(one.inputs, compute_s=compute_s, workers_busy=busy)
        [finding] = diagnose(case_of(one)).findings
        assert finding.id == "saturated_cpu"
        assert f" of training, and {by}computing takes about " in finding.title
        assert finding.title.endswith("ms longer beside the workers; more workers would not help")
    alone = Planted(fetch_s=0.05, running=1.0, compute_s=0.001, cores=1)
    told = [one.title for one in diagnose(case_of(alone)).findings]
    assert not any("longer beside" in title for title in told)
