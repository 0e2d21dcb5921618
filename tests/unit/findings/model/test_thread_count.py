"""Threads that are too many for the cores, in training and in workers, or too few."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import HEALTHY, STEPS, Planted, case_of, with_summary
from support.findings import finding_of, only, reported

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.finding import LIKELY
from trainprof.analysis.summary.loader import WorkerThreads
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext


def on_cores(context: RunContext, threads_there: int = 40, **cpu: Any) -> RunContext:
    """Returns a case of a machine of eight cores, of which the run may use some."""
    usual = {"host_percent": {"mean": 12.5}, "tree_percent": {"mean": 100.0}}
    known = summaries.system().cpu | {"per_core_percent": [0.0] * 8} | usual | cpu
    system = summaries.system(cpu=known, processes=[{"role": "main", "threads": threads_there}])
    return with_summary(context, system=system)


def in_workers(
    runnable: float = 0.5,
    threads: float = 2.0,
    of_torch: WorkerThreads | None = None,
    ranks: int = 1,
    **changes: Any,
) -> RunContext:
    """Two workers whose threads want more of the cores than there are."""
    plain = {"workers": 2, "fetch_s": 0.02, "running": 1 - runnable, "compute_s": 0.008, "cores": 2}
    planted = Planted(**{**plain, **changes})
    fetch = planted.loader.fetch
    assert fetch is not None
    assert fetch.wall_s is not None
    assert fetch.running_s is not None
    waited_s, cpu_s = runnable * fetch.wall_s.mean * fetch.n, threads * fetch.running_s
    planted.having(
        fetch={"runnable_s": waited_s, "asleep_s": 0.0, "cpu_s": cpu_s},
        inputs={"ranks": ranks},
        worker_threads=of_torch,
    )
    return on_cores(case_of(planted), cores_usable=float(planted.inputs.cores))


@pytest.mark.parametrize(
    ("how", "site"),
    [
        ({}, "train.py:41"),
        ({"of_torch": WorkerThreads(8)}, "train.py:41"),
        ({"of_torch": WorkerThreads(8, "train.py:69")}, "train.py:69"),
        ({"threads": 1.2, "of_torch": WorkerThreads(8, "train.py:69")}, "train.py:69"),
        ({"ranks": 4, "cores": 8}, "train.py:41"),
        ({"threads": 1.1}, None),  # one each: they are many workers, or the work is much
        ({"runnable": 0.1, "of_torch": WorkerThreads(8)}, None),
        ({"runnable": 0.1}, None),  # who want a core have it
        ({"cores": 16}, None),
        ({"fetch_s": 0.001}, None),  # hardly ever at work
    ],
)
def test_threads_in_workers(how: dict[str, Any], site: str | None) -> None:
    finding = finding_of("thread_count", in_workers(**how))
    assert (finding and finding.site) == site
    assert finding is None or finding.recoverable_s is None


def test_what_comes_of_threads_in_workers_is_not_reported_beside_them() -> None:
    assert reported(in_workers()) == ["thread_count"]
    restarted = in_workers(passes=5, start_s=0.1)
    assert reported(restarted) == ["thread_count", "worker_restart"]


@pytest.mark.parametrize(
    ("threads", "there", "cpu", "advised"),
    [
        (16, 40, {"cores_usable": 2.0}, 2),
        (16, 40, {"cores_usable": 8.0, "cores_physical": 4.0}, 4),
        (8, 40, {"cores_usable": 8.0, "cores_physical": 4.0}, None),  # each hyper-thread runs one
        (16, 5, {"cores_usable": 2.0}, None),  # so many were never needed
        (2, 9, {"cores_usable": 2.0}, None),
        (2, 9, {"cores_usable": 1.5}, None),  # a quota of a core and a half
        (None, 9, {"cores_usable": 2.0}, None),
    ],
)
def test_more_threads_than_cores(
    threads: int | None, there: int, cpu: dict[str, float], advised: int | None
) -> None:
    context = case_of(Planted(**HEALTHY), torch=TorchSettings(threads=threads))
    findings = diagnose(on_cores(context, there, **cpu)).findings
    assert [x.id for x in findings] == ([] if advised is None else ["thread_count"])
    assert [x.evidence["cores"] for x in findings] == ([] if advised is None else [advised])
    assert all(x.recoverable_s is None for x in findings)


def test_cores_full_of_waiting_threads_are_no_matter_of_the_samples() -> None:
    planted = Planted(workers=2, fetch_s=0.05, running=1.0, compute_s=0.02, cores=2)
    context = case_of(planted)
    assert reported(context) == ["saturated_cpu"]
    crowded = on_cores(replace(context, torch=TorchSettings(threads=16)), cores_usable=2.0)
    assert reported(crowded) == ["thread_count"]


# An operator of the backward takes 1 ms of the 10.
ONE_THREAD = TorchSettings(threads=1, optimizers=1, backward_nodes=10)
SERIAL: dict[str, Any] = {"fetch_s": 0.0001, "compute_s": 0.005}


def computing(
    parts: dict[str, float] | None = None, backwards: int = 1, **settings: Any
) -> RunContext:
    return case_of(
        Planted(**SERIAL),
        torch=replace(ONE_THREAD, **settings),
        parts={"backward": 10e-3 * STEPS, **(parts or {})},
        backwards=backwards * STEPS,
    )


@pytest.mark.parametrize(
    ("settings", "cpu", "is_reported"),
    [
        ({}, {"cores_usable": 4.0}, True),
        ({"threads_set_at": "train.py:2"}, {"cores_usable": 4.0}, True),
        ({"backwards": 4}, {"cores_usable": 4.0}, True),
        ({}, {"cores_usable": 8.0, "cores_physical": 4.0}, True),
        ({"threads": 4}, {"cores_usable": 8.0, "cores_physical": 8.0}, True),
        ({"threads": 4}, {"cores_usable": 8.0, "cores_physical": 4.0}, False),
        ({"threads": 4}, {"cores_usable": 8.0}, False),  # they may be hyper-threads
        ({"threads": 4}, {"cores_usable": 4.0}, False),
        ({"threads": 3}, {"cores_usable": 4.0}, False),
        ({"threads": None}, {"cores_usable": 4.0}, False),
        ({"backwards": 6}, {"cores_usable": 4.0}, False),  # small operators
        ({"backward_nodes": 1_000}, {"cores_usable": 4.0}, False),
        ({"backward_nodes": None}, {"cores_usable": 4.0}, False),
        ({"optimizers": 2}, {"cores_usable": 4.0}, False),
        ({"cores_allotted": 1}, {"cores_usable": 4.0}, False),
        ({"is_data_parallel": True}, {"cores_usable": 4.0}, False),
        ({}, {"cores_usable": 1.0}, False),
        ({}, {"cores_usable": 4.0, "host_percent": {"mean": 50.0}}, False),  # others have them
    ],
)
def test_fewer_threads_than_free_cores(
    settings: dict[str, Any], cpu: dict[str, Any], is_reported: bool
) -> None:
    findings = diagnose(on_cores(computing(**settings), **cpu)).findings
    assert [x.id for x in findings] == ["thread_count"] * is_reported
    assert all(x.site == settings.get("threads_set_at") for x in findings)
    assert all((x.change, x.is_at_most) == ({}, True) for x in findings)


def test_all_free_cores_give_what_can_be_shared_out_and_no_place_ahead_of_others() -> None:
    finding = only(on_cores(computing(), cores_usable=4.0))
    # 15 of the 15.1 ms of a step at a quarter.
    assert finding.evidence[LIKELY] == pytest.approx(15.1 / 3.85, rel=0.05)
    with_python = computing({"other": 13e-3 * STEPS})
    assert reported(on_cores(with_python, cores_usable=4.0)) == ["python_in_loop", "thread_count"]


def test_where_a_device_computes_or_workers_have_the_cores_few_threads_are_no_matter() -> None:
    busy = Planted(workers=3, fetch_s=0.03, running=1.0, compute_s=0.005, cores=4)
    parts = {"backward": 10e-3 * STEPS}
    at_work = {"tree_percent": {"mean": 400.0}, "host_percent": {"mean": 50.0}}
    cases = (
        on_cores(case_of(busy, torch=ONE_THREAD, parts=parts), cores_usable=4.0, **at_work),
        on_cores(
            case_of(Planted(**SERIAL), torch=ONE_THREAD, parts=parts, device="cuda:0"),
            cores_usable=4.0,
        ),
    )
    assert all(finding_of("thread_count", context) is None for context in cases)
