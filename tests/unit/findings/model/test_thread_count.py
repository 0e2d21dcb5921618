"""Threads that are too many for the cores, in training and in workers, or too few."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from support import summaries
from support.cases import HEALTHY, STEPS, Planted, case_of, with_summary
from support.findings import Row, is_silent, reported, reports, row

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.loader import WorkerThreads
from trainprof.findings.run_context import RunContext


def on_cores(context: RunContext, cores: float, there: int = 40, **cpu: Any) -> RunContext:
    """Returns a run on a machine of eight cores, of which it may use some."""
    usual = {"host_percent": {"mean": 12.5}, "tree_percent": {"mean": 100.0}}
    known = {"per_core_percent": [0.0] * 8, "cores_usable": cores, **usual, **cpu}
    system = summaries.system(cpu=summaries.system().cpu | known)
    processes = [{"role": "main", "threads": there}]
    return with_summary(context, system=replace(system, processes=processes))


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
    made_s = float(planted.inputs.fetch_s.sum())
    cpu_s = threads * (1 - runnable) * made_s
    planted.having(
        fetch={"runnable_s": runnable * made_s, "asleep_s": 0.0, "cpu_s": cpu_s},
        inputs={"ranks": ranks},
        worker_threads=of_torch,
    )
    return on_cores(case_of(planted), float(planted.inputs.cores))


def with_threads(threads: int | None, cores: float, there: int = 40, **cpu: float) -> RunContext:
    context = case_of(Planted(**HEALTHY), torch=TorchSettings(threads=threads))
    return on_cores(context, cores, there, **cpu)


EIGHT, SET = WorkerThreads(8), WorkerThreads(8, "train.py:69")
FEW_CORES = Planted(workers=2, fetch_s=0.05, running=1.0, compute_s=0.02, cores=2)
CROWDED = on_cores(case_of(FEW_CORES, torch=TorchSettings(threads=16)), 2.0)
UNKNOWN: dict[str, Any] = {"saved_s": None, "predicted_speedup": None}

test_too_many_threads = reports(
    "thread_count",
    {
        "in workers": row(in_workers(), **UNKNOWN),
        "of torch in workers": row(in_workers(of_torch=EIGHT), **UNKNOWN),
        "set in workers": row(in_workers(of_torch=SET), "train.py:69", **UNKNOWN),
        "set, mostly idle": row(in_workers(threads=1.2, of_torch=SET), "train.py:69", **UNKNOWN),
        "of ranks": row(in_workers(ranks=4, cores=8), **UNKNOWN),
        "with restarts": row(in_workers(passes=5, start_s=0.1), is_only=False, **UNKNOWN),
        "in training": row(with_threads(16, 2.0), None, cores=2.0, **UNKNOWN),
        "hyper-threads": row(with_threads(16, 8.0, cores_physical=4.0), None, cores=4.0, **UNKNOWN),
        # Cores full of waiting threads are no matter of the samples.
        "in training, with workers": row(CROWDED, None, cores=2.0, **UNKNOWN),
    },
)

test_not_too_many_threads = is_silent(
    "thread_count",
    {
        "one each": in_workers(threads=1.1),  # they are many workers, or the work is much
        "who want a core have it": in_workers(runnable=0.1, of_torch=EIGHT),
        "many cores": in_workers(cores=16),
        "hardly ever at work": in_workers(fetch_s=0.001),
        "each hyper-thread runs one": with_threads(8, 8.0, cores_physical=4.0),
        "so many were never needed": with_threads(16, 2.0, there=5),
        "a quota of a core and a half": with_threads(2, 1.5, there=9),
        "unknown": with_threads(None, 2.0, there=9),
    },
)

# An operator of the backward takes 1 ms of the 10.
ONE_THREAD = TorchSettings(threads=1, optimizers=1, backward_nodes=10)
SERIAL: dict[str, Any] = {"fetch_s": 0.0001, "compute_s": 0.005}
BACKWARD = {"backward": 10e-3 * STEPS}


def computing(
    cores: float = 4.0,
    *,
    backwards: int = 1,
    parts: dict[str, float] | None = None,
    cpu: dict[str, Any] | None = None,
    **settings: Any,
) -> RunContext:
    context = case_of(
        Planted(**SERIAL),
        torch=replace(ONE_THREAD, **settings),
        parts={**BACKWARD, **(parts or {})},
        backwards=backwards * STEPS,
    )
    return on_cores(with_backwards(context), cores, **(cpu or {}))


def with_backwards(context: RunContext, first_s: float = 0.0) -> RunContext:
    """Returns the run with the backward of each step; the first one takes `first_s` of it all."""
    spent_ns = (context.training["backward"] - first_s) * 1e9
    each = np.full(STEPS, spent_ns / STEPS)
    each[0] += first_s * 1e9
    per_step = {**context.steps.per_step, "backward": each.astype(np.int64)}
    return replace(context, steps=replace(context.steps, per_step=per_step))


def few(context: RunContext, site: str | None = None, **fields: Any) -> Row:
    return row(context, site, change={}, is_at_most=True, **fields)


PHYSICAL = {"cores_physical": 8.0}
BUSY = Planted(workers=3, fetch_s=0.03, running=1.0, compute_s=0.005, cores=4)
AT_WORK = {"tree_percent": {"mean": 400.0}, "host_percent": {"mean": 50.0}}

test_too_few_threads = reports(
    "thread_count",
    {
        # 15 of the 15.1 ms of a step at a quarter.
        "one": few(computing(), likely=15.1 / 3.85, rel=0.05),
        "set": few(computing(threads_set_at="train.py:2"), "train.py:2"),
        "four backwards": few(computing(backwards=4)),
        "hyper-threads": few(computing(8.0, cpu={"cores_physical": 4.0})),
        "half": few(computing(8.0, threads=4, cpu=PHYSICAL)),
    },
)
test_enough_threads = is_silent(
    "thread_count",
    {
        "they may be hyper-threads": computing(8.0, threads=4),
        "nearly all": computing(threads=3),
        "unknown": computing(threads=None),
        "small operators": computing(backwards=6),
        "many operators": computing(backward_nodes=1_000),
        # As of a model of five weights: operators take 50 us on average, without the first.
        "a slow first backward": with_backwards(computing(), first_s=9.5e-3 * STEPS),
        "two optimizers": computing(optimizers=2),
        "ranks": computing(is_data_parallel=True),
        "one core": computing(1.0),
        "others have them": computing(cpu={"host_percent": {"mean": 50.0}}),
        "workers have them": on_cores(
            with_backwards(case_of(BUSY, torch=ONE_THREAD, parts=BACKWARD)), 4.0, **AT_WORK
        ),
        "a device computes": on_cores(
            with_backwards(
                case_of(Planted(**SERIAL), torch=ONE_THREAD, parts=BACKWARD, device="cuda:0")
            ),
            4.0,
        ),
    },
)


def test_what_free_cores_may_give_has_no_place_ahead_of_what_is_known() -> None:
    context = computing(parts={"other": 13e-3 * STEPS})
    assert reported(context) == ["python_in_loop", "thread_count"]
