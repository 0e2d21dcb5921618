"""From a recording to the inputs of the pipeline model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from trainprof.analysis.loading.batch_preparation import running_ns
from trainprof.analysis.loading.delivery import receiving_ns
from trainprof.analysis.loading.fetches import Details, FetchTable
from trainprof.analysis.machine.processes import Samples
from trainprof.analysis.pipeline.bounds import (
    Interval,
    PipelineInputs,
    Prediction,
    Rates,
    Setting,
    filled,
    measured_rates,
    pipelines_of,
    predict,
    rates_of,
    running_of,
)
from trainprof.analysis.pipeline.model import Float64, simulate
from trainprof.analysis.pipeline.recorded_epoch import RecordedEpoch, recorded_epochs
from trainprof.analysis.run.metadata import MAX_BATCHES_AHEAD, Metadata, integer
from trainprof.analysis.summary.levels import MANY_STEPS
from trainprof.analysis.timeline.events import Int64, rows_of
from trainprof.analysis.timeline.iterations import LoaderIterations
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind

_GUESSED_TURNAROUND_S: Final = 0.0001
_GUESSED_SPAWN_S: Final = Interval(0.003, 0.01, 0.03)
_GUESSED_BOOT_S: Final = {
    "fork": Interval(0.005, 0.02, 0.05),
    "spawn": Interval(1.0, 2.5, 6.0),
    "forkserver": Interval(1.0, 2.5, 6.0),
}
# A damaged log may have any number.
_MAX_WORKERS: Final = 4096
# Of the epochs: where no more than half of them end, it is usual to leave them.
_MOST_ENDED: Final = 0.5
# Of the measured step to the model's.
LARGEST_DEVIATION: Final = 1.5
# The model replays each batch several times; more of them do not make its means better.
MAX_BATCHES: Final = 1_000
# Unknown without workers: as measured for HOOKS.md sections 2 and 3, where batches of 256 KB to
# 8 MB took 0.4 to 1.4 ms to receive on a busy machine.
_GUESSED_RECEIVE_S: Final = Interval(0.0001, 0.0005, 0.002)
# The file descriptor of a batch's memory is sent by a thread of the worker; where Python code keeps
# that busy, it waits for the GIL three times, for the switch interval of 5 ms.
_BUSY_INTERPRETER_S: Final = 0.015
# To unpickle a batch without tensors or arrays may take this many times as long as to prepare it.
_OBJECTS_PER_FETCH: Final = 2.0
# Where computing is less of the time, its CPU use does not stand out from the rest.
_LEAST_COMPUTE_SHARE: Final = 0.1
_LEAST_SAMPLED_NS: Final = 500_000_000
_CPU_SAMPLING_ERROR: Final = 0.2
# Of the fetches' time that must be running and waiting for a core to show others.
_TELLING_SHARE: Final = 0.1
# Threads of others: the error of this estimate.
_LEAST_OTHERS: Final = 0.5
# Slowdowns of computing that are tried, as shares of the largest one, on how many batches.
_SLOWDOWNS_TRIED: Final = tuple(k / 10 for k in range(11))
_BATCHES_TRIED: Final = 200


@dataclass(frozen=True, slots=True)
class LoaderModel:
    """A loader's recording, and the pipeline model of it, which meets the pace that was measured.

    Attributes:
        measured: Steps and waits as recorded, in the model's windows.
        now: The model's, of the setting that was recorded.
    """

    inputs: PipelineInputs
    measured: Rates
    now: Prediction


def model_of(inputs: PipelineInputs | None) -> LoaderModel | None:
    """None where the model does not apply: too few batches, or another pace than was measured."""
    if inputs is None or len(inputs.fetch_s) < MIN_STEADY_STEPS:
        return None
    measured, now = measured_rates(inputs), predict(inputs)
    if measured is None or not 0 < now.step_s.mid < np.inf:
        return None
    # A model that deviates more from the measured step is not one of this run.
    if not 1 / LARGEST_DEVIATION <= measured.step_s / now.step_s.mid <= LARGEST_DEVIATION:
        return None
    return LoaderModel(inputs, measured, now)


def pipeline_inputs(
    timeline: Timeline,
    fetches: FetchTable,
    metadata: Metadata,
    loader: int,
    *,
    cores: float,
    ranks: int = 1,
    details: Details,
    samples: Samples,
) -> PipelineInputs | None:
    """Finds the series of one loader; `cores` are those of all ranks of the host together.

    None where the training thread does not take its batches, they come in any order
    (in_order=False), or of no epoch the fetches are known.
    """
    p = next((p for p in timeline.loaders_here() if p.loader == loader), None)
    settings = metadata.loader(loader)
    setting = _setting_of(settings)
    if p is None or setting is None:
        return None
    epochs = recorded_epochs(timeline, fetches, p, setting, settings)
    if not epochs:
        return None
    length = integer(settings.get("length")) or 0
    whole = _equally_long(epochs)
    # A run that was limited ends in the midst of its only epoch.
    batches = max(len(whole[0]), length) if len(epochs) == 1 else len(whole[0])
    rows = np.concatenate([epoch.fetch for epoch in whole])
    table = fetches.rows(rows)
    fetch_ns = np.concatenate([epoch.fetch_ns for epoch in whole])
    running = np.minimum(running_ns(table), fetch_ns)

    def series(ns: Float64) -> Float64 | None:
        whole = filled(ns, fetch_ns, table.stands_for)
        return None if whole is None else whole / 1e9

    def known(values: Float64) -> bool:
        return not np.isnan(values).all()

    # A running thread has a whole core, if there is one.
    own_cores = max(cores / ranks, min(cores, 1.0))
    inputs = PipelineInputs(
        setting=setting,
        batches=batches,
        left=_left(p, len(epochs), length, batches),
        fetch_s=fetch_ns / 1e9,
        compute_s=np.concatenate([epoch.compute_ns for epoch in whole]) / 1e9,
        wait_s=np.concatenate([epoch.wait_ns for epoch in whole]) / 1e9,
        cores=own_cores,
        ranks=ranks,
        ranks_per_core=ranks * own_cores / cores,
        running_s=series(running),
        runnable_s=series(np.minimum(table.delay_ns, fetch_ns - running)),
        cpu_s=series(np.maximum(table.process_cpu_ns - (table.wall_ns - fetch_ns), 0)),
        reading_s=series(table.reading_ns),
        read_bytes=int(np.nansum(table.read_bytes)) if known(table.read_bytes) else None,
        batch_bytes=float(np.nanmean(table.batch_bytes)) if known(table.batch_bytes) else None,
        shards=max(integer(settings.get("shards")) or 0, 0) or None,
    )
    if setting.workers:
        busy = workers_busy(fetches, whole)
        inputs = _with_workers(replace(inputs, workers_busy=busy), whole, p)
        inputs = replace(inputs, receive_s=_receive_s(inputs, whole, details, loader))
    else:
        inputs = _without_workers(inputs, whole, settings.get("workers_started_by"))
    inputs = replace(inputs, compute_cores=_compute_cores(inputs, timeline, samples))
    return with_contention(shortened(inputs))


def _setting_of(settings: Mapping[str, Any]) -> Setting | None:
    """Returns a loader's setting, None where it is damaged or batches come in any order."""
    workers = integer(settings.get("num_workers"))
    prefetch = integer(settings.get("prefetch_factor")) or 2
    if workers is None or not 0 <= workers <= _MAX_WORKERS or prefetch < 1:
        return None
    if settings.get("in_order") is False:
        return None
    is_persistent = settings.get("persistent_workers") is True
    return Setting(workers, min(prefetch, MAX_BATCHES_AHEAD), is_persistent)


def _equally_long(epochs: list[RecordedEpoch]) -> list[RecordedEpoch]:
    """Returns the longest of some epochs, or the beginnings of most where those are too few."""
    lengths = sorted(map(len, epochs))
    longest, usual = lengths[-1], lengths[len(lengths) // 2]
    whole = [epoch for epoch in epochs if len(epoch) == longest]
    if len(whole) * longest >= MANY_STEPS or usual == longest:
        return whole
    return [rows_of(epoch, slice(usual)) for epoch in epochs if len(epoch) >= usual]


def _left(p: LoaderIterations, known: int, length: int, batches: int) -> int:
    """Returns how many batches most epochs still had when they were left; 0 where they ended."""
    used = p.trained() if p.trained().any() else p.batches > 0
    # The last one may have been cut off with the run.
    is_ended = p.is_ended[used][:-1]
    if known < 2 or len(is_ended) == 0 or is_ended.mean() >= _MOST_ENDED:
        return 0
    return min(max(length - batches, 0) if length else MAX_BATCHES, MAX_BATCHES)


def shortened(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the last epochs of a series that fit in MAX_BATCHES, or the start of the last.

    Of a run's only epoch the end counts: a cold disk or an empty cache does not come again.
    """
    recorded = len(inputs.fetch_s)
    if recorded <= MAX_BATCHES:
        return inputs if inputs.batches <= MAX_BATCHES else replace(inputs, batches=recorded)
    whole = MAX_BATCHES // inputs.batches
    if whole:
        kept = slice(recorded - whole * inputs.batches, recorded)
    else:
        is_one = recorded <= inputs.batches
        begins = recorded - (MAX_BATCHES if is_one else inputs.batches)
        kept = slice(begins, begins + MAX_BATCHES)
    return replace(rows_of(inputs, kept), batches=min(inputs.batches, MAX_BATCHES))


def workers_busy(fetches: FetchTable, epochs: Sequence[RecordedEpoch]) -> Float64:
    """Returns how many workers fetched while each batch was computed with, as a mean."""
    is_of_worker = fetches.worker > 0
    begun = fetches.start_ns[is_of_worker]
    starts, ends = np.sort(begun), np.sort(begun + fetches.wall_ns[is_of_worker])
    began = np.concatenate([epoch.ends for epoch in epochs])
    compute_ns = np.maximum(np.concatenate([epoch.compute_ns for epoch in epochs]), 1)
    worked = _worked_ns(starts, ends, began + compute_ns) - _worked_ns(starts, ends, began)
    busy: Float64 = worked / compute_ns
    return busy


def _worked_ns(starts: Int64, ends: Int64, until: Int64) -> Float64:
    """Returns for how long all workers together had worked at some moments."""

    def since(moments: Int64) -> Float64:
        passed = np.concatenate([[0.0], np.cumsum(moments - first, dtype=np.float64)])
        before = np.searchsorted(moments, until)
        since_then: Float64 = before * (until - first) - passed[before]
        return since_then

    first = int(starts[0]) if len(starts) else 0
    return since(starts) - since(ends)


# What workers cost besides fetching


def _without_workers(
    inputs: PipelineInputs, epochs: list[RecordedEpoch], method: Any
) -> PipelineInputs:
    drawn = np.concatenate([epoch.wait_ns for epoch in epochs]) / 1e9 - inputs.fetch_s
    # A sampler may compute all of its order before an epoch's first batch.
    is_later = np.concatenate([np.arange(len(epoch)) > 0 for epoch in epochs])
    drawn = drawn[is_later] if is_later.any() else drawn
    boot = _GUESSED_BOOT_S.get(method if isinstance(method, str) else "fork")
    return replace(
        inputs,
        sampler_s=max(float(drawn.mean()), 0.0),
        receive_s=_guessed_receive_s(inputs),
        turnaround_s=_GUESSED_TURNAROUND_S,
        spawn_s=_GUESSED_SPAWN_S,
        boot_s=boot or _GUESSED_BOOT_S["fork"],
    )


def _guessed_receive_s(inputs: PipelineInputs) -> Interval:
    """Returns what it may cost to receive a batch."""
    guess, fetched_s = _GUESSED_RECEIVE_S, float(inputs.fetch_s.sum())
    if inputs.running_s is None or fetched_s <= 0:
        return guess
    # What runs may be Python or release the GIL.
    late_s = min(float(np.nansum(inputs.running_s)) / fetched_s, 1.0) * _BUSY_INTERPRETER_S
    objects_s = 0.0 if inputs.batch_bytes else _OBJECTS_PER_FETCH * float(inputs.fetch_s.mean())
    return Interval(guess.low, guess.mid, max(guess.high + late_s, objects_s))


def _with_workers(
    inputs: PipelineInputs, epochs: list[RecordedEpoch], p: LoaderIterations
) -> PipelineInputs:
    setting = inputs.setting
    numbers = np.array([epoch.number for epoch in epochs])
    # Of persistent workers only a loader's first epoch starts them.
    starting = np.flatnonzero(~p.is_resumed) if setting.is_persistent else numbers
    starting = starting if len(starting) else np.array([0])  # of a part of the run
    resets = p.init_ns[numbers[p.is_resumed[numbers]]] if setting.is_persistent else np.empty(0)
    init = float(np.median(p.init_ns[starting]))
    boots = [
        epoch.boot_ns for epoch in epochs if epoch.number in starting and epoch.boot_ns is not None
    ]
    drawn = np.concatenate([epoch.drawn_ns for epoch in epochs])
    ends = p.end_ns[numbers][p.is_ended[numbers]]
    return replace(
        inputs,
        sampler_s=float(drawn.mean()) / 1e9,
        turnaround_s=_turnaround_s(epochs, setting),
        spawn_s=Interval.exactly(init / setting.workers / 1e9),
        boot_s=Interval.exactly(max(float(np.median(boots)), 0.0) / 1e9 if boots else 0.0),
        reset_s=float(np.median(resets)) / 1e9 if len(resets) else 0.0,
        end_s=float(np.median(ends)) / 1e9 if len(ends) else 0.0,
    )


def _receive_s(
    inputs: PipelineInputs, epochs: list[RecordedEpoch], details: Details, loader: int
) -> Interval:
    """Returns what receiving a batch took; a guess where that was not recorded."""
    parts = details[(details["kind"] == Kind.NEXT_PARTS) & (details["site"] == loader)]
    begun, is_inside = parts["start"], np.zeros(len(parts), dtype=bool)
    for epoch in epochs:
        is_inside |= (begun >= epoch.starts[0]) & (begun < epoch.ends[-1])
    if is_inside.any():
        return Interval.exactly(float(receiving_ns(parts)[is_inside].mean()) / 1e9)
    return _guessed_receive_s(inputs)


def _turnaround_s(epochs: list[RecordedEpoch], setting: Setting) -> float:
    """Returns the time from having an index and being free to the fetch, of a worker."""
    ahead, gaps = setting.prefetch * setting.workers, [np.empty(0, dtype=np.int64)]
    for epoch in epochs:
        if len(epoch) > ahead:
            before = epoch.fetch_ends[ahead - setting.workers : -setting.workers]
            sent = epoch.ends[:-ahead]
            gaps.append(epoch.fetch_starts[ahead:] - np.maximum(before, sent))
    turnarounds = np.concatenate(gaps)
    if len(turnarounds) == 0:
        return _GUESSED_TURNAROUND_S
    return max(float(np.median(turnarounds)), 0.0) / 1e9


# What computing takes of the CPU


def _compute_cores(inputs: PipelineInputs, timeline: Timeline, samples: Samples) -> Interval:
    assert inputs.wait_s is not None
    window, computed_s = timeline.window, float(inputs.compute_s.sum())
    busy = _busy_cores(samples, window.loop_start, window.loop_end)
    total_s = computed_s + float(inputs.wait_s.sum())
    if busy is None or computed_s < _LEAST_COMPUTE_SHARE * total_s:
        return Interval(min(1.0, inputs.cores), min(1.0, inputs.cores), max(1.0, inputs.cores))
    if inputs.setting.workers:
        besides_s = len(inputs.fetch_s) * (inputs.receive_s.mid + inputs.sampler_s)
    elif inputs.cpu_s is not None:
        besides_s = len(inputs.fetch_s) * float(np.nanmean(inputs.cpu_s))
    else:
        besides_s = float(inputs.fetch_s.sum()) / 2
    cores, spread = (busy * total_s - besides_s) / computed_s, _CPU_SAMPLING_ERROR
    low, mid, high = np.clip(np.array([1 - spread, 1, 1 + spread]) * cores, 0, inputs.cores)
    return Interval(float(low), float(mid), float(high))


def _busy_cores(samples: Samples, start_ns: int, end_ns: int) -> float | None:
    """Returns the cores that a process kept busy between its first and last sample in a window."""
    seen = []
    for t_ns, process in samples:
        user, system = process.get("user_ns"), process.get("system_ns")
        if not isinstance(user, (int, float)) or not isinstance(system, (int, float)):
            continue
        if start_ns <= t_ns <= end_ns:
            seen.append((t_ns, float(user + system)))
    if len(seen) < 2 or seen[-1][0] - seen[0][0] < _LEAST_SAMPLED_NS:
        return None
    if any(after < before for (_, before), (_, after) in pairwise(seen)):
        return None
    return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


# How much the recording was slowed by sharing its cores: with itself, and with other processes


def with_contention(inputs: PipelineInputs) -> PipelineInputs:
    """Finds by how much shared cores slowed the recording.

    How long fetches waited for a core shows how many threads of other processes wanted one too.
    """
    running, runnable = running_of(inputs, "mid"), filled(inputs.runnable_s, inputs.fetch_s)
    if inputs.wait_s is None or runnable is None or not running.any():
        return inputs
    # A loader that mostly sleeps waits for a core at each wake-up, however many are free.
    if min(float(runnable.sum()), float(running.sum())) < _TELLING_SHARE * inputs.fetch_s.sum():
        return inputs
    slowdown, workers = float(runnable.sum() / running.sum()), inputs.setting.workers
    own = 1.0
    if workers:
        step_s = float((inputs.wait_s + inputs.compute_s).mean())
        busy = min(float((running + runnable).mean()) / (workers * step_s), 1.0)
        computing = float(inputs.compute_s.mean()) / step_s
        own += (workers - 1) * busy + computing * inputs.compute_cores.mid
    others = inputs.cores * (1 + slowdown) - own
    others = others if others >= _LEAST_OTHERS else 0.0
    # They come and go: half the number, or twice.
    tried = Interval(others / 2, others, others * 2)
    return _likeliest(replace(inputs, fetch_slowdown=slowdown, others=tried))


def _likeliest(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the slowdown of computing that comes nearest to the recording."""
    everybody = inputs.setting.workers + max(inputs.compute_cores.mid, 1.0) + inputs.others.mid
    most = max(everybody / inputs.cores - 1, 0.0)
    tried = [replace(inputs, main_slowdown=most * share) for share in _SLOWDOWNS_TRIED]
    return min(tried, key=_played_error)


def _played_error(inputs: PipelineInputs) -> float:
    """Returns by how much the mean step, and its computing, differ from what was recorded, s."""
    whole = pipelines_of(inputs, inputs.setting, "mid")[0]
    series = ("asleep_s", "running_s", "compute_s", "receive_s")
    flow = simulate(replace(whole, **{k: getattr(whole, k)[:_BATCHES_TRIED] for k in series}))
    played = rates_of(inputs.setting, [flow.wait_s], [flow.step_s])
    recorded = measured_rates(inputs)
    assert recorded is not None
    computed_s = recorded.step_s - recorded.wait_s
    return abs(played.step_s - recorded.step_s) + abs(played.step_s - played.wait_s - computed_s)
