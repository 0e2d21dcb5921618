"""Threads are more than there are cores, in training or in workers; or so few that cores idle.

What it means: torch splits an operation among its threads, and each waits for the others. With more
of them than cores some cannot run, and all wait for those. Inside each loader worker torch has one,
unless torch.set_num_threads is called there; other libraries start as many as the machine has cores
(OpenBLAS behind NumPy, MKL, OpenCV, tokenizers), in each worker anew. With fewer threads than cores
(OMP_NUM_THREADS=1, left from another machine) the other cores stand still while the model computes.

How it is measured: torch.get_num_threads() at the first step, against the cores that the run may
use, less what workers and other programs keep busy; and the process's threads that the system
counts. In workers: the CPU time of all their threads beside that of the one that makes the batch,
and for how long that one waits for a core. Too few are told where an operator of the backward pass
takes 0.2 ms or more in the mean: smaller ones are not split. The gain is then what all cores would
give if all that is computed could be shared out; that of fewer threads no single run tells. In
distributed training, whose launcher shares the cores out itself, too few are not told.

When it is wrong: where memory is what an operation waits for; where a neighbour is meant to have
the cores, or had them in this run; where a decoder's threads are worth it.

What to do: torch.set_num_threads with the number of cores, less those that workers keep busy; or
take the setting out. One thread in each worker: take torch.set_num_threads out of what workers
call; OPENBLAS_NUM_THREADS=1 (MKL_NUM_THREADS, OMP_NUM_THREADS, which torch reads as well) in the
environment, or in worker_init_fn: cv2.setNumThreads(0), threadpoolctl.threadpool_limits(1). Sums
are then added up in another order: losses may differ in the last digits.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

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

# Of the cores that torch has threads for: with fewer than that free, nothing is sure.
_FREE_TIMES: Final = 1.5
# Of the cores: so many more threads of workers than that are at work at once.
_CROWDED: Final = 1.25
_OTHER_ORDER: Final = "sums are added up in another order: losses may differ in the last digits"
_NOT_TOLD: Final = WorkerThreads(torch=1)


def find(context: RunContext) -> Finding | None:
    in_workers = (_in_workers(context, feeder) for feeder in context.feeding)
    first = next((finding for finding in in_workers if finding), None)
    return first or _too_many(context) or _too_few(context)


def _in_workers(context: RunContext, feeder: Feeder) -> Finding | None:
    fetch, workers, cores = feeder.loader.fetch, feeder.loader.num_workers or 0, context.cores()
    if not workers or cores is None or fetch is None or fetch.wall_s is None:
        return None
    made_s = fetch.wall_s.mean * fetch.n
    if not fetch.running_s or fetch.cpu_s is None or made_s <= 0 or context.training_s <= 0:
        return None
    known, line = feeder.loader.worker_threads or _NOT_TOLD, feeder.hot_line()
    # Those of torch's that wait for the others of an operation take no core meanwhile.
    at_work = max(fetch.cpu_s / fetch.running_s, known.torch)
    waits, busy = (fetch.runnable_s or 0.0) / made_s, made_s / (workers * context.training_s)
    numbers = {"runnable_share": waits, "threads": at_work, "busy_share": min(busy, 1.0)}
    if any(value < _least(context, name) for name, value in numbers.items()):
        return None
    # Those that wait for a core would work beside those that do.
    wanted = at_work * (1 + waits / max(1 - waits, 0.1))
    if ranks_of(feeder) * workers * numbers["busy_share"] * wanted < _CROWDED * cores:
        return None
    who = f"{at_work:.1f} threads are at work"
    advice = (
        "one thread in each worker: OPENBLAS_NUM_THREADS=1, MKL_NUM_THREADS=1 (or "
        "OMP_NUM_THREADS=1, which torch reads too), cv2.setNumThreads(0) in worker_init_fn"
    )
    if known.torch > 1:
        who = f"torch computes with {known.torch} threads"
        at = "" if known.set_at is None else f", in place of {known.set_at}"
        advice = f"one thread in each worker: torch.set_num_threads(1) in worker_init_fn{at}"
    ranks = f" of {ranks_of(feeder)} ranks" if ranks_of(feeder) > 1 else ""
    return unmeasured_finding(
        RULE.id,
        f"{who} in each of {number_of(workers, 'worker')}{ranks}, on {_cores(cores)}: a batch "
        f"waits for a core for {percent(waits)} of its making",
        site=(known.set_at if known.torch > 1 else None) or feeder.loader.site,
        advice=advice,
        evidence={
            LOADER_ID: feeder.loader.id,
            **numbers,
            "workers": workers,
            "cores": cores,
            "torch_threads": known.torch,
        },
        cautions=[_OTHER_ORDER],
        also=[f"most of making a batch is at {place(line)}"] if line is not None else [],
    )


def _too_many(context: RunContext) -> Finding | None:
    threads, cores, part = context.torch.threads, context.cores(), context.share(*COMPUTE_KEYS)
    there = context.threads_of_training()
    if context.is_on_device or threads is None or cores is None or part < _least(context, "share"):
        return None
    # Fractions of a core are a container's quota: a thread for what is left over is no mistake.
    # A core with hyper-threads runs a thread on each of them, though it hardly gains by that.
    if threads <= max(ceil(cores), 1) or there is None or there < threads:
        return None
    best = context.cores("cores_physical") or cores
    number = max(ceil(best), 1)
    return unmeasured_finding(
        RULE.id,
        f"torch computes with {threads} threads on {_cores(best)}: they wait for each other in "
        f"forward, backward and optimizer, {percent(part)} of training",
        site=context.torch.threads_set_at,
        advice=f"torch.set_num_threads({number}), or OMP_NUM_THREADS={number}",
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
    # Graphs that grow have the operators of earlier steps.
    if gain is None or growing_backward.find(context) is not None:
        return None
    number, site = max(round(free), threads + 1), context.torch.threads_set_at
    where = "" if site is None else f" in place of {site}"
    return plain_finding(
        RULE.id,
        f"torch computes with {number_of(threads, 'thread')}, and {_cores(free)} are free: "
        f"forward, backward and optimizer are {percent(part)} of training, operators take "
        f"{span(operator_s)} in the mean",
        # How much of it can be shared out nobody knows: it stands behind what is better known.
        replace(gain, saved_s=gain.saved_s / 2),
        site=site,
        advice=f"torch.set_num_threads({number}) or OMP_NUM_THREADS={number}{where}; "
        "trainprof tune tries it",
        cautions=[_OTHER_ORDER],
        evidence={
            "threads": threads,
            "free_cores": free,
            "computing_share": part,
            "operator_s": operator_s,
            EXPLAINS_S: 0.0,
        },
    )


def _operator_s(context: RunContext) -> float | None:
    """Returns what an operator of the backward pass takes in the mean; None: not known."""
    nodes, backward_s = context.torch.backward_nodes, context.training.get("backward", 0.0)
    # Of several optimizers each may have passes of its own, and one graph alone was gone through.
    if not nodes or not context.backwards or context.torch.optimizers != 1:
        return None
    return backward_s / context.backwards / nodes


def _free_cores(context: RunContext, threads: int) -> float | None:
    """Returns the cores that training may compute on: neither workers' nor other programs'."""
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
            200e-6, "an operator of the backward pass: smaller ones hardly gain"
        ),
        "runnable_share": Threshold(0.3, "of the making of batches, waiting for a core"),
        "threads": Threshold(1.5, "at work in each worker while it makes a batch"),
        "busy_share": Threshold(0.2, "of training, in which its workers make batches"),
    },
    find=find,
    explanation=__doc__,
    order=280,
    by_timing=True,
    traits=RuleTraits(
        keys=["data_wait", "first_batch", *COMPUTE_KEYS],
        gain_if="the cores could share all of it evenly",
        slows_everything=True,
    ),
    explains_unsure_workers=True,
    old_names=("torch_threads", "few_threads", "worker_threads"),
)
