"""torch has more threads than there are cores, in training or in workers; or cores stay idle.

What it means: torch splits an operator across its threads and waits for all of them. With more
threads than cores some wait for a core, and the others wait for those. In a loader worker torch has
one thread, unless torch.set_num_threads() is called there. Other libraries start a thread per core
in each worker: OpenBLAS behind NumPy, MKL, OpenCV, tokenizers. With too few threads, as by
OMP_NUM_THREADS=1 from another machine, cores stay idle.

How it is measured: trainprof compares torch.get_num_threads() at the first step with the cores that
the run may use and that workers and other programs leave free. In workers it compares the CPU time
of all threads with that of the thread that prepares the batch. It also measures that thread's wait
for a core. Too few threads are reported if the median step has backward operators of 0.2 ms or
more, on average: torch does not split smaller ones. Ranks of distributed training are not judged
for that.

When it is wrong: operators may wait for memory, a neighbour may need the cores, or a decoder's
threads may pay off. The gain of more threads is an upper bound: all computing would have to split
evenly.

What to do: torch.set_num_threads() with the number of free cores, or remove the setting. For one
thread in each worker set OPENBLAS_NUM_THREADS=1, MKL_NUM_THREADS=1 or OMP_NUM_THREADS=1 (torch
reads it too) in the environment. Or call cv2.setNumThreads(0) or threadpoolctl.threadpool_limits(1)
in worker_init_fn. Sums are then added in another order: losses may differ in the last digits.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

import numpy as np

from trainprof.analysis.summary.finding import EXPLAINS_S, LOADER_ID, Finding, RuleTraits, Threshold
from trainprof.analysis.summary.free_cores import cores_for_threads, shared_cpu
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.loader import WorkerThreads
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.gain import plain_finding, python_gain, unmeasured_finding
from trainprof.findings.loading.loader_cautions import ranks_of
from trainprof.findings.model import growing_backward
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import number_of, place, span

# Of torch's threads: with fewer free cores nothing is sure.
_FREE_TIMES: Final = 1.5
# Of the cores: from here on the running threads of workers are too many.
_CROWDED: Final = 1.25
_USUAL: Final = WorkerThreads(torch=1)
_IN_WORKERS: Final = "Run one thread in each worker"
_IN_ENVIRONMENT: Final = (
    "OPENBLAS_NUM_THREADS=1 and MKL_NUM_THREADS=1, or cv2.setNumThreads(0) in worker_init_fn"
)


def find(context: RunContext) -> Finding | None:
    in_workers = (_in_workers(context, feeder) for feeder in context.feeding)
    first = next((finding for finding in in_workers if finding), None)
    return first or _too_many(context) or _too_few(context)


def _in_workers(context: RunContext, feeder: Feeder) -> Finding | None:
    fetch, workers, cores = feeder.loader.fetch, feeder.loader.num_workers or 0, context.cores()
    if not workers or cores is None or fetch is None or fetch.wall_s is None:
        return None
    fetch_s = fetch.wall_s.mean * fetch.n
    if not fetch.running_s or fetch.cpu_s is None or fetch_s <= 0 or context.training_s <= 0:
        return None
    known, line = feeder.loader.worker_threads or _USUAL, feeder.hot_line()
    # torch's threads that wait for the others of an operator use no CPU time.
    at_work = max(fetch.cpu_s / fetch.running_s, known.torch)
    waits, busy = (fetch.runnable_s or 0.0) / fetch_s, fetch_s / (workers * context.training_s)
    numbers = {"runnable_share": waits, "threads": at_work, "busy_share": min(busy, 1.0)}
    if any(value < _least(context, name) for name, value in numbers.items()):
        return None
    # Those that wait for a core would run concurrently with the others.
    wanted = at_work * (1 + waits / max(1 - waits, 0.1))
    if ranks_of(feeder) * workers * numbers["busy_share"] * wanted < _CROWDED * cores:
        return None
    running, advice = f"{at_work:.1f} threads run", _IN_ENVIRONMENT
    if known.torch > 1:
        at = "" if known.set_at is None else f" in place of {known.set_at}"
        running = f"{known.torch} torch threads run"
        advice = f"torch.set_num_threads(1) in worker_init_fn{at}"
    ranks = f" of {ranks_of(feeder)} ranks" if ranks_of(feeder) > 1 else ""
    return unmeasured_finding(
        RULE.id,
        f"{running} in each of {number_of(workers, 'worker')}{ranks} on {_cores(cores)}: fetches "
        f"wait {percent(waits)} of their time for a core",
        site=(known.set_at if known.torch > 1 else None) or feeder.loader.site,
        action=_IN_WORKERS,
        advice=advice,
        evidence={
            LOADER_ID: feeder.loader.id,
            **numbers,
            "workers": workers,
            "cores": cores,
            "torch_threads": known.torch,
        },
        also=[f"{place(line)} takes most of batch preparation"] if line is not None else [],
    )


def _too_many(context: RunContext) -> Finding | None:
    threads, cores, part = context.torch.threads, context.cores(), context.share(*COMPUTE_KEYS)
    there = context.threads_of_training()
    if context.is_on_device or threads is None or cores is None or part < _least(context, "share"):
        return None
    # A fraction of a core is a container's quota, which one more thread may use. A core with
    # hyper-threads runs two threads, though it hardly gains by that.
    if threads <= max(ceil(cores), 1) or there is None or there < threads:
        return None
    best = context.cores("cores_physical") or cores
    number = max(ceil(best), 1)
    return unmeasured_finding(
        RULE.id,
        f"{threads} torch threads run on {_cores(best)} and wait for each other, while computing "
        f"takes {context.of_step(part * context.training_s, *COMPUTE_KEYS)}",
        site=context.torch.threads_set_at,
        advice=f"torch.set_num_threads({number}) or OMP_NUM_THREADS={number}",
        evidence={
            "threads": threads,
            "cores": best,
            "threads_of_process": there,
            "computing_share": part,
        },
    )


def _too_few(context: RunContext) -> Finding | None:
    threads, part = context.torch.threads, context.share(*COMPUTE_KEYS)
    is_shared_out = (context.summary.run.world_size or 1) > 1 or context.torch.is_data_parallel
    if context.is_on_device or threads is None or is_shared_out or context.summary.ranks:
        return None
    free, operator_s = _free_cores(context, threads), _operator_s(context)
    if free is None or operator_s is None or free < _FREE_TIMES * threads:
        return None
    if part < _least(context, "share") or operator_s < _least(context, "operator_s"):
        return None
    gain = python_gain(context, (1 - threads / free) * part * context.training_s)
    # A growing graph has the operators of earlier steps too.
    if gain is None or growing_backward.find(context) is not None:
        return None
    number = max(round(free), threads + 1)
    return plain_finding(
        RULE.id,
        f"torch runs {number_of(threads, 'thread')} while {_cores(free)} are free; computing takes "
        f"{context.of_step(part * context.training_s, *COMPUTE_KEYS)}",
        # What of it can be split is unknown: findings with a known gain come first.
        replace(gain, saved_s=gain.saved_s / 2),
        site=context.torch.threads_set_at,
        action="Give torch more threads",
        advice=f"torch.set_num_threads({number}) or OMP_NUM_THREADS={number}",
        also=[f"a backward operator takes {span(operator_s)} on average"],
        evidence={
            "threads": threads,
            "free_cores": free,
            "computing_share": part,
            "operator_s": operator_s,
            EXPLAINS_S: 0.0,
        },
    )


def _operator_s(context: RunContext) -> float | None:
    """Returns what an operator of the median step's backward takes on average; None if unknown.

    The median: a first backward, or one that other programs delay, may take any time.
    """
    nodes, spent_ns = context.torch.backward_nodes, context.steps.per_step.get("backward")
    # Each of several optimizers may have its own backward, and only one graph was counted.
    if not nodes or not context.backwards or context.torch.optimizers != 1 or spent_ns is None:
        return None
    spent_ns = spent_ns[context.steps.steady.mask & (spent_ns > 0)]
    if not len(spent_ns):
        return None
    each = max(context.backwards / max(len(context.steps), 1), 1.0)
    return float(np.median(spent_ns)) / 1e9 / each / nodes


def _free_cores(context: RunContext, threads: int) -> float | None:
    """Returns the cores that neither workers nor other programs use."""
    cpu = context.summary.system.cpu if context.summary.system else {}
    cores, shared = cores_for_threads(cpu, threads), shared_cpu(cpu)
    if cores is None or shared is None or context.training_s <= 0:
        return None
    cores = min(cores, float(context.torch.cores_allotted or cores))
    working_s = sum(
        feeder.loader.fetch.running_s or 0.0
        for feeder in (*context.feeding, *context.evaluating)
        if feeder.loader.num_workers and feeder.loader.fetch is not None
    )
    workers = working_s / context.training_s
    return max(cores - workers - shared.others_share * shared.cores, 0.0)


def _least(context: RunContext, name: str) -> float:
    return RULE.threshold(context.settings, name)


def _cores(cores: float) -> str:
    return f"{cores:.3g} core{'' if cores == 1 else 's'}"


RULE: Final = Rule(
    id="thread_count",
    thresholds={
        "share": Threshold(0.5, "of training, computing on the CPU"),
        "operator_s": Threshold(
            200e-6, "an operator of backward: torch hardly splits smaller ones"
        ),
        "runnable_share": Threshold(0.3, "of batch preparation, waiting for a core"),
        "threads": Threshold(1.5, "running in each worker while it prepares batches"),
        "busy_share": Threshold(0.2, "of training, in which its workers prepare batches"),
    },
    find=find,
    explanation=__doc__,
    order=280,
    by_timing=True,
    traits=RuleTraits(
        keys=["data_wait", "first_batch", *COMPUTE_KEYS],
        gain_if="the cores could share all of it evenly",
        slows_everything=True,
        action="Set torch's threads to the core count",
    ),
    explains_unsure_workers=True,
    old_names=("torch_threads", "few_threads", "worker_threads"),
)
