"""What keeps a loader's batches from coming faster, and what to try first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trainprof.analysis.facts import known, number_at
from trainprof.analysis.finding import LOADER_ID
from trainprof.analysis.limit_names import (
    BLOCKED,
    COMPUTE,
    CPU,
    LATENCY,
    MAIN_PROCESS,
    RECEIVE,
    SAMPLER,
    STORAGE,
)
from trainprof.analysis.loader_figures import Fetch, Loader, LoaderBound
from trainprof.analysis.loader_troubles import unusual_samples
from trainprof.analysis.summary import RunSummary
from trainprof.report.batch_time import making_parts, named, receiving, was_read
from trainprof.report.loader_warnings import sample_name
from trainprof.report.units import NOT_MEASURED, byte_count, seconds

# From here on workers are said to sleep: more of them cost little of the CPU.
ASLEEP_FROM_SHARE: Final = 0.5
# Of a limit: one that is no lower gains too little to be told.
WORTHWHILE_SHARE: Final = 0.9
# Of a typical sample: from here on one is slow.
SLOW_FROM_TIMES: Final = 10.0
# Of the making of all batches: what slow samples take beyond it is then worth naming first.
SLOW_FROM_SHARE: Final = 0.1
# Of a step: below, a loader is not said to add to it.
_ADDS_FROM_SHARE: Final = 0.05

# The model's names in plain words.
NAMES: Final = {
    LATENCY: "making batches",
    CPU: "the CPU's cores",
    STORAGE: "reading from disk",
    RECEIVE: "receiving batches",
    SAMPLER: "drawing indices",
    COMPUTE: "computing",
    MAIN_PROCESS: "the training process",
    BLOCKED: "waiting for batches",
}
_CHEAPER: Final = "cheaper samples: trainprof lines SCRIPT shows which of their lines cost"

UNKNOWN: Final = (
    "not known (the pipeline model does not apply: too few batches, or another pace than its own)"
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What bounds a loader, and what to try; "" where there is nothing to say."""

    limit: str = ""
    next: str = ""


def advice(loader: Loader, summary: RunSummary) -> Advice:
    """Returns what bounds a loader, as far as the pipeline model tells, and what to try.

    Where something was found of it that goes first: one page gives one piece of advice.
    """
    told = _by_the_model(loader, summary)
    found = (one for one in summary.findings if one.evidence.get(LOADER_ID) == loader.id)
    first = next(found, None)
    return replace(told, next=first.advice) if first is not None and told.next else told


def _by_the_model(loader: Loader, summary: RunSummary) -> Advice:
    bound, fetch = loader.bound, loader.fetch
    if bound is None:
        return Advice()
    if bound.by == LATENCY:
        return _on_latency(loader, bound)
    if bound.by == CPU:
        return _on_cpu(summary)
    if bound.by == STORAGE and fetch is not None and was_read(fetch):
        return _on_storage(fetch)
    if bound.by == RECEIVE:
        return _on_receiving(loader, bound)
    if bound.by == SAMPLER:
        return _on_sampling(bound)
    if bound.by == COMPUTE:
        return _on_computing(loader, bound)
    return Advice()


def basis(bound: LoaderBound, *, has_workers: bool) -> str:
    """Returns what the limit rests on, so that one can judge it.

    Without workers one process does all in turn: nothing is the limit alone.
    """
    if not has_workers:
        step, measured = seconds(bound.step_s), seconds(bound.measured_step_s)
        return f"by the model a batch takes {step}, measured {measured}"
    each = (f"{NAMES.get(name, name)} {seconds(s)}" for name, s in bound.limits_s.items())
    return (
        f"were one thing alone the limit, a batch would take: {', '.join(each)}; with all of them "
        f"{seconds(bound.step_s)}, measured {seconds(bound.measured_step_s)}"
    )


def _on_latency(loader: Loader, bound: LoaderBound) -> Advice:
    if not loader.num_workers:
        # Whether workers would help is a finding's to say: handing batches over costs, too.
        return Advice("batches are made between the steps, by the training process itself")
    pace, of_cpu = bound.limits_s.get(LATENCY), bound.limits_s.get(CPU)
    give = "1 worker gives" if loader.num_workers == 1 else f"{loader.num_workers} workers give"
    limit = f"{give} a batch per {seconds(pace)}"
    if MAIN_PROCESS in bound.limits_s:
        limit += f", training takes one per {seconds(bound.limits_s[MAIN_PROCESS])}"
    if _slow_samples_hold_up(loader, bound):
        slowest = unusual_samples(loader.fetch)[0] if loader.fetch else {}
        return Advice(
            f"{limit}; a few slow samples hold up the batches behind them",
            f"the slowest sample, {sample_name(slowest)}, and those like it",
        )
    if pace is None or of_cpu is None or not of_cpu <= WORTHWHILE_SHARE * pace:
        return Advice(limit, _CHEAPER)
    asleep = named(making_parts(loader.fetch), "asleep") if loader.fetch else None
    sleeps = asleep is not None and asleep.share >= ASLEEP_FROM_SHARE
    why = "they mostly sleep" if sleeps else f"the cores have room for one per {seconds(of_cpu)}"
    return Advice(limit, f"more workers: {why}")


def _slow_samples_hold_up(loader: Loader, bound: LoaderBound) -> bool:
    """Whether the workers would keep up, were their slowest samples as the others are."""
    fetch, goal = loader.fetch, bound.limits_s.get(MAIN_PROCESS)
    if fetch is None or goal is None or fetch.wall_s is None or not fetch.typical_sample_s:
        return False
    typical_s = fetch.typical_sample_s
    slow = [known(sample.get("seconds")) or 0.0 for sample in unusual_samples(fetch)]
    excess_s = sum(s - typical_s for s in slow if s >= SLOW_FROM_TIMES * typical_s)
    usual_s = (fetch.wall_s.mean - excess_s / max(fetch.n, 1)) / (loader.num_workers or 1)
    is_much = excess_s >= SLOW_FROM_SHARE * fetch.wall_s.mean * fetch.n
    return is_much and usual_s <= goal


def _on_cpu(summary: RunSummary) -> Advice:
    cores = number_at(summary.system.cpu if summary.system else None, "cores_usable")
    which = "the cores are" if cores is None else f"all {cores:.3g} cores are"
    return Advice(f"{which} at work, more workers would not help", _CHEAPER)


def _on_storage(fetch: Fetch) -> Advice:
    size = byte_count(fetch.read_bytes / fetch.n if fetch.read_bytes and fetch.n > 0 else None)
    return Advice(
        f"reading from disk, {size} a batch",
        "a faster disk, fewer and larger files, or the data kept in memory",
    )


def _on_receiving(loader: Loader, bound: LoaderBound) -> Advice:
    took = seconds(bound.parts_s.get(RECEIVE))
    size = byte_count(loader.fetch.batch_bytes if loader.fetch else None)
    of_size = "" if size == NOT_MEASURED else f" of {size}"
    worked_s, waited_s = receiving(loader)
    if worked_s is not None and waited_s is not None and waited_s > worked_s:
        return Advice(
            f"taking a batch{of_size} over, {took} each, mostly waiting for its worker, which is "
            "asked for each tensor",
            "few large tensors, not many small ones; a worker that computes answers late",
        )
    return Advice(
        f"taking a batch{of_size} over from its worker, {took} each",
        "few large tensors, not many small ones or Python objects; more workers would not help",
    )


def _on_sampling(bound: LoaderBound) -> Advice:
    took = seconds(bound.parts_s.get(SAMPLER))
    return Advice(
        f"drawing the indices of a batch, {took} each, in the training process",
        "a cheaper sampler; workers do not draw",
    )


def _on_computing(loader: Loader, bound: LoaderBound) -> Advice:
    parts = {name: s for name, s in bound.parts_s.items() if name != COMPUTE and s > 0}
    computing = bound.parts_s.get(COMPUTE)
    added = sum(parts.values())
    if not loader.num_workers:
        return Advice(f"computing; making a batch adds {seconds(added)} of {seconds(bound.step_s)}")
    told = f"computing, {seconds(computing)} a batch"
    if not parts or computing is None or added < _ADDS_FROM_SHARE * (computing + added):
        return Advice(f"{told}; the loader keeps up once its buffer is filled")
    most = max(parts, key=lambda name: parts[name])
    return Advice(f"{told}; loading adds {seconds(added)} ({NAMES.get(most, most)})")
