"""Threads that are too many for the cores, in training and in workers, or too few."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import STEPS, Planted, case_of
from support.found import found, only

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.finding import LIKELY
from trainprof.analysis.summary.loader import WorkerThreads
from trainprof.findings.combined_speedup import together
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext


def on_cores(context: RunContext, threads_there: int = 40, **cpu: Any) -> RunContext:
    """Returns a case of a machine of eight cores, of which the run may use some."""
    told = summaries.system().cpu | {"per_core_percent": [0.0] * 8}
    told |= {"host_percent": {"mean": 12.5}, "tree_percent": {"mean": 100.0}, **cpu}
    system = summaries.system(cpu=told)
    system = replace(system, processes=[{"role": "main", "threads": threads_there}])
    return replace(context, summary=replace(context.summary, system=system))


def in_workers(
    runnable: float = 0.5,
    threads: float = 2.0,
    told: WorkerThreads | None = None,
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
    made_s = fetch.wall_s.mean * fetch.n
    fetch = replace(
        fetch, runnable_s=runnable * made_s, asleep_s=0.0, cpu_s=threads * fetch.running_s
    )
    planted.loader = replace(planted.loader, fetch=fetch, worker_threads=told)
    planted.inputs = replace(planted.inputs, ranks=ranks)
    return on_cores(case_of(planted), cores_usable=float(planted.inputs.cores))


@pytest.mark.parametrize(
    ("how", "site"),
    [
        ({}, "train.py:41"),
        ({"told": WorkerThreads(8)}, "train.py:41"),
        ({"told": WorkerThreads(8, "train.py:69")}, "train.py:69"),
        ({"threads": 1.2, "told": WorkerThreads(8, "train.py:69")}, "train.py:69"),
        ({"ranks": 4, "cores": 8}, "train.py:41"),
        ({"threads": 1.1}, None),  # one each: they are many workers, or the work is much
        ({"runnable": 0.1, "told": WorkerThreads(8)}, None),
        ({"runnable": 0.1}, None),  # who want a core have it
        ({"cores": 16}, None),
        ({"fetch_s": 0.001}, None),  # hardly ever at work
    ],
)
def test_threads_in_workers(how: dict[str, Any], site: str | None) -> None:
    told = [one for one in diagnose(in_workers(**how)).findings if one.id == "thread_count"]
    assert [one.site for one in told] == ([] if site is None else [site])
    assert all(one.recoverable_s is None for one in told)


def test_what_comes_of_threads_in_workers_is_not_told_beside_them() -> None:
    assert found(in_workers()) == ["thread_count"]
    others = diagnose(in_workers(passes=5, start_s=0.1)).findings
    assert [one.id for one in others] == ["thread_count", "worker_restart"]
    assert together(in_workers(), others) is None


HEALTHY: dict[str, Any] = {"workers": 2, "fetch_s": 0.002, "compute_s": 0.01}


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
    told = diagnose(on_cores(context, there, **cpu)).findings
    assert [one.id for one in told] == ([] if advised is None else ["thread_count"])
    for one in told:
        assert one.recoverable_s is None
        assert f"torch.set_num_threads({advised})" in one.advice


def test_cores_full_of_waiting_threads_are_no_matter_of_the_samples() -> None:
    planted = Planted(workers=2, fetch_s=0.05, running=1.0, compute_s=0.02, cores=2)
    context = case_of(planted)
    assert found(context) == ["saturated_cpu"]
    crowded = on_cores(replace(context, torch=TorchSettings(threads=16)), cores_usable=2.0)
    assert found(crowded) == ["thread_count"]


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
    ("settings", "cpu", "is_found"),
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
    settings: dict[str, Any], cpu: dict[str, Any], is_found: bool
) -> None:
    told = diagnose(on_cores(computing(**settings), **cpu)).findings
    assert [one.id for one in told] == (["thread_count"] if is_found else [])
    for one in told:
        assert (one.site, one.change) == (settings.get("threads_set_at"), {})
        assert one.is_at_most


def test_all_free_cores_give_what_can_be_shared_out_and_no_place_ahead_of_others() -> None:
    finding = only(on_cores(computing(), cores_usable=4.0))
    # 15 of the 15.1 ms of a step at a quarter.
    assert finding.evidence[LIKELY] == pytest.approx(15.1 / 3.85, rel=0.05)
    told = diagnose(on_cores(computing({"other": 13e-3 * STEPS}), cores_usable=4.0)).findings
    assert [one.id for one in told] == ["python_in_loop", "thread_count"]


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
    assert all("thread_count" not in found(context) for context in cases)
