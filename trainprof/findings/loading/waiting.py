"""Why training waits for a loader's batches: one cause each, so that no wait counts twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.bounds import (
    Interval,
    PipelineInputs,
    Prediction,
    Scenario,
    Setting,
    cores_limit_s,
    likely_step_s,
    measured_rates,
    predict,
    running_of,
)
from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.loader import (
    BLOCKED,
    RECEIVE,
    SAMPLER,
    Fetch,
    Loader,
    are_begun_parts,
    starts_s,
    unusual_samples,
    worker_totals,
)
from trainprof.findings.loading.model_inputs import like_the_usual

SERIAL: Final = "serial"
TOO_FEW_WORKERS: Final = "too few workers"
CPU: Final = "cpu"
STORAGE: Final = "storage"
SLOW_SAMPLES: Final = "slow samples"
RECEIVING: Final = "receiving"
SAMPLING: Final = "sampling"
COLLATING: Final = "collating"
SAMPLE_BY_SAMPLE: Final = "sample by sample"
NEEDLESS_WORKERS: Final = "needless workers"
UNEVEN: Final = "uneven batches"
IDLE_WORKERS: Final = "idle workers"
UNKNOWN: Final = "unknown"

# XProf (op_stats_to_input_pipeline_analysis.cc): below it a program is not bound by its input.
WAIT_SHARE: Final = 0.05
# Of batch preparation: what slow samples take beyond typical ones.
SLOW_SAMPLES_SHARE: Final = 0.15
# Of batch preparation spent asleep, from which on more workers than cores are tried.
ASLEEP_SHARE: Final = 0.5
READING_SHARE: Final = 0.5
# From here on if nothing else is short.
MUCH_READING_SHARE: Final = 0.3
# Of a step: what its work would take on fully used cores, from which on they are short.
FULL_SHARE: Final = 0.75
# Of batch preparation spent waiting for a free core, from which on they are short as well.
RUNNABLE_SHARE: Final = 0.25
# Batches of one worker against an even share, from which on they are split unevenly.
FAIR_SHARES: Final = 1.6
# From here on IPC transfers wait for a core, too.
_SHORT_SHARE: Final = 0.1
# An idle worker that gets the indices of a batch begins at once.
_TURNAROUND_S: Final = 0.0002
# Of batch preparation: from here on the collate function is the slow part.
COLLATE_SHARE: Final = 0.5
# Of a step spent receiving batches, and the least time: a plain batch takes 1 to 2 ms.
RECEIVE_SHARE: Final = 0.05
RECEIVE_S: Final = 0.005
# What one tensor takes at most if its worker answers at once.
_TENSOR_S: Final = 0.002
# A sample that takes no longer is mostly Python overhead: its request, and its collating.
CHEAP_SAMPLE_S: Final = 20e-6
# Of training; and the least number of samples in a batch.
SAMPLE_BY_SAMPLE_SHARE: Final = 0.1
_MANY_SAMPLES: Final = 8
# How much shorter a step has to be without workers, at worst, than the modelled and measured one.
NEEDLESS_GAIN: Final = 0.1
# Of the waits: with less of them spent before the batch is ready, late batches are not the cause.
LATE_SHARE: Final = 0.25
# Of the waits without workers: with less of them in fetches, samples are not the cause.
_MOSTLY_FETCHED: Final = 0.5
# Up to this share of all fetches, slow ones are few.
_FEW_SHARE: Final = 0.25
# Where free cores limit a step: what other programs use is known to about this share.
_SHORT_GAIN: Final = 0.1
TRIED_WORKERS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_WORKERS: Final = 32
TRIED_PREFETCH: Final = (4, 8, 16)
_MORE_CORES: Final = 8.0
_WORKERS_PER_CORE_ASLEEP: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """From which values on something is a cause: shares, unless their names have another unit."""

    wait: float = WAIT_SHARE
    slow_samples: float = SLOW_SAMPLES_SHARE
    receive: float = RECEIVE_SHARE
    receive_s: float = RECEIVE_S
    collate: float = COLLATE_SHARE
    sample_by_sample: float = SAMPLE_BY_SAMPLE_SHARE
    cheap_sample_s: float = CHEAP_SAMPLE_S
    fair_shares: float = FAIR_SHARES


@dataclass(frozen=True, slots=True)
class Cause:
    """Why training waits.

    Attributes:
        name: One of those above.
        setting, prediction: With more workers or none, more batches prefetched or the data split
            evenly, and the model's prediction; None where that does not help.
    """

    name: str
    setting: Setting | None = None
    prediction: Prediction | None = None


def cause_of(
    loader: Loader,
    inputs: PipelineInputs,
    now: Prediction,
    wait_share: float,
    limits: Limits = Limits(),
    *,
    felt: float | None = None,
    is_disturbed: bool = False,
) -> Cause | None:
    """Returns why training waits for a loader; None where it hardly does.

    Args:
        inputs: Of the pipeline model; `now`: its prediction for the recorded setting.
        wait_share: Of training, spent waiting for it.
        felt: Share of the waits in which a device idled; None without one.
        is_disturbed: By other programs, as `SharedCpu` has it.
    """
    if wait_share < limits.wait or _comes_once(inputs, limits):
        return None
    is_uneven = _slow_share(loader.fetch, inputs, is_disturbed) >= limits.slow_samples
    is_uneven &= loader.fetch is None or not are_begun_parts(unusual_samples(loader.fetch))
    # No loader makes steps shorter than the device needs for them.
    paced = inputs if felt is None else _paced_by_device(inputs, felt)
    if is_uneven and _usual_would_do(inputs, now, limits):
        return Cause(SLOW_SAMPLES, *(more_ahead(paced, now) or ()))
    is_by_sample = _is_sample_by_sample(loader, limits)
    without = _without_workers(loader, inputs, now) if loader.num_workers else None
    if is_by_sample and without is not None:
        return Cause(NEEDLESS_WORKERS, *without)
    if is_by_sample and wait_share >= limits.sample_by_sample:
        return Cause(SAMPLE_BY_SAMPLE)
    parts = now.parts_s
    step_s = sum(parts.values())
    longest = max((BLOCKED, RECEIVE, SAMPLER), key=lambda name: parts[name])
    # A busy worker answers late: then its computing is the cause.
    is_handed_over = (
        bool(loader.num_workers)
        and (longest == RECEIVE or (longest != SAMPLER and _are_there(loader)))
        and not _waits_for_busy_worker(loader)
    )
    if is_handed_over:
        is_short = is_disturbed or runnable_share(loader.fetch) >= _SHORT_SHARE
        received_s = parts[RECEIVE] * (_own_share_of_receiving(loader) if is_short else 1.0)
        if received_s >= max(limits.receive * step_s, limits.receive_s):
            return Cause(RECEIVING)
    if without is not None:
        return Cause(NEEDLESS_WORKERS, *without)
    if longest == SAMPLER:
        return Cause(SAMPLING)
    is_late = not _are_there(loader)
    # Late batches count by themselves, even if receiving any batch costs more than they do.
    if is_handed_over and not (is_late and parts[BLOCKED] >= limits.wait * step_s):
        # The transfer of any batch takes that; the rest of the wait may have a cause.
        return Cause(SAMPLING) if parts[SAMPLER] >= limits.wait * step_s else None
    if loader.fetch is None or loader.fetch.wall_s is None:
        return Cause(UNKNOWN)
    return _cause_of_preparation(loader, loader.fetch, inputs, paced, now, limits)


def _cause_of_preparation(
    loader: Loader,
    fetch: Fetch,
    inputs: PipelineInputs,
    paced: PipelineInputs,
    now: Prediction,
    limits: Limits,
) -> Cause:
    """Returns why batches are not ready sooner; `paced`: for steps as a device takes them."""
    if loader.collate_site is not None and collate_share(fetch) >= limits.collate:
        return Cause(COLLATING)
    reading = reading_share(fetch) if fetch.read_bytes else 0.0
    is_read = reading >= READING_SHARE
    # Several workers that read already share the throughput of the disk.
    if is_read and (loader.num_workers or 0) > 1:
        return Cause(STORAGE)
    if _is_shared_unevenly(loader, limits):
        even = predict(replace(inputs, turnaround_s=min(inputs.turnaround_s, _TURNAROUND_S)))
        if even.step_s.mid <= (1 - LEAST_GAIN) * now.step_s.mid:
            return Cause(IDLE_WORKERS, inputs.setting, even)
    is_late = not _are_there(loader)
    more = more_workers(paced, now, stay=loader.may_keep_workers)
    ahead = more_ahead(paced, now)
    enough_s = np.inf if more is None else (1 + LEAST_GAIN) * more[1].step_s.mid
    if is_late and ahead is not None and ahead[1].step_s.mid <= enough_s:
        return Cause(UNEVEN, *ahead)
    if more is not None and (is_late or not loader.num_workers):
        return Cause(TOO_FEW_WORKERS if loader.num_workers else SERIAL, *more)
    if is_read:
        return Cause(STORAGE)
    if _is_short_of_cores(loader, fetch, inputs, now):
        return Cause(CPU)
    return Cause(STORAGE if reading >= MUCH_READING_SHARE else UNKNOWN)


def _is_short_of_cores(
    loader: Loader, fetch: Fetch, inputs: PipelineInputs, now: Prediction
) -> bool:
    busy_s = (fetch.running_s or 0.0) + (fetch.runnable_s or 0.0) + (fetch.throttled_s or 0.0)
    if _share_of_preparation(fetch, busy_s) < 1 - ASLEEP_SHARE:
        return False
    step_s = sum(now.parts_s.values())
    # Less busy cores are not the limit.
    is_full = cores_limit_s(now.pipeline) >= FULL_SHARE * step_s
    is_full |= runnable_share(fetch) >= RUNNABLE_SHARE
    is_full |= _least_step_s(inputs, now) >= FULL_SHARE * step_s
    # Where more cores would not help, the IPC transfer is the limit.
    on_more = replace(inputs, cores=inputs.cores * _MORE_CORES, ranks_per_core=1.0)
    return is_full and (
        more_workers(on_more, predict(on_more), stay=loader.may_keep_workers) is not None
    )


def _paced_by_device(inputs: PipelineInputs, felt: float) -> PipelineInputs:
    """Returns a loader whose batches are used no faster than by a device that never waits."""
    measured = measured_rates(inputs)
    if measured is None:
        return inputs
    least_s = measured.step_s - felt * measured.wait_s
    return replace(inputs, compute_s=np.maximum(inputs.compute_s, least_s))


def _is_sample_by_sample(loader: Loader, limits: Limits) -> bool:
    """Whether batches are collated from many samples that are cheap each."""
    fetch = loader.fetch
    if loader.whole_batches is None or fetch is None or fetch.wall_s is None or not fetch.samples:
        return False
    prepared_s = fetch.wall_s.mean * fetch.n
    if not loader.num_workers and prepared_s < _MOSTLY_FETCHED * loader.wait_total_s:
        return False  # the sampler is the cause
    is_cheap = prepared_s <= limits.cheap_sample_s * fetch.samples
    return is_cheap and fetch.samples >= _MANY_SAMPLES * fetch.n


def _without_workers(
    loader: Loader, inputs: PipelineInputs, now: Prediction
) -> tuple[Setting, Prediction] | None:
    """Returns the loader without workers; None where they save more than they cost.

    Starting and ending them counts, as a mean over all batches.
    """
    prediction = predict(inputs, replace(inputs.setting, workers=0, is_persistent=False))
    around_s = starts_s(loader) + loader.end_s - loader.passes * prediction.first_batch_s.mid
    around_s = max(around_s, 0.0) / max(loader.iterations, 1)
    measured = measured_rates(inputs)
    now_s = min(now.step_s.mid, now.step_s.mid if measured is None else measured.step_s)
    # Persistent workers may save their starts, too.
    is_faster = prediction.step_s.high <= (1 - NEEDLESS_GAIN) * (now_s + around_s)
    if not is_faster or prediction.step_s.mid > (1 - NEEDLESS_GAIN) * now_s:
        return None
    tried = (more_workers(inputs, now, stay=True), more_ahead(inputs, now))
    others = [now, *(each[1] for each in tried if each is not None)]
    is_best = all(x.step_s.mid >= prediction.step_s.mid for x in others)
    return (prediction.setting, prediction) if is_best else None


def _are_there(loader: Loader) -> bool:
    """Whether batches were mostly ready when training asked for them."""
    late_s = loader.blocked_s
    return late_s is not None and late_s < LATE_SHARE * loader.wait_total_s


def batches_by_worker(loader: Loader) -> dict[int, int]:
    """Returns how many batches each worker prepared, over all epochs."""
    fetch, workers = loader.fetch, loader.num_workers or 0
    made = dict.fromkeys(range(workers), 0)
    for worker in worker_totals(fetch.per_worker) if fetch is not None else ():
        if worker.number in made:
            made[worker.number] = int(worker.figures["n"] or 0)
    return made


def _is_shared_unevenly(loader: Loader, limits: Limits) -> bool:
    made = batches_by_worker(loader)
    if not loader.is_iterable or len(made) < 2:
        return False
    return max(made.values()) * len(made) >= limits.fair_shares * max(sum(made.values()), 1)


def _comes_once(inputs: PipelineInputs, limits: Limits) -> bool:
    """Whether only the first epoch waits: from then on the data is cached."""
    waits, batches = inputs.wait_s, inputs.batches
    if waits is None or len(waits) < 2 * batches:
        return False
    is_later = np.arange(len(waits)) >= batches
    is_later[::batches] = False  # starts of epochs are another cause
    waited_s = float(waits[is_later].sum())
    return waited_s < limits.wait * (waited_s + float(inputs.compute_s[is_later].sum()))


def reading_share(fetch: Fetch | None) -> float:
    """Returns which share of batch preparation waits for a disk, as far as that is known."""
    return 0.0 if fetch is None else _share_of_preparation(fetch, fetch.reading_s)


def asleep_share(fetch: Fetch | None) -> float:
    """Returns which share of batch preparation sleeps: for a lock, a server, a disk."""
    return 0.0 if fetch is None else _share_of_preparation(fetch, fetch.asleep_s)


def runnable_share(fetch: Fetch | None) -> float:
    """Returns which share of batch preparation waits for a free core."""
    return 0.0 if fetch is None else _share_of_preparation(fetch, fetch.runnable_s)


def _share_of_preparation(fetch: Fetch, seconds: float | None) -> float:
    prepared_s = 0.0 if fetch.wall_s is None else fetch.wall_s.mean * fetch.n
    return (seconds or 0.0) / prepared_s if prepared_s > 0 else 0.0


def collate_share(fetch: Fetch | None) -> float:
    """Returns which share of batch preparation is the collate function's."""
    if fetch is None or fetch.collate_s is None or fetch.dataset_s is None:
        return 0.0
    prepared_s = fetch.collate_s + fetch.dataset_s
    return fetch.collate_s / prepared_s if prepared_s > 0 else 0.0


def more_workers(
    inputs: PipelineInputs, now: Prediction, *, stay: bool
) -> tuple[Setting, Prediction] | None:
    """Returns the fewest workers that do nearly as well as any; None where more do not help.

    Args:
        stay: They are persistent, unless epochs are left early: they would first prepare what was
            requested by then.
    """
    stay = stay and (inputs.setting.is_persistent or not inputs.left)
    most, least_s = most_workers(inputs), _least_step_s(inputs, now)
    tried = [
        replace(inputs.setting, workers=workers, is_persistent=stay)
        for workers in TRIED_WORKERS
        if inputs.setting.workers < workers <= most
    ]
    if not tried:
        return None
    steps_s = [max(likely_step_s(inputs, setting), least_s) for setting in tried]
    is_short = min(steps_s) <= least_s
    if min(steps_s) > (1 - (_SHORT_GAIN if is_short else LEAST_GAIN)) * now.step_s.mid:
        return None
    fewest = tried[fewest_of(steps_s)]
    return fewest, _on_spare_cores(inputs, now, predict(inputs, fewest))


def _on_spare_cores(inputs: PipelineInputs, now: Prediction, prediction: Prediction) -> Prediction:
    """Returns a prediction with steps no shorter than the cores allow.

    The model shares cores fairly among processes: more workers get more of a busy core there, which
    other programs lose. That does not count as a gain.
    """
    step, least_s = prediction.step_s, _least_step_s(inputs, now)
    best_s = (1 - _SHORT_GAIN) * _least_step_s(inputs, now, "low")
    bounded = Interval(max(step.low, best_s), max(step.mid, least_s), max(step.high, least_s))
    return replace(prediction, step_s=bounded)


def _least_step_s(inputs: PipelineInputs, now: Prediction, scenario: Scenario = "mid") -> float:
    """Returns what a step takes if the cores do nothing else."""
    computing_s = float(inputs.compute_s.mean()) / (1 + inputs.main_slowdown)
    core_s = computing_s * inputs.compute_cores.at(scenario) + inputs.receive_s.at(scenario)
    core_s += float(running_of(inputs, "mid").mean())
    return core_s / max(inputs.cores, core_s / now.step_s.mid)


def more_ahead(inputs: PipelineInputs, now: Prediction) -> tuple[Setting, Prediction] | None:
    """Returns the fewest prefetched batches per worker that do nearly as well as any.

    None where they do not help, or most of the wait stays.
    """
    tried = [
        replace(inputs.setting, prefetch=prefetch)
        for prefetch in (TRIED_PREFETCH if inputs.setting.workers else ())
        if prefetch > inputs.setting.prefetch
    ]
    if not tried:
        return None
    steps_s = [likely_step_s(inputs, setting) for setting in tried]
    best = fewest_of(steps_s)
    if steps_s[best] > (1 - LEAST_GAIN) * now.step_s.mid:
        return None
    prediction = predict(inputs, tried[best])
    late_s, left_s = (x.parts_s.get(BLOCKED, 0.0) for x in (now, prediction))
    return (tried[best], prediction) if left_s <= late_s / 2 else None


def fewest_of(seconds: Sequence[float]) -> int:
    """Returns the first of some times that is nearly the shortest; they are in rising workers."""
    best_s = min(seconds)
    return next(k for k, x in enumerate(seconds) if x <= (1 + LEAST_GAIN) * best_s)


def most_workers(inputs: PipelineInputs) -> int:
    """Returns how many workers are worth trying: cores, or more if batch preparation sleeps.

    Not more than a stream has shards; not more than now if ranks already outnumber the cores.
    """
    if inputs.ranks_per_core > 1:
        return inputs.setting.workers
    cores = max(int(inputs.cores), 1)
    running = inputs.running_s
    if running is not None:
        measured = ~np.isnan(running)
        prepared_s = float(inputs.fetch_s[measured].sum())
        runs = float(running[measured].sum())
        runnable = inputs.runnable_s
        waits = 0.0 if runnable is None else float(np.nansum(runnable[measured]))
        if runs <= (1 - ASLEEP_SHARE) * prepared_s and waits < ASLEEP_SHARE * prepared_s:
            cores *= _WORKERS_PER_CORE_ASLEEP
        elif runs + waits > 0:
            # What keeps the cores busy, together.
            cores = max(cores, round(inputs.cores * prepared_s / (runs + waits)))
    return min(cores, inputs.shards or _MOST_WORKERS, _MOST_WORKERS)


def _slow_share(fetch: Fetch | None, inputs: PipelineInputs, is_disturbed: bool) -> float:
    """Returns what a few slow batches take beyond the usual, as a share of batch preparation.

    0 where no single sample is known to be slow: then something else slowed them. Other programs
    may have, where it is not known for how long a sample waited for a core.
    """
    slow = [] if fetch is None else unusual_samples(fetch)
    if not any(not is_disturbed or known(sample.get("kept_off_s")) is not None for sample in slow):
        return 0.0
    usual = like_the_usual(inputs).fetch_s
    is_slow = usual < inputs.fetch_s
    if is_slow.mean() > _FEW_SHARE or inputs.fetch_s.sum() <= 0:
        return 0.0
    return float((inputs.fetch_s - usual).sum() / inputs.fetch_s.sum())


def _waits_for_busy_worker(loader: Loader) -> bool:
    """Whether an IPC transfer waits for a worker that is busy or has no core, not for tensors.

    Each tensor of a batch is one request to the worker's process.
    """
    fetch, took_s, worked_s = loader.fetch, loader.receive_s, loader.receive_cpu_s
    if fetch is None or fetch.wall_s is None or took_s is None or worked_s is None:
        return False
    each_s = took_s / max(loader.wait_s.n if loader.wait_s else 1, 1)
    are_few = each_s > _TENSOR_S * (fetch.batch_tensors or np.inf)
    return worked_s < took_s / 2 and (fetch.wall_s.mean >= each_s or are_few)


def _own_share_of_receiving(loader: Loader) -> float:
    """Returns which share of the IPC transfers is not explained by waiting for a CPU core.

    Where cores are short, only the CPU time of the training process is: its thread waits for a core
    as well, and for the worker, which waits for one, too.
    """
    took_s, worked_s = loader.receive_s, loader.receive_cpu_s
    return min(worked_s / took_s, 1.0) if took_s and worked_s is not None else 1.0


def _usual_would_do(inputs: PipelineInputs, now: Prediction, limits: Limits) -> bool:
    """Whether batches would mostly be in time if all of them were like the usual ones.

    The IPC transfer of a ready batch is another cause.
    """
    late_s, step_s = now.parts_s.get(BLOCKED, 0.0), sum(now.parts_s.values())
    if late_s < limits.wait * step_s:
        return False
    return predict(like_the_usual(inputs)).parts_s.get(BLOCKED, 0.0) <= late_s / 2
