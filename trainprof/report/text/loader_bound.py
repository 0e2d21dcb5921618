"""What keeps a loader's batches from coming faster, in words. What to do about it findings say."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.summary.bounds import (
    BLOCKED,
    COMPUTE,
    CPU,
    LATENCY,
    MAIN_PROCESS,
    RECEIVE,
    SAMPLER,
    STORAGE,
)
from trainprof.analysis.summary.loader import Loader, LoaderBound
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.batch_time import was_read
from trainprof.report.text.units import NOT_MEASURED, byte_count, seconds

# Of a step: below, a loader is not said to add to it.
_ADDS_FROM_SHARE: Final = 0.05
_PARTS: Final = {
    RECEIVE: "receiving batches",
    SAMPLER: "drawing indices",
    BLOCKED: "waiting for batches",
}

UNKNOWN: Final = (
    "not known (the pipeline model does not apply: too few batches, or another pace than its own)"
)


def limit_words(loader: Loader, summary: RunSummary) -> str:
    """Returns what bounds a loader, as far as the pipeline model tells; "" where it does not."""
    bound, fetch = loader.bound, loader.fetch
    if bound is None:
        return ""
    if bound.by == LATENCY:
        return _of_latency(loader, bound)
    if bound.by == CPU:
        cores = number_at(summary.system.cpu if summary.system else None, "cores_usable")
        which = "the cores are" if cores is None else f"all {cores:.3g} cores are"
        return f"{which} at work"
    if bound.by == STORAGE and fetch is not None and was_read(fetch):
        each = fetch.read_bytes / fetch.n if fetch.read_bytes and fetch.n > 0 else None
        return f"reading from disk, {byte_count(each)} a batch"
    if bound.by == RECEIVE:
        size = byte_count(fetch.batch_bytes if fetch else None)
        of_size = "" if size == NOT_MEASURED else f" of {size}"
        took = seconds(bound.parts_s.get(RECEIVE))
        return f"taking a batch{of_size} over from its worker, {took} each"
    if bound.by == SAMPLER:
        took = seconds(bound.parts_s.get(SAMPLER))
        return f"drawing the indices of a batch, {took} each, in the training process"
    return _of_computing(loader, bound) if bound.by == COMPUTE else ""


def _of_latency(loader: Loader, bound: LoaderBound) -> str:
    if not loader.num_workers:
        return "batches are made between the steps, by the training process itself"
    give = "1 worker gives" if loader.num_workers == 1 else f"{loader.num_workers} workers give"
    limit = f"{give} a batch per {seconds(bound.limits_s.get(LATENCY))}"
    if MAIN_PROCESS in bound.limits_s:
        limit += f", training takes one per {seconds(bound.limits_s[MAIN_PROCESS])}"
    return limit


def _of_computing(loader: Loader, bound: LoaderBound) -> str:
    parts = {name: s for name, s in bound.parts_s.items() if name != COMPUTE and s > 0}
    computing, added = bound.parts_s.get(COMPUTE), sum(parts.values())
    if not loader.num_workers:
        return f"computing; making a batch adds {seconds(added)} of {seconds(bound.step_s)}"
    told = f"computing, {seconds(computing)} a batch"
    if not parts or computing is None or added < _ADDS_FROM_SHARE * (computing + added):
        return f"{told}; the loader keeps up once its buffer is filled"
    most = max(parts, key=lambda name: parts[name])
    return f"{told}; loading adds {seconds(added)} ({_PARTS.get(most, most)})"
