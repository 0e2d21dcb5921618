"""From a recording to the inputs of the pipeline model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.delivery import receiving_ns
from trainprof.analysis.loading.fetch_usage import running_ns
from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.machine.processes import Tick
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
from trainprof.analysis.pipeline.recorded_epoch import RecordedPass, recorded_passes
from trainprof.analysis.run.metadata import MAX_BATCHES_AHEAD, Metadata, integer
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.iterations import Passes
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
# A damaged log may tell any number.
_MAX_WORKERS: Final = 4096
# Of the passes: where no more than half of them end, it is usual to leave them.
_MOST_ENDED: Final = 0.5
# Of the measured step to the model's.
LARGEST_DEVIATION: Final = 1.5
# The model plays each batch several times; means of more say no more about what bounds a loader.
MAX_BATCHES: Final = 1_000
# What a recording without workers cannot tell: as measured for HOOKS.md sections 2 and 3, where
# batches of 256 KB to 8 MB took 0.4 to 1.4 ms to take over on a busy machine.
_GUESSED_RECEIVE_S: Final = Interval(0.0001, 0.0005, 0.002)
# The file descriptor of a batch's memory is sent by a thread of the worker; where Python code keeps
# that busy, it gets the interpreter three times by waiting for the switch interval of 5 ms.
_BUSY_INTERPRETER_S: Final = 0.015
# A batch without tensors or arrays is all objects: to unpickle them may take so many times as long
# as to make them.
_OBJECTS_PER_FETCH: Final = 2.0
# Where computing is less of the time, what it takes of the CPU cannot be told from the rest.
_LEAST_COMPUTE_SHARE: Final = 0.1
_LEAST_SAMPLED_NS: Final = 500_000_000
_CPU_SAMPLING_ERROR: Final = 0.2
# Of the fetches' time, that must be running and waiting for a core to tell of others.
_TELLING_SHARE: Final = 0.1
# Threads of others: fewer are what this reckoning is off by.
_LEAST_OTHERS: Final = 0.5
# Slowdowns of computing that are tried, as shares of the most that is possible, on so many batches.
_SLOWDOWNS_TRIED: Final = tuple(k / 10 for k in range(11))
_BATCHES_TRIED: Final = 200


@dataclass(frozen=True, slots=True)
class LoaderModel:
    """A loader's recording, and the pipeline model of it, which meets the pace that was measured.

    Attributes:
        inputs: What the recording tells.
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
    # A model that is further from what was measured is not one of this run.
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
    details: npt.NDArray[np.void] | None = None,
    ticks: Sequence[Tick] = (),
    pid: int | None = None,
) -> PipelineInputs | None:
    """Finds the series of one loader; None where the recording does not hold them.

    That is: the training thread does not take its batches, they come in any order (in_order=False),
    or of no pass the fetches are known.

    Args:
        timeline: Of the training process.
        fetches: Of it and its workers.
        metadata: Of its loaders.
        loader: Id of the loader.
        cores: That can be used, by all ranks of the host together.
        ranks: That share them.
        details: Of the training process, for what receiving took.
        ticks, pid: Samples of the process tree, and which process trains.
    """
    p = next((p for p in timeline.passes_here() if p.loader == loader), None)
    told = metadata.loader(loader)
    workers = integer(told.get("num_workers"))
    prefetch = integer(told.get("prefetch_factor")) or 2
    if p is None or workers is None or not 0 <= workers <= _MAX_WORKERS or prefetch < 1:
        return None
    if told.get("in_order") is False:
        return None
    setting = Setting(
        workers=workers,
        prefetch=min(prefetch, MAX_BATCHES_AHEAD),
        is_persistent=told.get("persistent_workers") is True,
    )
    passes = recorded_passes(timeline, fetches, p, setting, told)
    if not passes:
        return None
    length = integer(told.get("length")) or 0
    whole = _of_one_length(passes)
    # A run that was limited ends in the midst of its only pass.
    batches = max(len(whole[0]), length) if len(passes) == 1 else len(whole[0])
    rows = np.concatenate([one.fetch for one in whole])
    table = _rows(fetches, rows)
    fetch_ns = np.concatenate([one.fetch_ns for one in whole])
    running = np.minimum(running_ns(table), fetch_ns)
    # A thread that runs has a whole core, as long as there is one.
    own_cores = max(cores / ranks, min(cores, 1.0))
    inputs = PipelineInputs(
        setting=setting,
        batches=batches,
        left=_left(p, len(passes), length, batches),
        fetch_s=fetch_ns / 1e9,
        compute_s=np.concatenate([one.compute_ns for one in whole]) / 1e9,
        wait_s=np.concatenate([one.wait_ns for one in whole]) / 1e9,
        cores=own_cores,
        ranks=ranks,
        ranks_per_core=ranks * own_cores / cores,
        running_s=_told(running, fetch_ns, table.stands_for),
        runnable_s=_told(
            np.minimum(table.delay_ns, fetch_ns - running), fetch_ns, table.stands_for
        ),
        cpu_s=_told(
            np.maximum(table.process_cpu_ns - (table.wall_ns - fetch_ns), 0),
            fetch_ns,
            table.stands_for,
        ),
        reading_s=_told(table.reading_ns, fetch_ns, table.stands_for),
        read_bytes=_total(table.read_bytes),
        batch_bytes=_mean(table.batch_bytes),
        shards=max(integer(told.get("shards")) or 0, 0) or None,
    )
    if workers:
        busy = workers_busy(fetches, whole)
        inputs = _with_workers(replace(inputs, workers_busy=busy), whole, p)
        inputs = replace(inputs, receive_s=_receive_s(inputs, whole, details, loader))
    else:
        inputs = _without_workers(inputs, whole, told.get("workers_started_by"))
    inputs = replace(inputs, compute_cores=_compute_cores(inputs, timeline, ticks, pid))
    return with_contention(shortened(inputs))


def _of_one_length(passes: list[RecordedPass]) -> list[RecordedPass]:
    """Returns the longest of some passes, or the beginnings of most where those are too few."""
    lengths = sorted(map(len, passes))
    longest, usual = lengths[-1], lengths[len(lengths) // 2]
    whole = [one for one in passes if len(one) == longest]
    if len(whole) * longest >= MIN_STEADY_STEPS or usual == longest:
        return whole
    return [one.begun(usual) for one in passes if len(one) >= usual]


def _left(p: Passes, known: int, length: int, batches: int) -> int:
    """Returns how many batches most passes still had when they were left; 0 where they ended.

    Args:
        p: The loader's passes.
        known: Of how many the fetches are known.
        length: Of the loader, 0 where it has none.
        batches: That each of them took.
    """
    used = p.trained() if p.trained().any() else p.batches > 0
    # The last one may have been cut off with the run.
    is_ended = p.is_ended[used][:-1]
    if known < 2 or len(is_ended) == 0 or is_ended.mean() >= _MOST_ENDED:
        return 0
    return min(max(length - batches, 0) if length else MAX_BATCHES, MAX_BATCHES)


def shortened(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the last passes of a series, so many as MAX_BATCHES hold, or the start of the last.

    A pass that was cut off stays as long as it was. Of one that all of the run goes through the end
    is told: what it began with, a cold disk or an empty cache, does not come again.
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
    series: dict[str, Any] = {
        one.name: value[kept]
        for one in fields(inputs)
        if isinstance(value := getattr(inputs, one.name), np.ndarray)
    }
    return replace(inputs, batches=min(inputs.batches, MAX_BATCHES), **series)


def workers_busy(fetches: FetchTable, passes: Sequence[RecordedPass]) -> Float64:
    """Returns how many workers made batches while each batch was computed with, as a mean.

    Args:
        fetches: Of all loaders.
        passes: Of one of them, in order of time.
    """
    is_of_worker = fetches.worker > 0
    begun = fetches.start_ns[is_of_worker]
    starts, ends = np.sort(begun), np.sort(begun + fetches.wall_ns[is_of_worker])
    began = np.concatenate([one.ends for one in passes])
    compute_ns = np.maximum(np.concatenate([one.compute_ns for one in passes]), 1)
    worked = _worked_ns(starts, ends, began + compute_ns) - _worked_ns(starts, ends, began)
    busy: Float64 = worked / compute_ns
    return busy


def _worked_ns(starts: Int64, ends: Int64, until: Int64) -> Float64:
    """Returns for how long all workers together had worked at some moments.

    Args:
        starts, ends: Of all that they did, each in order of time.
        until: The moments.
    """

    def since(moments: Int64) -> Float64:
        passed = np.concatenate([[0.0], np.cumsum(moments - first, dtype=np.float64)])
        before = np.searchsorted(moments, until)
        since_then: Float64 = before * (until - first) - passed[before]
        return since_then

    first = int(starts[0]) if len(starts) else 0
    return since(starts) - since(ends)


def _rows(fetches: FetchTable, rows: Int64) -> FetchTable:
    return FetchTable(*(getattr(fetches, name)[rows] for name in FetchTable.__slots__))


def _told(ns: Float64, fetch_ns: Float64, stands_for: Float64) -> Float64 | None:
    """Seconds of each fetch, or None where none was measured."""
    series = filled(ns, fetch_ns, stands_for)
    return None if series is None else series / 1e9


def _total(values: Float64) -> int | None:
    return None if np.isnan(values).all() else int(np.nansum(values))


def _mean(values: Float64) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmean(values))


# What workers cost besides fetching


def _without_workers(
    inputs: PipelineInputs, passes: list[RecordedPass], method: Any
) -> PipelineInputs:
    drawn = np.concatenate([one.wait_ns for one in passes]) / 1e9 - inputs.fetch_s
    # Ahead of a pass's first batch a sampler may work out all of its order.
    is_later = np.concatenate([np.arange(len(one)) > 0 for one in passes])
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
    """Returns what it may cost to take a batch over."""
    guess, fetched_s = _GUESSED_RECEIVE_S, float(inputs.fetch_s.sum())
    if inputs.running_s is None or fetched_s <= 0:
        return guess
    # What runs may be Python or let go of the interpreter.
    late_s = min(float(np.nansum(inputs.running_s)) / fetched_s, 1.0) * _BUSY_INTERPRETER_S
    objects_s = 0.0 if inputs.batch_bytes else _OBJECTS_PER_FETCH * float(inputs.fetch_s.mean())
    return Interval(guess.low, guess.mid, max(guess.high + late_s, objects_s))


def _with_workers(inputs: PipelineInputs, passes: list[RecordedPass], p: Passes) -> PipelineInputs:
    setting = inputs.setting
    numbers = np.array([one.number for one in passes])
    # Of persistent workers only a loader's first pass starts them.
    starting = np.flatnonzero(~p.is_resumed) if setting.is_persistent else numbers
    starting = starting if len(starting) else np.array([0])  # of a part of the run
    resets = p.init_ns[numbers[p.is_resumed[numbers]]] if setting.is_persistent else np.empty(0)
    init = float(np.median(p.init_ns[starting]))
    boots = [one.boot_ns for one in passes if one.number in starting and one.boot_ns is not None]
    drawn = np.concatenate([one.drawn_ns for one in passes])
    ends = p.end_ns[numbers][p.is_ended[numbers]]
    return replace(
        inputs,
        sampler_s=float(drawn.mean()) / 1e9,
        turnaround_s=_turnaround_s(passes, setting),
        spawn_s=Interval.exactly(init / setting.workers / 1e9),
        boot_s=Interval.exactly(max(float(np.median(boots)), 0.0) / 1e9 if boots else 0.0),
        reset_s=float(np.median(resets)) / 1e9 if len(resets) else 0.0,
        end_s=float(np.median(ends)) / 1e9 if len(ends) else 0.0,
    )


def _receive_s(
    inputs: PipelineInputs,
    passes: list[RecordedPass],
    details: npt.NDArray[np.void] | None,
    loader: int,
) -> Interval:
    """Returns what taking a batch over took; a guess where that was not recorded."""
    if details is not None:
        parts = details[(details["kind"] == Kind.NEXT_PARTS) & (details["site"] == loader)]
        begun, is_inside = parts["start"], np.zeros(len(parts), dtype=bool)
        for one in passes:
            is_inside |= (begun >= one.starts[0]) & (begun < one.ends[-1])
        if is_inside.any():
            return Interval.exactly(float(receiving_ns(parts)[is_inside].mean()) / 1e9)
    return _guessed_receive_s(inputs)


def _turnaround_s(passes: list[RecordedPass], setting: Setting) -> float:
    """Returns the time from having an index and being free to the fetch, of a worker."""
    ahead, gaps = setting.prefetch * setting.workers, [np.empty(0, dtype=np.int64)]
    for one in passes:
        if len(one) > ahead:
            before = one.fetch_ends[ahead - setting.workers : -setting.workers]
            sent = one.ends[:-ahead]
            gaps.append(one.fetch_starts[ahead:] - np.maximum(before, sent))
    found = np.concatenate(gaps)
    return max(float(np.median(found)), 0.0) / 1e9 if len(found) else _GUESSED_TURNAROUND_S


# What computing takes of the CPU


def _compute_cores(
    inputs: PipelineInputs,
    timeline: Timeline,
    ticks: Sequence[Tick],
    pid: int | None,
) -> Interval:
    """Returns the cores that the main process keeps busy between batches."""
    assert inputs.wait_s is not None
    window, computed_s = timeline.window, float(inputs.compute_s.sum())
    busy = _busy_cores(ticks, pid, window.loop_start, window.loop_end)
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


def _busy_cores(ticks: Sequence[Tick], pid: int | None, start_ns: int, end_ns: int) -> float | None:
    """Returns the cores that a process kept busy between its first and last sample in a window."""
    seen = [(t.t_ns, cpu) for t in ticks if (cpu := _cpu_ns(t, pid)) is not None]
    seen = [(t, cpu) for t, cpu in seen if start_ns <= t <= end_ns]
    if len(seen) < 2 or seen[-1][0] - seen[0][0] < _LEAST_SAMPLED_NS:
        return None
    if any(after < before for (_, before), (_, after) in pairwise(seen)):
        return None
    return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def _cpu_ns(tick: Tick, pid: int | None) -> float | None:
    for (its_pid, _), process in tick.processes.items():
        if its_pid == pid:
            user, system = process.get("user_ns"), process.get("system_ns")
            if isinstance(user, (int, float)) and isinstance(system, (int, float)):
                return float(user + system)
    return None


# How much the recording was slowed by sharing its cores: with itself, and with other processes


def with_contention(inputs: PipelineInputs) -> PipelineInputs:
    """Finds how much longer everything took in the recording because cores were shared.

    How long fetches waited for a core tells how many threads of other processes wanted one too;
    where that was not recorded there are none.
    """
    running, runnable = running_of(inputs, "mid"), filled(inputs.runnable_s, inputs.fetch_s)
    if inputs.wait_s is None or runnable is None or not running.any():
        return inputs
    # One that mostly sleeps waits for a core at each waking, however many are free.
    if min(float(runnable.sum()), float(running.sum())) < _TELLING_SHARE * inputs.fetch_s.sum():
        return inputs
    slowdown, workers = float(runnable.sum() / running.sum()), inputs.setting.workers
    own = 1.0
    if workers:
        step_s = float((inputs.wait_s + inputs.compute_s).mean())
        busy = min(float((running + runnable).mean()) / (workers * step_s), 1.0)
        own += (workers - 1) * busy + float(
            inputs.compute_s.mean()
        ) / step_s * inputs.compute_cores.mid
    others = inputs.cores * (1 + slowdown) - own
    others = others if others >= _LEAST_OTHERS else 0.0
    # They come and go: half of them, or twice as many.
    tried = Interval(others / 2, others, others * 2)
    return _likeliest(replace(inputs, fetch_slowdown=slowdown, others=tried))


def _likeliest(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the slowdown of computing that gives most nearly what was recorded."""
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
