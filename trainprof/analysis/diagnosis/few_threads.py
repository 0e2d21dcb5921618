"""torch computes with fewer threads than there are cores, and the others have nothing to do.

What it means: torch splits a large operation among its threads. With one of them, on a machine with
more cores, the others stand still while the model computes. It comes of OMP_NUM_THREADS=1 or
torch.set_num_threads(1), left from another machine, or meant for loader workers alone.

How it is measured: torch.get_num_threads() at the first step, against the cores that the run may
use (the hyper-threads of one count once: torch itself has a thread for each core), less what
workers and other programs keep busy. And by how long an operator of the backward pass takes in the
mean (its time, shared out among four for each parameter): those under 0.2 ms are too small to be
split. The line that is named called torch.set_num_threads, or is the only one of the script's files
that sets one of those variables, where it did not come with the environment.

When it is wrong: where memory is what an operation waits for, or where a neighbour is meant to have
the cores: then more threads give little. What is said is what they would give if all that is
computed could be shared out; the finding is ranked by half of it. In distributed training, whose
launcher shares the cores out itself, nothing is said, nor with several optimizers, nor where a
batch system has allotted no more cores than that. Older runs do not tell cores from hyper-threads:
where there are twice as many of those as threads, nothing is said either.

What to do: take the setting out, or give it the number of cores; trainprof tune tries it. Sums are
then added up in another order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.shared_cpu import shared_cpu
from trainprof.analysis.torch_cores import cores_for_threads
from trainprof.analysis.verdict import COMPUTE_KEYS
from trainprof.analysis.verdict_level import percent

ID: Final = "few_threads"
KEYS: Final[tuple[str, ...]] = COMPUTE_KEYS
THRESHOLDS: Final = {
    "share": Threshold(0.5, "of training, computing on the CPU"),
    "operator_s": Threshold(200e-6, "an operator of the backward pass: smaller ones hardly gain"),
}
# Of the cores that torch has threads for: with fewer than that free, nothing is sure.
_FREE_TIMES: Final = 1.5


def find(case: Case) -> Finding | None:
    threads, part = case.torch.threads, case.share(*KEYS)
    if case.is_on_device or threads is None or (case.summary.run.world_size or 1) > 1:
        return None
    if case.summary.ranks or case.torch.is_data_parallel:
        return None
    cores = cores_for_threads(case.summary.system.cpu if case.summary.system else None, threads)
    if cores is None:
        return None
    operator_s, free = _operator_s(case), _free_of(cores, case)
    if operator_s is None or free is None or free < _FREE_TIMES * threads:
        return None
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    if operator_s < case.threshold(ID, "operator_s", THRESHOLDS["operator_s"].value):
        return None
    gain = of_python(case, (1 - threads / free) * part * case.training_s)
    if gain is None:
        return None
    number = max(round(free), threads + 1)
    one = "1 thread" if threads == 1 else f"{threads} threads"
    return plain_finding(
        ID,
        f"torch computes with {one}, and {cores:.3g} cores are there: forward, backward and "
        f"optimizer are {percent(part)} of training, operators take {span(operator_s)} in the mean",
        # How much of it can be shared out nobody knows: it stands behind what is better known.
        replace(gain, saved_s=gain.saved_s / 2),
        site=case.torch.threads_set_at,
        advice=f"{_how(case, number)}; trainprof tune tries it",
        cautions=["sums are added up in another order: losses may differ in the last digits"],
        evidence={
            "threads": threads,
            "cores": cores,
            "free_cores": free,
            "computing_share": part,
            "operator_s": operator_s,
        },
    )


def _how(case: Case, number: int) -> str:
    site = case.torch.threads_set_at
    if site is not None:
        return f"{number} threads at {site}, or take that line out"
    return (
        f"torch.set_num_threads({number}) or OMP_NUM_THREADS={number}, or take out what sets fewer"
    )


def _operator_s(case: Case) -> float | None:
    """Returns what an operator of the backward pass takes in the mean; None: not known."""
    nodes, backward_s = case.torch.backward_nodes, case.training.get("backward", 0.0)
    # Of several optimizers each may have passes of its own, and one graph alone was gone through.
    if not nodes or not case.backwards or case.torch.optimizers != 1:
        return None
    return backward_s / case.backwards / nodes


def _free_of(cores: float, case: Case) -> float | None:
    """Returns the cores that training may compute on: neither workers' nor other programs'."""
    system = case.summary.system
    shared = None if system is None else shared_cpu(system.cpu)
    if shared is None:
        return None
    cores = min(cores, float(case.torch.cores_allotted or cores))
    working_s = sum(
        fed.loader.fetch.running_s or 0.0
        for fed in (*case.feeding, *case.evaluating)
        if fed.loader.num_workers and fed.loader.fetch is not None
    )
    workers = working_s / case.training_s if case.training_s > 0 else 0.0
    return max(cores - workers - shared.others_share * shared.cores, 0.0)
