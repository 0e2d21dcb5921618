"""What a recording tells about a loader, and the pipelines that it may stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from trainprof.analysis.pipeline_model import USUAL_PREFETCH, Float64, Pipeline

Scenario: TypeAlias = Literal["low", "mid", "high"]

# A longer series tells no more about means.
MAX_BATCHES_PLAYED: Final = 4_000
_MAYBE: Final = {"low": 0.0, "mid": 0.5, "high": 1.0}
# A worker collates into shared memory, or copies there, whose pages are new; the main process into
# its own. 0.3 to 1.6 ns were seen (benchmarks/pipeline_model.py --only large, virtual machine).
_SHARED_MEMORY_S_PER_BYTE: Final = {"low": 0.0, "mid": 0.7e-9, "high": 2e-9}
# The main process maps them, and gives them back.
_MAPPING_S_PER_BYTE: Final = {"low": 0.0, "mid": 0.1e-9, "high": 0.35e-9}
# Without workers neither side has a thread any more that packs and sends beside it, and waits for
# the interpreter: by so much a batch, or this share of it, both were seen to get shorter.
_SENDING_S: Final = {"low": 0.3e-3, "mid": 0.15e-3, "high": 0.0}
_SENDING_SHARE: Final = 0.6
# Cores that computing keeps busy, from which on it is the work of threads that wait for one
# another. Beside two busy workers on two cores such computing was seen to take 3.6 times as long.
_SEVERAL_THREADS: Final = 1.5


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


@dataclass(frozen=True, slots=True)
class Setting:
    """A DataLoader's arguments that matter here.

    Attributes:
        prefetch: `prefetch_factor`, batches ahead per worker.
        is_in_order: `in_order`.
        is_persistent: `persistent_workers`.
    """

    workers: int
    prefetch: int = USUAL_PREFETCH
    is_in_order: bool = True
    is_persistent: bool = False


@dataclass(frozen=True, slots=True)
class PipelineInputs:
    """What a recording tells about one loader; arrays of shape (n,), in s, pass after pass.

    Attributes:
        setting: It was recorded with.
        batches: Per pass.
        left: That a pass would go on with, were it not left after those, by `break` say.
        fetch_s: Wall time of the making of each batch, in the sampler's order.
        running_s: Part of it on a core; NaN where not measured, None where nowhere.
        runnable_s: Part of it spent waiting for a core; likewise.
        cpu_s: CPU time of all threads of the process meanwhile; likewise.
        reading_s: Part of it spent waiting for storage; likewise.
        compute_s: From being handed the k-th batch to asking for the next.
        wait_s: Inside the `next` that gave the k-th batch; None where not recorded.
        workers_busy: How many workers made batches while the k-th was computed with, as a mean;
            None where not recorded, and without any.
        compute_cores: Cores that the main process keeps busy while it computes.
        receive_s: Taking a batch over in the main process.
        handover_s: What that takes longer where its worker is busy with another batch. Not in order
            where the recording tells only both together: the more this is, the less `receive_s`.
        delivery_s: From the end of a fetch until a waiting main process has the batch, receiving
            included.
        sampler_s: Drawing the indices of one batch; without workers all of `next` but the fetch.
        turnaround_s: From having an index and being free until a worker begins the fetch.
        spawn_s: Starting one worker, in the main process.
        boot_s: From its start until a worker can take an index.
        reset_s: Resuming persistent workers for another pass.
        end_s: The end of a pass: workers shut down.
        cores: That can be used; of several ranks on a host, what each has of them, one at least.
        ranks: That share the host's cores, this one among them: what one is given, all are.
        ranks_per_core: That each of `cores` is for; over 1 where there are more ranks than cores.
        read_bytes: Of all fetches, from storage; None where not observed.
        batch_bytes: Of the tensors and arrays of a mean batch; None where not observed.
        others: Threads of other processes that wanted a core all the time.
        taken_cores: Of `cores`, those that other programs kept busy, as sampled.
        fetch_slowdown: What the recorded fetches took longer because cores were shared, as a share
            of their running parts.
        main_slowdown: The same of what the main process does, as a share of what it would take.
        shards: Of a stream that gives them to workers as a whole; None of other data.
        guessed: Names of intervals above that stand for what the recording does not tell.
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
    handover_s: Interval = Interval(0.0, 0.0, 0.0)
    delivery_s: float = 0.0
    sampler_s: float = 0.0
    turnaround_s: float = 0.0
    spawn_s: Interval = Interval(0.0, 0.0, 0.0)
    boot_s: Interval = Interval(0.0, 0.0, 0.0)
    reset_s: float = 0.0
    end_s: float = 0.0
    read_bytes: int | None = None
    batch_bytes: float | None = None
    others: Interval = Interval(0.0, 0.0, 0.0)
    taken_cores: float = 0.0
    fetch_slowdown: float = 0.0
    main_slowdown: float = 0.0
    shards: int | None = None
    guessed: tuple[str, ...] = ()


def pipelines_of(
    inputs: PipelineInputs, setting: Setting, scenario: Scenario, slowdown: float = 1.0
) -> Iterator[Pipeline]:
    """Yields the recorded passes in another setting.

    Args:
        inputs: Of the recording.
        setting: To play them in.
        scenario: Which end of what is not known.
        slowdown: Of all that runs, in workers and main process.
    """
    asleep, running = _fetch_parts(inputs, setting, scenario)
    main_slowdown = 1 + inputs.main_slowdown
    receive, handover = inputs.receive_s.at(scenario), inputs.handover_s.at(scenario)
    if inputs.setting.workers == 0 < setting.workers:
        receive += (inputs.batch_bytes or 0.0) * _MAPPING_S_PER_BYTE[scenario]
    own_receive = receive / (main_slowdown if inputs.setting.workers else 1.0)
    others = inputs.others.at(scenario) + _workers_of_other_ranks(inputs, setting, asleep, running)
    starts = not setting.is_persistent
    computes = passes_of(inputs, inputs.compute_s)
    if setting.workers == 0 < inputs.setting.workers:
        running = without_sending(running, scenario)
        computes = [without_sending(one, scenario) for one in computes]
    if scenario == "high" and inputs.setting.workers == 0 < setting.workers:
        times = _waiting_for_one_another(inputs, setting)
        computes = [one * times for one in computes]
    whole = zip(passes_of(inputs, asleep), passes_of(inputs, running), computes, strict=True)
    for asleep_s, running_s, compute_s in whole:
        yield Pipeline(
            asleep_s=asleep_s,
            running_s=running_s * slowdown,
            compute_s=compute_s * (slowdown / main_slowdown),
            receive_s=np.full(len(asleep_s), own_receive if setting.workers else 0.0),
            handover_s=handover if setting.workers else 0.0,
            compute_cores=min(inputs.compute_cores.at(scenario), inputs.cores),
            sampler_s=inputs.sampler_s / main_slowdown,
            delivery_s=max(inputs.delivery_s - receive - handover, 0.0),
            turnaround_s=inputs.turnaround_s,
            workers=setting.workers,
            prefetch=setting.prefetch,
            is_in_order=setting.is_in_order,
            cores=inputs.cores,
            others=others,
            spawn_s=inputs.spawn_s.at(scenario) if starts else 0.0,
            boot_s=inputs.boot_s.at(scenario) if starts else 0.0,
        )


def _workers_of_other_ranks(
    inputs: PipelineInputs, setting: Setting, asleep: Float64, running: Float64
) -> float:
    """Returns how many more threads of other ranks want the core that one has with them.

    They get as many workers more; no more of those are busy at once than computing has use for.
    """
    more = setting.workers - inputs.setting.workers
    made_s, runs_s = float((asleep + running).sum()), float(running.sum())
    if more <= 0 or inputs.ranks_per_core <= 1 or made_s <= 0:
        return 0.0
    computed_s = float(inputs.compute_s.sum()) / (1 + inputs.main_slowdown)
    busy = min(more * runs_s / made_s, runs_s / computed_s if computed_s > 0 else np.inf)
    return (inputs.ranks_per_core - 1) * busy


def _waiting_for_one_another(inputs: PipelineInputs, setting: Setting) -> float:
    """Returns how many times as long computing may take for threads that wait for one another.

    Beyond what sharing cores makes it: one that has lost its core to a worker holds up the rest.
    """
    threads, made_s = inputs.compute_cores.mid, float(inputs.fetch_s.sum())
    if threads < _SEVERAL_THREADS or made_s <= 0:
        return 1.0
    running = float(running_of(inputs, "mid").sum()) / made_s
    return max((threads + setting.workers * running) / inputs.cores, 1.0)


def without_sending(series: Float64, scenario: Scenario) -> Float64:
    """Returns what each took, in s, without what sending batches from workers may have added."""
    return series - np.minimum(_SENDING_S[scenario], _SENDING_SHARE * series)


def _fetch_parts(
    inputs: PipelineInputs, setting: Setting, scenario: Scenario
) -> tuple[Float64, Float64]:
    """Splits the fetches into time asleep and running, were there cores to spare."""
    wall, running = inputs.fetch_s, running_of(inputs, scenario)
    asleep = np.maximum(wall - running * (1 + inputs.fetch_slowdown), 0.0)
    if inputs.setting.workers == 0 < setting.workers:
        cpu = filled(inputs.cpu_s, inputs.fetch_s)
        if cpu is not None:
            # Torch's threads worked on it; a worker has one, unless they are a decoder's own.
            running = running + np.maximum(cpu - asleep - running, 0.0) * _MAYBE[scenario]
        running = running + (inputs.batch_bytes or 0.0) * _SHARED_MEMORY_S_PER_BYTE[scenario]
    return asleep, running


def running_of(inputs: PipelineInputs, scenario: Scenario) -> Float64:
    """Returns the running part of each fetch."""
    told = filled(inputs.running_s, inputs.fetch_s)
    if told is None:
        return inputs.fetch_s * _MAYBE[scenario]
    return np.minimum(told, inputs.fetch_s)


def filled(
    part: Float64 | None, whole: Float64, stands_for: Float64 | None = None
) -> Float64 | None:
    """Gives the fetches that were not measured the share that those have which stand for them.

    Args:
        part: Of each fetch, NaN where that was not measured; None where nowhere.
        whole: The fetches.
        stands_for: How many fetches each measured one stands for; None: for itself.
    """
    if part is None:
        return None
    is_measured = ~np.isnan(part)
    weight = np.ones_like(whole) if stands_for is None else stands_for
    stand_in = is_measured & (weight > 1)
    if not whole[stand_in].sum() > 0:
        stand_in = is_measured
    total = (whole * weight)[stand_in].sum()
    if total <= 0:
        return None
    return np.where(is_measured, part, whole * ((part * weight)[stand_in].sum() / total))


def passes_of(inputs: PipelineInputs, series: Float64) -> list[Float64]:
    """Cuts a series into the passes that are played: the last ones, none longer than all of them.

    A pass that was not recorded to its end is filled up with what followed its first batch, which
    alone bears what is paid once.
    """
    batches = min(inputs.batches, MAX_BATCHES_PLAYED)
    whole = len(series) // inputs.batches
    if whole == 0:
        followed = series[1:] if len(series) > 1 else series
        return [np.concatenate([series[:1], np.resize(followed, batches - 1)])]
    chosen = min(whole, max(1, MAX_BATCHES_PLAYED // batches))
    ends = [len(series) - (len(series) % inputs.batches) - k * inputs.batches for k in range(whole)]
    return [series[end - inputs.batches :][:batches] for end in reversed(ends[:chosen])]
