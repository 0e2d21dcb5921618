"""Plans the changes to try, with forecasts made before they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

import numpy as np

from trainprof.analysis.model.optimizer_builder import OptimizerCall
from trainprof.analysis.pipeline.bounds import MODEL_ERROR, predict
from trainprof.analysis.pipeline.model import USUAL_PREFETCH
from trainprof.analysis.pipeline.trial_pace import fewest_alone
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.findings.gain import FASTER_REST, times_without
from trainprof.findings.loading.saturated_cpu import crowding_of
from trainprof.findings.loading.worker_restart import QUICK_BATCH_S, WARM_TIMES
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.tune_support import may_fuse, numerics_changes, waited_for
from trainprof.tune.candidate import Candidate, Interval, interval_without, up_to
from trainprof.tune.loader_candidates import (
    left_out,
    loader_changes,
    steps_of_epoch,
    steps_per_batch,
)
from trainprof.tune.trial import workers_of

# Share of a step from which thread counts matter.
_COMPUTE_SHARE: Final = 0.2
# As FASTER_REST, if the thread sleeps while it waits: with 12 ms of sleep in steps of 21 ms the
# rest took 9 ms, without 5.4 ms (benchmarks/scripts/planted_loading.py real and free).
_FASTER_AFTER_SLEEP: Final = 0.6
# Time to wake up after a sleep, mostly of torch's other threads: a step of 0.3 ms took 2 to 12 ms
# on a virtual machine with two cores, 1 ms with one thread. If the rest of a step is shorter than
# that, its compute time is unknown.
_WAKING_S: Final = (0.002, 0.012)
_MOSTLY: Final = 2 / 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try, by a baseline.

    Attributes:
        sites: Line of the loader that costs most, for loader_alone; () without any.
        free_sites: Lines of all loaders that training waits for, that one first.
        candidates: Changes to try, the most promising first.
        ceiling, alone: Forecasts of the two bounds, None if no model applies.
        has_ceiling_forecast: Whether `ceiling` is narrow enough for a forecast.
        epoch_batches: Batches per epoch of a loader without len().
        fewest_alone: Batches that loader_alone needs.
        steps_of_epoch: Steps that a trial should exceed, None if its length does not matter.
        optimizers: Calls that build optimizers that could be fused.
    """

    sites: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    ceiling: Interval | None = None
    alone: Interval | None = None
    has_ceiling_forecast: bool = True
    epoch_batches: int | None = None
    free_sites: tuple[str, ...] = ()
    fewest_alone: int = MIN_STEADY_STEPS
    steps_per_batch: float = 1.0
    steps_of_epoch: float | None = None
    optimizers: tuple[OptimizerCall, ...] = ()
    notes: tuple[str, ...] = ()


def plan(
    context: RunContext,
    *,
    allow_numerics: bool = False,
    free_step_s: float | None = None,
    starts: float = 0.0,
    saves: float = 0.0,
) -> Plan:
    """Returns what to try on a script, from a run of it.

    Args:
        allow_numerics: Include changes of floating-point results.
        free_step_s: Step time with replayed batches, if measured: a thread that never waits
            computes faster, by an amount that no recording shows.
        starts: Epoch starts as a share of steady step time.
        saves: Checkpoints as a share of steady step time; trials are compared without them.
    """
    candidates = [
        candidate.without_saves(saves)
        for candidate in (
            *loader_changes(context, free_step_s, starts),
            *_thread_candidates(context),
            *_optimizer_candidates(context),
            *(_numerics_candidates(context) if allow_numerics else ()),
        )
    ]
    worthwhile = [
        candidate
        for candidate in candidates
        if candidate.predicted is None or candidate.promise() >= 1 + LEAST_GAIN
    ]
    worthwhile.sort(
        key=lambda candidate: (-round(candidate.promise(), 1), workers_of(candidate.overrides))
    )
    waited, optimizers = waited_for(context), _optimizers(context)
    if not waited:
        return Plan((), tuple(worthwhile), optimizers=optimizers)
    ceiling = interval_without(_ceiling(context, waited[0], others=waited[1:]), saves)
    alone, drawn = _alone(waited[0]), waited[0].loader
    ahead = (drawn.num_workers or 0) * (drawn.prefetch_factor or USUAL_PREFETCH)
    return Plan(
        (waited[0].loader.site,),
        tuple(worthwhile),
        ceiling=_with_starts(ceiling, starts),
        has_ceiling_forecast=not _may_be_waking(context, waited[0]),
        alone=alone and (alone[0] * (1 - saves), alone[1] * (1 - saves)),
        epoch_batches=_epoch_batches(waited[0]),
        free_sites=tuple(dict.fromkeys(loader.loader.site for loader in waited)),
        fewest_alone=fewest_alone(ahead),
        steps_per_batch=steps_per_batch(context),
        steps_of_epoch=steps_of_epoch(context),
        optimizers=optimizers,
        notes=left_out(context),
    )


def _thread_candidates(context: RunContext) -> list[Candidate]:
    """Proposes numbers of torch threads: small models may be faster with fewer. No forecast."""
    cores, share = int(context.cores() or 0), context.share(*COMPUTE_KEYS)
    threads = context.torch.threads
    if context.is_on_device or cores < 2 or share < _COMPUTE_SHARE:
        return []
    values = dict.fromkeys((1, max(cores // 2, 1), cores))
    values.pop(threads or 0, None)
    caution = "sums in another order: losses may differ in the last digits"
    hopes = {x: times_without(share * max(1 - (threads or x) / x, 0.0)) for x in values}
    return [
        Candidate("threads", {"torch_threads": value}, None, (caution,), hope=hope)
        for value, hope in hopes.items()
    ]


def _optimizer_candidates(context: RunContext) -> list[Candidate]:
    """Proposes fused and foreach optimizers: by default torch loops over parameters on a CPU."""
    if not may_fuse(context):
        return []
    predicted = up_to(context.share("optimizer"))
    caution = "updates in another order: losses may differ in the last digits"
    ways = ("fused",) if context.is_on_device else ("fused", "foreach")
    return [Candidate("optimizer", {way: True}, predicted, cautions=(caution,)) for way in ways]


def _optimizers(context: RunContext) -> tuple[OptimizerCall, ...]:
    calls = (*(optimizer.call for optimizer in context.torch.looped), *context.torch.unfused)
    return tuple(dict.fromkeys(call for call in calls if call.site is not None))


def _numerics_candidates(context: RunContext) -> list[Candidate]:
    cautions = ("this changes floating-point results: compare the losses",)
    changes = numerics_changes(context)
    return [Candidate(subject, how, None, cautions) for subject, how in changes.items()]


def _ceiling(context: RunContext, feeder: Feeder, others: Sequence[Feeder] = ()) -> Interval | None:
    """Returns the forecast speedup with replayed batches.

    Without waits, the rest of a step may run faster, more so if the thread slept while waiting.
    Workers are idle and no longer compete for cores.
    """
    if feeder.measured is None or feeder.measured.step_s <= 0:
        return None
    waited = feeder.measured.wait_s / feeder.measured.step_s + sum(
        loader.wait_share for loader in others
    )
    share = min(max(waited, 0.0), 0.99)
    if context.is_on_device:
        share = min(share, feeder.exposed * share)
    crowding = None if context.is_on_device or feeder.inputs is None else crowding_of(feeder.inputs)
    crowded = 0.0 if crowding is None else crowding.saved_s / feeder.measured.step_s
    # Without workers, compute is no longer slowed by sharing cores, if that was measured.
    times = times_without(share + crowded)
    asleep = _asleep_share(feeder)
    faster = FASTER_REST + (_FASTER_AFTER_SLEEP - FASTER_REST) * asleep
    rest = 1 - faster * share
    if context.is_on_device:
        # The device's own work stays the same.
        host_share = max(1 - share - (context.summary.device_busy_share or 0.0), 0.0) / (1 - share)
        rest = 1 - FASTER_REST * share * host_share
    return times * (1 - 2 * MODEL_ERROR), times * (1 + MODEL_ERROR) / rest


def _with_starts(steps: Interval | None, starts: float) -> Interval | None:
    """Returns the speedup with epoch starts removed too, from that of steady steps."""
    if steps is None:
        return None
    return steps[0] * (1 + max(starts, 0.0)), steps[1] * (1 + max(starts, 0.0))


def _may_be_waking(context: RunContext, feeder: Feeder) -> bool:
    """Whether the rest of a step, without its wait, may mostly be waking up."""
    if feeder.measured is None or context.is_on_device or _asleep_share(feeder) < _MOSTLY:
        return False
    alone, threads = _WAKING_S
    rest_s = feeder.measured.step_s - feeder.measured.wait_s
    return rest_s < min(alone if context.torch.threads == 1 else threads, feeder.measured.wait_s)


def _asleep_share(feeder: Feeder) -> float:
    """Returns the share of the wait in which the training thread slept."""
    fetch = feeder.loader.fetch
    if feeder.loader.num_workers:
        return 1.0
    if fetch is None or fetch.wall_s is None or fetch.asleep_s is None or fetch.wall_s.mean <= 0:
        return 0.0
    return min(fetch.asleep_s / (fetch.wall_s.mean * fetch.n), 1.0)


def _alone(feeder: Feeder) -> Interval | None:
    """Returns the loader's throughput alone, relative to training's."""
    if feeder.inputs is None or feeder.measured is None:
        return None
    nothing = np.full_like(feeder.inputs.compute_s, 1e-9)
    played = predict(replace(feeder.inputs, compute_s=nothing))
    if not played.step_s.low > 0 or not np.isfinite(played.step_s.high):
        return None
    speedup = played.speedup_over(feeder.measured.step_s)
    is_quick = float(np.mean(feeder.inputs.fetch_s)) < QUICK_BATCH_S
    return speedup.low, speedup.high * (WARM_TIMES if is_quick else 1.0)


def _epoch_batches(feeder: Feeder) -> int | None:
    """Returns batches per epoch of a loader without len(), from epochs that ended."""
    loader = feeder.loader
    if loader.length is not None or not loader.ended_batches:
        return None
    return max(round(fmean(loader.ended_batches)), 1)
