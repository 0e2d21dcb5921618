"""What bounds the throughput of a loader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trainprof.analysis.least_gain import LEAST_GAIN
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
from trainprof.analysis.pipeline_model import Pipeline, simulate
from trainprof.analysis.pipeline_rates import rates_of
from trainprof.analysis.pipeline_scenario import PipelineInputs, Setting, filled

# Below this share of the step nobody would call the loader slow: XProf's "moderately input bound".
BLOCKED_SHARE: Final = 0.05
# Of the fetch, from which on it is said to wait for storage.
READING_SHARE: Final = 0.5
# Of the next limit: cores that have so much more to do are what bounds it.
CROWDED_FROM: Final = 1.1


@dataclass(frozen=True, slots=True)
class Bound:
    """What a step's time goes to, and what it cannot get below.

    Attributes:
        name: What bounds throughput: one of limit_names.py.
        margin: By which share the next limit lies below that of `name`, 0 where it does not.
        wait_cause: What most of the wait goes to: the same names but "compute".
        parts_s: Of a mean step: blocked, receive, sampler, compute; they add up to it.
        limits_s: What a step would take at least, were nothing but this in the way: a worker (or
            storage), the CPU, the main process.
    """

    name: str
    margin: float
    wait_cause: str
    parts_s: dict[str, float]
    limits_s: dict[str, float]


def bound_of(inputs: PipelineInputs, p: Pipeline, parts: dict[str, float]) -> Bound:
    """Names what bounds a loader.

    Args:
        inputs: Where it comes from.
        p: A pass of it, as is most likely.
        parts: Of its mean step: BLOCKED, RECEIVE, SAMPLER, COMPUTE, in s.
    """
    slow_side = _slow_side(inputs, p)
    limits = _limits(p, STORAGE if slow_side == STORAGE else LATENCY)
    is_blocked = parts[BLOCKED] > BLOCKED_SHARE * sum(parts.values())
    in_main = {name: parts[name] for name in (RECEIVE, SAMPLER, COMPUTE)}
    # Kept from the cores, the main process is slow in whatever it does: they bound it, not that.
    is_crowded = limits[CPU] > CROWDED_FROM * _others(limits, CPU)
    limit = slow_side if is_blocked else CPU if is_crowded else MAIN_PROCESS
    others = _others(limits, limit)
    in_wait = {slow_side: parts[BLOCKED], RECEIVE: parts[RECEIVE], SAMPLER: parts[SAMPLER]}
    return Bound(
        name=_largest(in_main) if limit == MAIN_PROCESS else limit,
        margin=max(0.0, 1 - others / limits[limit]) if limits[limit] > 0 else 0.0,
        wait_cause=_largest(in_wait),
        parts_s=parts,
        limits_s=limits,
    )


def _others(limits: dict[str, float], limit: str) -> float:
    return max(s for name, s in limits.items() if name != limit)


def _largest(seconds: dict[str, float]) -> str:
    return max(seconds, key=lambda name: seconds[name])


def _limits(p: Pipeline, of_a_worker: str) -> dict[str, float]:
    """Returns what each resource alone would need for a step."""
    running, fetch = float(p.running_s.mean()), float((p.asleep_s + p.running_s).mean())
    compute, receive = float(p.compute_s.mean()), float(p.receive_s.mean())
    main = compute + receive + p.sampler_s
    latency = (fetch + p.turnaround_s) / p.workers if p.workers else fetch + main
    used = running + compute * p.compute_cores + receive + p.sampler_s
    return {of_a_worker: latency, CPU: used / p.cores, MAIN_PROCESS: main}


def _slow_side(inputs: PipelineInputs, p: Pipeline) -> str:
    """Returns why batches do not come faster."""
    now = _step(p)
    more = replace(p, workers=max(2, 2 * p.workers))
    if _step(more) > (1 - LEAST_GAIN) * now:
        with_cores = replace(more, cores=float("inf"))
        if _step(with_cores) <= (1 - LEAST_GAIN) * now:
            return CPU
    reading = filled(inputs.reading_s, inputs.fetch_s)
    is_read = reading is not None and reading.sum() >= READING_SHARE * inputs.fetch_s.sum()
    return STORAGE if is_read and inputs.read_bytes else LATENCY


def _step(p: Pipeline) -> float:
    """Returns the mean step of a filled pipeline, without the workers' start."""
    flow = simulate(replace(p, spawn_s=0.0, boot_s=0.0))
    setting = Setting(p.workers, p.prefetch, p.is_in_order)
    return rates_of(setting, [flow.wait_s], [flow.step_s])[0].step_s
