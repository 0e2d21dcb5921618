"""From a recording to the inputs of the pipeline model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.events import Bool, Int64
from trainprof.analysis.facts import MAX_BATCHES_AHEAD, Facts, integer
from trainprof.analysis.fetch_usage import running_ns
from trainprof.analysis.fetches import FetchTable
from trainprof.analysis.passes import Passes
from trainprof.analysis.pipeline_contention import with_contention
from trainprof.analysis.pipeline_model import Float64
from trainprof.analysis.pipeline_receiving import guessed_receiving, with_received
from trainprof.analysis.pipeline_scenario import (
    MAX_BATCHES_PLAYED,
    Interval,
    PipelineInputs,
    Setting,
    filled,
)
from trainprof.analysis.recorded_pass import RecordedPass, recorded_passes
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.system_processes import Tick
from trainprof.analysis.timeline import Timeline

_GUESSED_TURNAROUND_S: Final = 0.0001
_GUESSED_SPAWN_S: Final = Interval(0.003, 0.01, 0.03)
_GUESSED_BOOT_S: Final = {
    "fork": Interval(0.005, 0.02, 0.05),
    "spawn": Interval(1.0, 2.5, 6.0),
    "forkserver": Interval(1.0, 2.5, 6.0),
}
# A damaged log may tell any number.
_MAX_WORKERS: Final = 4096
# A batch counts as ready where it was made so much before it was asked for.
_READY_NS: Final = 2_000_000
_ENOUGH: Final = 5
# Of the passes: where no more than half of them end, it is usual to leave them.
_MOST_ENDED: Final = 0.5
# Where computing is less of the time, what it takes of the CPU cannot be told from the rest.
_LEAST_COMPUTE_SHARE: Final = 0.1
_LEAST_SAMPLED_NS: Final = 500_000_000
_CPU_SAMPLING_ERROR: Final = 0.2


def pipeline_inputs(
    timeline: Timeline,
    fetches: FetchTable,
    facts: Facts,
    loader: int,
    *,
    cores: float,
    ranks: int = 1,
    details: npt.NDArray[np.void] | None = None,
    ticks: Sequence[Tick] = (),
    pid: int | None = None,
) -> PipelineInputs | None:
    """Finds the series of one loader; None where the recording does not hold them.

    That is: the training thread does not take its batches, or of no pass the fetches are known.

    Args:
        timeline: Of the training process.
        fetches: Of it and its workers.
        facts: Of its loaders.
        loader: Id of the loader.
        cores: That can be used, by all ranks of the host together.
        ranks: That share them.
        details: Of the training process, for what receiving took.
        ticks, pid: Samples of the process tree, and which process trains.
    """
    p = next((p for p in timeline.passes_here() if p.loader == loader), None)
    told = facts.loader(loader)
    workers = integer(told.get("num_workers"))
    prefetch = integer(told.get("prefetch_factor")) or 2
    if p is None or workers is None or not 0 <= workers <= _MAX_WORKERS or prefetch < 1:
        return None
    setting = Setting(
        workers=workers,
        prefetch=min(prefetch, MAX_BATCHES_AHEAD),
        is_in_order=told.get("in_order") is not False,
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
    else:
        if told.get("pin_memory") is True and any(one.drawn_ns.any() for one in whole):
            inputs = _with_pinning(inputs, whole)
        inputs = _without_workers(inputs, whole, told.get("workers_started_by"))
    inputs = with_received(inputs, whole, details, loader)
    used = _by_threads(_compute_cores(inputs, timeline, ticks, pid), facts)
    return with_contention(replace(inputs, compute_cores=used))


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
    return min(max(length - batches, 0) if length else MAX_BATCHES_PLAYED, MAX_BATCHES_PLAYED)


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


def _with_pinning(inputs: PipelineInputs, passes: list[RecordedPass]) -> PipelineInputs:
    """Returns batches whose making has in it what pinning them takes of the training process.

    With workers a thread does that, beside it.
    """
    drawn_s = np.concatenate([one.drawn_ns for one in passes]) / 1e9
    waited_s = np.concatenate([one.wait_ns for one in passes]) / 1e9
    return replace(inputs, fetch_s=np.maximum(inputs.fetch_s, waited_s - drawn_s))


def _without_workers(
    inputs: PipelineInputs, passes: list[RecordedPass], method: Any
) -> PipelineInputs:
    drawn = np.concatenate([one.wait_ns for one in passes]) / 1e9 - inputs.fetch_s
    # Ahead of a pass's first batch a sampler may work out all of its order.
    is_later = np.concatenate([np.arange(len(one)) > 0 for one in passes])
    drawn = drawn[is_later] if is_later.any() else drawn
    boot = _GUESSED_BOOT_S.get(method if isinstance(method, str) else "fork")
    receive, handover = guessed_receiving(inputs)
    return replace(
        inputs,
        sampler_s=max(float(drawn.mean()), 0.0),
        receive_s=receive,
        handover_s=handover,
        delivery_s=receive.mid,
        turnaround_s=_GUESSED_TURNAROUND_S,
        spawn_s=_GUESSED_SPAWN_S,
        boot_s=boot or _GUESSED_BOOT_S["fork"],
        guessed=("receive_s", "turnaround_s", "spawn_s", "boot_s"),
    )


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
    delivered, is_ready = _deliveries(passes)
    blocked, ready = delivered[~is_ready], delivered[is_ready]
    delivery = _average(blocked if len(blocked) >= _ENOUGH else delivered)
    receive = _average(ready) if len(ready) >= _ENOUGH else None
    ends = p.end_ns[numbers][p.is_ended[numbers]]
    return replace(
        inputs,
        sampler_s=float(drawn.mean()) / 1e9,
        receive_s=(
            Interval(0.0, delivery, delivery) if receive is None else Interval.exactly(receive)
        ),
        delivery_s=delivery if receive is None else max(delivery, receive),
        turnaround_s=_turnaround_s(passes, setting),
        spawn_s=Interval.exactly(init / setting.workers / 1e9),
        boot_s=Interval.exactly(max(float(np.median(boots)), 0.0) / 1e9 if boots else 0.0),
        reset_s=float(np.median(resets)) / 1e9 if len(resets) else 0.0,
        end_s=float(np.median(ends)) / 1e9 if len(ends) else 0.0,
        guessed=("receive_s",) if receive is None else (),
    )


def _average(ns: Int64) -> float:
    """Returns seconds, of the middle half: a batch in a hundred that is held up says nothing."""
    if len(ns) == 0:
        return 0.0
    cut = len(ns) // 4
    return float(np.sort(ns)[cut : len(ns) - cut].mean()) / 1e9


def _deliveries(passes: list[RecordedPass]) -> tuple[Int64, Bool]:
    """Returns how long each batch took from being made or asked for until it was handed out.

    Only of batches that came in their turn: others are received while another is waited for.
    And which of them were ready when they were asked for.
    """
    delivered, ready = [], []
    for one in passes:
        made, in_turn = one.fetch_ends, one.is_in_turn
        in_turn[0] = False
        taken = one.ends - np.maximum(one.starts, made) - one.drawn_ns
        is_ready = made + _READY_NS < one.starts
        is_blocked = made > one.starts
        used = in_turn & (is_ready | is_blocked)
        delivered.append(np.maximum(taken[used], 0))
        ready.append(is_ready[used])
    return np.concatenate(delivered), np.concatenate(ready)


def _turnaround_s(passes: list[RecordedPass], setting: Setting) -> float:
    """Returns the time from having an index and being free to the fetch, of a worker."""
    ahead, gaps = setting.prefetch * setting.workers, [np.empty(0, dtype=np.int64)]
    if setting.is_in_order:
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
    unknown = Interval(min(1.0, inputs.cores), min(1.0, inputs.cores), max(1.0, inputs.cores))
    window = timeline.window
    busy = _busy_cores(ticks, pid, window.loop_start, window.loop_end)
    total = float(inputs.compute_s.sum() + (0.0 if inputs.wait_s is None else inputs.wait_s.sum()))
    share = float(inputs.compute_s.sum()) / total if total > 0 else 0.0
    if busy is None or share < _LEAST_COMPUTE_SHARE:
        return unknown
    count = len(inputs.fetch_s)
    if inputs.setting.workers:
        received, drawn = count * inputs.receive_s.mid, count * inputs.sampler_s
        besides = Interval(drawn, drawn + received / 2, drawn + received)
    else:
        besides = _fetching(inputs)
    # The more the rest took, the less is left for computing.
    low, mid, high = (
        (busy - rest / total) / share for rest in (besides.high, besides.mid, besides.low)
    )

    def limited(cores: float) -> float:
        return float(np.clip(cores, 0.0, inputs.cores))

    spread = _CPU_SAMPLING_ERROR
    return Interval(limited(low * (1 - spread)), limited(mid), limited(high * (1 + spread)))


def _by_threads(used: Interval, facts: Facts) -> Interval:
    """Returns no more cores than torch has threads, unless others plainly computed beside them."""
    told = [integer(x.get("torch_threads")) or 0 for x in facts.environment()]
    most = float(max(told, default=0))
    if most < 1 or used.mid > most * (1 + _CPU_SAMPLING_ERROR):
        return used
    return Interval(min(used.low, most), min(used.mid, most), min(used.high, most))


def _fetching(inputs: PipelineInputs) -> Interval:
    """Returns the CPU time of all fetches in the main process, in s."""
    cpu = inputs.cpu_s
    if cpu is not None:
        return Interval.exactly(float(np.nanmean(cpu)) * len(cpu))
    wall = float(inputs.fetch_s.sum())
    return Interval(0.0, wall / 2, wall)


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
