"""What keeps a loader's batches from coming faster."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.facts import number_at
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
from trainprof.analysis.loader_figures import Loader, LoaderBound
from trainprof.analysis.summary import RunSummary
from trainprof.report.batch_time import was_read
from trainprof.report.units import counted, seconds

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
UNKNOWN: Final = (
    "not known (the pipeline model does not apply: too few batches, or another pace than its own)"
)


def limit_words(loader: Loader, summary: RunSummary) -> str:
    """Returns what bounds a loader, as far as the pipeline model tells; "" where it does not."""
    bound = loader.bound
    if bound is None or bound.by not in NAMES:
        return ""
    took = seconds(bound.parts_s.get(bound.by))
    if bound.by == LATENCY:
        return _on_latency(loader, bound)
    if bound.by == CPU:
        cores = number_at(summary.system.cpu if summary.system else None, "cores_usable")
        return "the cores are at work" if cores is None else f"all {cores:.3g} cores are at work"
    if bound.by == STORAGE:
        return NAMES[STORAGE] if loader.fetch is not None and was_read(loader.fetch) else ""
    if bound.by == RECEIVE:
        return f"taking a batch over from its worker, {took} each"
    if bound.by == SAMPLER:
        return f"drawing the indices of a batch, {took} each, in the training process"
    added = sum(s for name, s in bound.parts_s.items() if name != bound.by and s > 0)
    return f"{NAMES[bound.by]}, {took} a batch; loading adds {seconds(added)}"


def next_words(loader: Loader, summary: RunSummary) -> str:
    """Returns what a finding advises to do about a loader; "" where there is none."""
    found = (one for one in summary.findings if one.evidence.get(LOADER_ID) == loader.id)
    first = next(found, None)
    return "" if first is None else first.advice


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


def _on_latency(loader: Loader, bound: LoaderBound) -> str:
    if not loader.num_workers:
        return "batches are made between the steps, by the training process itself"
    give = "gives" if loader.num_workers == 1 else "give"
    pace = seconds(bound.limits_s.get(LATENCY))
    limit = f"{counted(loader.num_workers, 'worker')} {give} a batch per {pace}"
    if MAIN_PROCESS in bound.limits_s:
        limit += f", training takes one per {seconds(bound.limits_s[MAIN_PROCESS])}"
    return limit
