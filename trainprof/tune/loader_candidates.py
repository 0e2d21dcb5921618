"""Proposes loader settings, for all loaders that training waits for in one trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.pipeline.bounds import Setting
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.findings.loading.loader_cautions import (
    NEW_PYTHON,
    cautions_of,
    needed_first,
    shards_of,
)
from trainprof.findings.loading.loader_change import with_workers
from trainprof.findings.loading.waiting import TRIED_PREFETCH, TRIED_WORKERS, fewest_of
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.tune_support import (
    copied_share,
    keeps_multiplicity,
    may_be_kept,
    may_have_ahead,
    may_have_workers,
    pageable_loaders,
    restart_share,
    waited_for,
)
from trainprof.tune.candidate import Candidate, Interval, up_to
from trainprof.tune.loader_forecast import (
    LoaderForecast,
    Modelled,
    modelled,
    on_the_cores,
)

WORKERS: Final = "workers"
PERSISTENT: Final = "persistent_workers"
PREFETCHING: Final = "prefetching"
_WORKERS_TRIED_AT_MOST: Final = 2
_MORE_THAN_ONE: Final = 2  # a number of workers that share open files


def loader_changes(
    context: RunContext, free_step_s: float | None, starts: float
) -> list[Candidate]:
    """Returns the loader changes to try; arguments as in `plan`."""
    waited = waited_for(context)
    loaders = modelled(waited)
    candidates: list[Candidate] = []
    if loaders:
        # The step time without waits only helps if the model covers all loaders.
        is_whole = len(loaders) == len(waited)
        forecast = LoaderForecast(context, loaders, free_step_s if is_whole else None)
        candidates += _worker_candidates(loaders, forecast)
        candidates += _prefetch_candidates(loaders, forecast)
    return [*candidates, *_persistence_candidates(context, starts), *_pinning_candidates(context)]


def left_out(context: RunContext) -> tuple[str, ...]:
    """Returns why more workers are not tried: they would change training."""
    notes = []
    for feeder in waited_for(context):
        first = needed_first(feeder.loader, {"num_workers": _MORE_THAN_ONE})
        shards = shards_of(feeder)
        if not keeps_multiplicity(feeder):
            notes.append(
                f"{feeder.loader.site}: other numbers of workers were not tried. Its "
                "IterableDataset must shard by get_worker_info() first, or workers repeat samples"
            )
        elif first:
            notes.append(f"{feeder.loader.site}: more workers were not tried. First: {first[0]}")
        elif shards is not None and (feeder.loader.num_workers or 0) >= shards:
            notes.append(f"{feeder.loader.site}: more workers than shards ({shards}) are no use")
    return tuple(notes)


def steps_per_batch(context: RunContext) -> float:
    """Returns optimizer steps per batch of the feeding loader."""
    training = context.summary.training
    return training.steps / training.iterations if training.iterations else 1.0


def steps_of_epoch(context: RunContext) -> float | None:
    """Returns the steps of the longest epoch that trials should see end; None without any.

    Needs a run that saw an epoch end, and the work after it, such as evaluation. For a loader
    without len(), an upper bound.
    """
    steps = []
    for feeder in waited_for(context):
        loader = feeder.loader
        if loader.passes < 2:
            continue
        batches = loader.length or loader.iterations / (loader.passes - 1)
        if _needs_next_start(feeder, batches):
            steps.append(batches * steps_per_batch(context))
    return max(steps, default=None)


def _needs_next_start(feeder: Feeder, batches: float) -> bool:
    """Whether epoch starts slow training visibly, so that a second one must be measured."""
    loader = feeder.loader
    if not loader.num_workers:
        # With len() the first start is enough.
        return not loader.length
    if loader.persistent_workers or feeder.measured is None:
        return False
    return feeder.starts_s / max(loader.passes, 1) >= LEAST_GAIN * batches * feeder.measured.step_s


def _worker_candidates(loaders: Sequence[Modelled], forecast: LoaderForecast) -> list[Candidate]:
    """Proposes the fewest workers that are nearly as fast as any, and the next larger number."""
    wanted = [_fewest_workers(k, loaders, forecast) for k in range(len(loaders))]
    candidates: list[Candidate] = []
    for more in range(_WORKERS_TRIED_AT_MOST):
        chosen = [
            settings[min(more, len(settings) - 1)] if settings else loader.inputs.setting
            for loader, settings in zip(loaders, wanted, strict=True)
        ]
        chosen = _alike_by_line(loaders, on_the_cores(loaders, chosen))
        speed = forecast.speedup(chosen)
        changed = [
            (loader, setting)
            for loader, setting in zip(loaders, chosen, strict=True)
            if setting != loader.inputs.setting
        ]
        if speed is None or not changed:
            continue
        changes = {
            loader.feeder.loader.site: with_workers(loader.feeder, x) for loader, x in changed
        }
        cautions = [
            caution
            for loader, x in changed
            for caution in cautions_of(loader.feeder, with_workers(loader.feeder, x))
        ]
        candidate = Candidate(
            WORKERS,
            _by_line(changes),
            (speed.low, speed.high),
            cautions=tuple(dict.fromkeys(cautions)),
            sites=tuple(changes),
        )
        if all(candidate.overrides != known.overrides for known in candidates):
            candidates.append(candidate)
    return candidates


def _fewest_workers(
    index: int, loaders: Sequence[Modelled], forecast: LoaderForecast
) -> list[Setting]:
    """Returns settings of a loader with the fewest workers that suffice, and with more.

    [] if its own number is as good, while the other loaders have the most workers of use.
    """
    others = [_most(loader) for loader in loaders]
    tried = _settings(loaders[index])
    if not tried:
        return []

    def batch_s(setting: Setting) -> float:
        return forecast.batch_s(index, [*others[:index], setting, *others[index + 1 :]])

    forecasts_s = [batch_s(setting) for setting in tried]
    first = fewest_of(forecasts_s)
    if len(loaders) > 1 and forecasts_s[first] > (1 - LEAST_GAIN) * batch_s(
        loaders[index].inputs.setting
    ):
        return []
    return tried[first:]


def _settings(modelled: Modelled) -> list[Setting]:
    loader, now = modelled.feeder.loader, modelled.feeder.loader.num_workers or 0
    # Existing workers keep their persistence: one change at a time.
    stays = bool(loader.persistent_workers) if now else loader.may_keep_workers
    return [
        replace(modelled.inputs.setting, workers=workers, is_persistent=stays and workers > 0)
        for workers in (0, *TRIED_WORKERS)
        if may_have_workers(modelled.feeder, workers)
    ]


def _most(loader: Modelled) -> Setting:
    return max([loader.inputs.setting, *_settings(loader)], key=lambda setting: setting.workers)


def _alike_by_line(loaders: Sequence[Modelled], chosen: Sequence[Setting]) -> list[Setting]:
    """Returns the settings with one per line: loaders of the same line cannot be set apart."""
    by_line: dict[str, Setting] = {}
    for value, setting in zip(loaders, chosen, strict=True):
        known = by_line.get(value.feeder.loader.site)
        if known is None or setting.workers > known.workers:
            by_line[value.feeder.loader.site] = setting
    return [by_line[value.feeder.loader.site] for value in loaders]


def _by_line(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns overrides; with several lines, values that differ are by line."""
    if len(changes) == 1:
        return dict(next(iter(changes.values())))
    overrides: dict[str, Any] = {}
    for name in dict.fromkeys(name for change in changes.values() for name in change):
        by_line = {site: change[name] for site, change in changes.items() if name in change}
        is_alike = len(by_line) == len(changes) and all(value is True for value in by_line.values())
        overrides[name] = True if is_alike else by_line
    return overrides


def _prefetch_candidates(loaders: Sequence[Modelled], forecast: LoaderForecast) -> list[Candidate]:
    """Proposes a larger prefetch_factor, which helps if some batches are far slower."""
    now = forecast.speedup([loader.inputs.setting for loader in loaders])
    for factor in TRIED_PREFETCH:
        changed = [loader for loader in loaders if may_have_ahead(loader.feeder, factor)]
        settings = [
            replace(loader.inputs.setting, prefetch=factor)
            if loader in changed
            else loader.inputs.setting
            for loader in loaders
        ]
        speed = forecast.speedup(settings) if changed else None
        if speed is None or now is None:
            continue
        if speed.mid >= (1 + LEAST_GAIN) * max(now.mid, 1.0):
            return [
                Candidate(
                    PREFETCHING,
                    {"prefetch_factor": factor},
                    (speed.low, speed.high),
                    sites=_lines([loader.feeder for loader in changed]),
                )
            ]
    return []


def _persistence_candidates(context: RunContext, starts: float) -> list[Candidate]:
    """Proposes persistent workers, or a faster start method."""
    share = sum(restart_share(context, feeder) for feeder in context.feeding)
    # A trial that was cut short stands for a run with more epochs.
    times = 1.0
    if share > 0 and context.summary.run.exit.was_limited:
        times = max(starts / (1 + starts) / share, 1.0)

    def predicted(chosen: Sequence[Feeder]) -> Interval:
        return up_to(times * sum(restart_share(context, feeder) for feeder in chosen))

    restarting = [
        feeder for feeder in context.feeding if restart_share(context, feeder) >= LEAST_GAIN
    ]
    kept = [feeder for feeder in restarting if may_be_kept(context, feeder)]
    candidates = []
    if kept:
        persistent = {PERSISTENT: True}
        cautions = tuple(
            dict.fromkeys(caution for feeder in kept for caution in cautions_of(feeder, persistent))
        )
        candidates.append(
            Candidate("restarts", persistent, predicted(kept), cautions, _lines(kept))
        )
    spawned = [x for x in restarting if x.loader.start_method in NEW_PYTHON]
    if spawned and not context.is_on_device:
        overrides = {"multiprocessing_context": "fork"}
        caution = "a lock that another thread holds during fork stays locked in the worker"
        forked = predicted(spawned)
        candidates.append(
            Candidate("start of workers", overrides, forked, (caution,), _lines(spawned))
        )
    return candidates


def _pinning_candidates(context: RunContext) -> list[Candidate]:
    pageable = pageable_loaders(context)
    if not pageable:
        return []
    predicted = up_to(copied_share(context))
    return [Candidate("pinned memory", {"pin_memory": True}, predicted, sites=_lines(pageable))]


def _lines(feeding: Sequence[Feeder]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(feeder.loader.site for feeder in feeding))
