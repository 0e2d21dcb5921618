"""What bounds a loader's throughput, and what its steps would take with other settings: intervals.

The recorded fetches and computations are replayed through torch's pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from trainprof.analysis.pipeline.model import USUAL_PREFETCH, Float64, Flow, Pipeline, simulate
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.loader import (
    BLOCKED,
    COMPUTE,
    CPU,
    LATENCY,
    MAIN_PROCESS,
    RECEIVE,
    SAMPLER,
    STORAGE,
)

Scenario: TypeAlias = Literal["low", "mid", "high"]

# What the model leaves out (wake-ups, the pipe, the feeder thread), of the step:
# benchmarks/pipeline_model.py prints what it is.
MODEL_ERROR: Final = 0.05
_HIGHEST_ERROR: Final = 0.25
# Work takes longer while all cores are busy: caches, hyper-threads, clock rates.
BUSY_CORES_SLOWDOWN: Final = 1.25
_MAYBE: Final = {"low": 0.0, "mid": 0.5, "high": 1.0}
# Workers collate into new pages of shared memory: 0.3 to 1.6 ns were measured
# (benchmarks/pipeline_model.py --only large, virtual machine).
_SHARED_MEMORY_S_PER_BYTE: Final = {"low": 0.0, "mid": 0.7e-9, "high": 2e-9}
# From this number of busy cores on, computing is the work of threads that wait for one another:
# two busy workers on two cores slowed it by a factor of 3.6.
_SEVERAL_THREADS: Final = 1.5
# Of fewer measured fetches that stand for others a single one would say too much.
_LEAST_STAND_INS: Final = 8
# Below this share of the step a loader is not slow: XProf's "moderately input bound".
BLOCKED_SHARE: Final = 0.05
# Of the fetch, from which on storage is its cause.
READING_SHARE: Final = 0.5
# Of the next limit, from which on the cores are the bound.
CROWDED_FROM: Final = 1.1


@dataclass(frozen=True, slots=True)
class Interval:
    """What something may be: at best, most likely, at worst."""

    low: float
    mid: float
    high: float

    @staticmethod
    def exactly(value: float) -> Interval:
        return Interval(value, value, value)

    def at(self, scenario: Scenario) -> float:
        value: float = getattr(self, scenario)
        return value

    def ends(self) -> tuple[float, float, float]:
        return self.low, self.mid, self.high


@dataclass(frozen=True, slots=True)
class Setting:
    """A DataLoader's arguments that matter here."""

    workers: int
    prefetch: int = USUAL_PREFETCH
    is_persistent: bool = False


@dataclass(frozen=True, slots=True)
class PipelineInputs:
    """The recording of one loader; arrays of shape (n,), in s, epoch after epoch.

    Attributes:
        batches: Per epoch.
        left: Batches that an epoch still had when the loop left it, by `break` say.
        fetch_s: Of each batch, in the sampler's order; `running_s`, `runnable_s` and `reading_s`
            are parts of it, `cpu_s` is of all threads: NaN where not measured.
        compute_s, wait_s: Behind the k-th batch, and inside the `next` that gave it.
        workers_busy: Mean number of workers that fetched during the k-th computation.
        receive_s, sampler_s, turnaround_s, spawn_s, boot_s, compute_cores, others: As in
            `Pipeline`; without workers `sampler_s` is all of `next` but the fetch.
        reset_s, end_s: Resuming persistent workers, and shutting down others.
        cores: Usable ones; of several ranks on a host, the part of each, one at least.
        ranks: That share the host's cores, this one among them.
        batch_bytes: Of the tensors and arrays of a mean batch.
        fetch_slowdown, main_slowdown: By what share the running parts of fetches and of the main
            process took longer because cores were shared.
        shards: Of a stream that gives each to one worker; None of other data.
    """

    setting: Setting
    batches: int
    fetch_s: Float64
    compute_s: Float64
    cores: float
    left: int = 0
    ranks: int = 1
    ranks_per_core: float = 1.0
    running_s: Float64 | None = None
    runnable_s: Float64 | None = None
    cpu_s: Float64 | None = None
    reading_s: Float64 | None = None
    wait_s: Float64 | None = None
    workers_busy: Float64 | None = None
    compute_cores: Interval = Interval(1.0, 1.0, 1.0)
    receive_s: Interval = Interval(0.0, 0.0, 0.0)
    sampler_s: float = 0.0
    turnaround_s: float = 0.0
    spawn_s: Interval = Interval(0.0, 0.0, 0.0)
    boot_s: Interval = Interval(0.0, 0.0, 0.0)
    reset_s: float = 0.0
    end_s: float = 0.0
    read_bytes: int | None = None
    batch_bytes: float | None = None
    others: Interval = Interval(0.0, 0.0, 0.0)
    fetch_slowdown: float = 0.0
    main_slowdown: float = 0.0
    shards: int | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Means over steps of filled pipelines, in s."""

    step_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """What limits a loader's throughput, and the lower limits of a step's time.

    Attributes:
        name: What bounds throughput.
        wait_cause: The largest part of the wait: the same names but COMPUTE.
        limits_s: The shortest step that a worker (or storage), the CPU, or the main process would
            allow by itself.
    """

    name: str
    wait_cause: str
    limits_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A setting played through; in s.

    Attributes:
        step_s, wait_s: Of a batch once the pipeline is filled, over whole cycles of the workers.
        first_batch_s: The first `next` of an epoch.
        reset_s: Resuming persistent workers, with what they still fetch of an epoch that was left.
        epoch_s: From creating the iterator to its end; with persistent workers of a later epoch.
        parts_s: Of a mean step: BLOCKED, RECEIVE, SAMPLER, COMPUTE; they add up to it.
        pipeline: The first epoch. It and the parts are the most likely ones.
    """

    setting: Setting
    step_s: Interval
    wait_s: Interval
    first_batch_s: Interval
    reset_s: Interval
    epoch_s: Interval
    parts_s: dict[str, float]
    pipeline: Pipeline = field(compare=False, repr=False)

    def speedup_over(self, step_s: float) -> Interval:
        step = self.step_s
        return Interval(step_s / step.high, step_s / step.mid, step_s / step.low)


def predict(inputs: PipelineInputs, setting: Setting | None = None) -> Prediction:
    """Plays the recorded series through a setting, by default the one it was recorded with."""
    setting = setting or inputs.setting
    mid = _play(inputs, setting, "mid")
    played = (_play(inputs, setting, "low"), mid, _play(inputs, setting, "high"))
    error = min(MODEL_ERROR + _sampling_error(inputs, mid), _HIGHEST_ERROR)
    slack = error * mid.rates.step_s

    def interval(values: list[float], slack_s: float | None = None) -> Interval:
        least, most = min(values), max(values)
        around = (error * least, error * most) if slack_s is None else (slack_s, slack_s)
        return Interval(max(least - around[0], 0.0), values[1], most + around[1])

    return Prediction(
        setting=setting,
        step_s=interval([x.rates.step_s for x in played]),
        wait_s=interval([x.rates.wait_s for x in played], slack),
        first_batch_s=interval([x.first_batch_s for x in played], slack),
        reset_s=interval([mid.reset_s] * 3),
        epoch_s=interval([x.epoch_s for x in played]),
        parts_s=mid.parts_s,
        pipeline=mid.pipeline,
    )


def likely_step_s(inputs: PipelineInputs, setting: Setting) -> float:
    """Returns the most likely step of a setting; as `predict`, in a third of its time."""
    return _play(inputs, setting, "mid").rates.step_s


@dataclass(frozen=True, slots=True)
class _Played:
    """The epochs of a setting, of which `pipeline` is the first."""

    pipeline: Pipeline
    rates: Rates
    parts_s: dict[str, float]
    first_batch_s: float
    reset_s: float
    epoch_s: float


def _play(inputs: PipelineInputs, setting: Setting, scenario: Scenario) -> _Played:
    pipelines = pipelines_of(inputs, setting, scenario)
    flows = [simulate(pipeline) for pipeline in pipelines]
    is_resumed = setting.is_persistent and setting.workers > 0
    reset_s = _reset_s(inputs, setting) if is_resumed else 0.0
    borders_s = reset_s if is_resumed else inputs.end_s if setting.workers else 0.0
    return _Played(
        pipeline=pipelines[0],
        rates=rates_of(setting, [x.wait_s for x in flows], [x.step_s for x in flows]),
        parts_s=_parts(setting, flows),
        first_batch_s=float(np.mean([flow.wait_s[0] for flow in flows])),
        reset_s=reset_s,
        epoch_s=sum(flow.ended_s for flow in flows) / len(flows) + borders_s,
    )


def _reset_s(inputs: PipelineInputs, setting: Setting) -> float:
    """Returns what it takes to resume persistent workers.

    If the epoch before was left, they first fetch what it had requested, which is dropped.
    """
    recorded = inputs.setting
    if recorded.is_persistent and recorded.workers:
        return inputs.reset_s
    asked = min(setting.prefetch * setting.workers, inputs.left)
    prepared_s = float(inputs.fetch_s.mean()) / setting.workers
    return inputs.reset_s + asked * max(prepared_s, inputs.receive_s.mid)


def _sampling_error(inputs: PipelineInputs, played: _Played) -> float:
    """Two standard errors of the fetches' and computations' means, as a share of the step."""
    if played.rates.step_s <= 0 or len(inputs.fetch_s) < 2:
        return 0.0
    spreads = (inputs.fetch_s.std() / max(played.pipeline.workers, 1), inputs.compute_s.std())
    return float(2 * np.hypot(*spreads) / np.sqrt(len(inputs.fetch_s)) / played.rates.step_s)


# Means over steps of a filled pipeline


def rates_of(setting: Setting, waits: list[Float64], steps: list[Float64]) -> Rates:
    window = _filled(setting, len(waits[0]))
    return Rates(step_s=_mean_of(steps, window), wait_s=_mean_of(waits, window))


def measured_rates(inputs: PipelineInputs) -> Rates | None:
    """Returns what the recording itself shows in the same windows, None without its waits."""
    wait_s = inputs.wait_s
    if wait_s is None:
        return None
    # The rest of an epoch that was cut off was not measured.
    inputs = replace(inputs, batches=min(inputs.batches, len(inputs.fetch_s)))
    waits, computes = _epochs_of(inputs, wait_s), _epochs_of(inputs, inputs.compute_s)
    steps = [wait + compute for wait, compute in zip(waits, computes, strict=True)]
    return rates_of(inputs.setting, waits, steps)


def _filled(setting: Setting, batches: int) -> slice:
    """Returns the steps of a filled pipeline, whole cycles of the workers; all but one if none.

    Both ends of an epoch use prefetched batches: if it is long enough, they are left out.
    """
    cycle = max(setting.workers, 1)
    ahead = setting.prefetch * setting.workers
    first, last = max(ahead, 1), batches - ahead
    cycles = (last - first) // cycle if last - first >= cycle else (batches - first) // cycle
    if cycles > 0:
        return slice(first, first + cycles * cycle)
    return slice(1 if batches > 1 else 0, None)


def _mean_of(parts: list[Float64], window: slice) -> float:
    return float(np.concatenate([part[window] for part in parts]).mean())


def _parts(setting: Setting, flows: list[Flow]) -> dict[str, float]:
    window = _filled(setting, len(flows[0].wait_s))
    step_s, wait_s, blocked_s, receive_s = (
        _mean_of([getattr(flow, name) for flow in flows], window)
        for name in ("step_s", "wait_s", "blocked_s", "receive_s")
    )
    return {
        BLOCKED: blocked_s,
        RECEIVE: receive_s,
        SAMPLER: max(wait_s - blocked_s - receive_s, 0.0),
        COMPUTE: step_s - wait_s,
    }


# The pipelines that a recording may stand for


def pipelines_of(inputs: PipelineInputs, setting: Setting, scenario: Scenario) -> list[Pipeline]:
    """Returns the recorded epochs in another setting, at one end of what is unknown."""
    asleep, running = _fetch_parts(inputs, setting, scenario)
    main_slowdown = 1 + inputs.main_slowdown
    receive = inputs.receive_s.at(scenario) / (main_slowdown if inputs.setting.workers else 1.0)
    compute, starts = inputs.compute_s / main_slowdown, not setting.is_persistent
    if scenario == "high" and inputs.setting.workers == 0 < setting.workers:
        compute = compute * _waiting_for_one_another(inputs, setting)
    whole = Pipeline(
        asleep_s=asleep,
        running_s=running,
        compute_s=compute,
        receive_s=np.full(len(asleep), receive if setting.workers else 0.0),
        compute_cores=min(inputs.compute_cores.at(scenario), inputs.cores),
        sampler_s=inputs.sampler_s / main_slowdown,
        turnaround_s=inputs.turnaround_s,
        workers=setting.workers,
        prefetch=setting.prefetch,
        cores=inputs.cores,
        others=inputs.others.at(scenario),
        spawn_s=inputs.spawn_s.at(scenario) if starts else 0.0,
        boot_s=inputs.boot_s.at(scenario) if starts else 0.0,
    )
    if scenario == "high" and whole.highest_demand + whole.others > whole.cores:
        whole = replace(
            whole, running_s=running * BUSY_CORES_SLOWDOWN, compute_s=compute * BUSY_CORES_SLOWDOWN
        )
    names = ("asleep_s", "running_s", "compute_s", "receive_s")
    cut = zip(*(_epochs_of(inputs, getattr(whole, name)) for name in names), strict=True)
    return [replace(whole, **dict(zip(names, series, strict=True))) for series in cut]


def _epochs_of(inputs: PipelineInputs, series: Float64) -> list[Float64]:
    """Cuts a series into epochs.

    One that was cut off is filled up with what followed its first batch, which pays what comes
    once.
    """
    batches = inputs.batches
    if len(series) < batches:
        followed = series[1:] if len(series) > 1 else series
        return [np.concatenate([series[:1], np.resize(followed, batches - 1)])]
    return [series[k : k + batches] for k in range(0, len(series) - batches + 1, batches)]


def _waiting_for_one_another(inputs: PipelineInputs, setting: Setting) -> float:
    """Returns the factor by which threads that wait for one another may slow computing."""
    threads, prepared_s = inputs.compute_cores.mid, float(inputs.fetch_s.sum())
    if threads < _SEVERAL_THREADS or prepared_s <= 0:
        return 1.0
    running = float(running_of(inputs, "mid").sum()) / prepared_s
    return max((threads + setting.workers * running) / inputs.cores, 1.0)


def _fetch_parts(
    inputs: PipelineInputs, setting: Setting, scenario: Scenario
) -> tuple[Float64, Float64]:
    """Splits the fetches into time asleep and time running on idle cores."""
    wall, running = inputs.fetch_s, running_of(inputs, scenario)
    asleep = np.maximum(wall - running * (1 + inputs.fetch_slowdown), 0.0)
    if inputs.setting.workers == 0 < setting.workers:
        cpu = filled(inputs.cpu_s, inputs.fetch_s)
        if cpu is not None:
            # torch's threads worked on it; a worker has one, unless they are a decoder's.
            running = running + np.maximum(cpu - asleep - running, 0.0) * _MAYBE[scenario]
        running = running + (inputs.batch_bytes or 0.0) * _SHARED_MEMORY_S_PER_BYTE[scenario]
    return asleep, running


def running_of(inputs: PipelineInputs, scenario: Scenario) -> Float64:
    running = filled(inputs.running_s, inputs.fetch_s)
    if running is None:
        return inputs.fetch_s * _MAYBE[scenario]
    return np.minimum(running, inputs.fetch_s)


def filled(
    part: Float64 | None, whole: Float64, stands_for: Float64 | None = None
) -> Float64 | None:
    """Gives the fetches that were not measured the share that those have which stand for them.

    Args:
        part: Of each fetch, NaN where that was not measured; None where nowhere.
        stands_for: How many fetches each measured one stands for; None: for itself.
    """
    if part is None:
        return None
    is_measured = ~np.isnan(part)
    weight = np.ones_like(whole) if stands_for is None else stands_for
    stand_in = is_measured & (weight > 1)
    if stand_in.sum() < _LEAST_STAND_INS or not whole[stand_in].sum() > 0:
        stand_in = is_measured
    total = (whole * weight)[stand_in].sum()
    if total <= 0:
        return None
    return np.where(is_measured, part, whole * ((part * weight)[stand_in].sum() / total))


# What bounds the throughput


def bound_of(inputs: PipelineInputs, p: Pipeline, parts: dict[str, float]) -> Bound:
    """Names what bounds a loader, by its most likely epoch and the `parts` of its mean step.

    It plays two or three more settings.
    """
    slow_side = _slow_side(inputs, p)
    limits = _limits(p, STORAGE if slow_side == STORAGE else LATENCY)
    is_blocked = parts[BLOCKED] > BLOCKED_SHARE * sum(parts.values())
    # Short of cores, the main process is slow in all that it does: then they are the bound.
    is_crowded = limits[CPU] > CROWDED_FROM * max(s for k, s in limits.items() if k != CPU)
    in_main = {name: parts[name] for name in (RECEIVE, SAMPLER, COMPUTE)}
    in_wait = {slow_side: parts[BLOCKED], RECEIVE: parts[RECEIVE], SAMPLER: parts[SAMPLER]}
    return Bound(
        name=slow_side if is_blocked else CPU if is_crowded else _largest(in_main),
        wait_cause=_largest(in_wait),
        limits_s=limits,
    )


def _largest(seconds: dict[str, float]) -> str:
    return max(seconds, key=lambda name: seconds[name])


def _limits(p: Pipeline, worker_limit: str) -> dict[str, float]:
    fetch = float((p.asleep_s + p.running_s).mean())
    compute, receive = float(p.compute_s.mean()), float(p.receive_s.mean())
    main = compute + receive + p.sampler_s
    latency = (fetch + p.turnaround_s) / p.workers if p.workers else fetch + main
    return {worker_limit: latency, CPU: cores_limit_s(p), MAIN_PROCESS: main}


def cores_limit_s(p: Pipeline) -> float:
    """Returns the shortest step that the cores would allow by themselves."""
    used = p.running_s + p.compute_s * p.compute_cores + p.receive_s + p.sampler_s
    return float(used.mean()) / p.cores


def _slow_side(inputs: PipelineInputs, p: Pipeline) -> str:
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
    return rates_of(Setting(p.workers, p.prefetch), [flow.wait_s], [flow.step_s]).step_s
