"""Which settings of loaders are worth trying: of all that training waits for, in one trial."""

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
from trainprof.findings.loading.loader_forecast import (
    LoaderForecast,
    Modelled,
    modelled,
    on_the_cores,
)
from trainprof.findings.loading.waiting import (
    TRIED_PREFETCH,
    TRIED_WORKERS,
    fewest_of,
)
from trainprof.findings.run_context import Feed, RunContext
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

WORKERS: Final = "workers"
KEPT: Final = "persistent_workers"
PREFETCHING: Final = "prefetching"
_WORKERS_TRIED_AT_MOST: Final = 2
# As many workers share a file.
_MORE_THAN_ONE: Final = 2


def of_loaders(case: RunContext, free_step_s: float | None, starts: float) -> list[Candidate]:
    """Returns the changes of loaders that are worth trying.

    Args:
        case: The run.
        free_step_s: What a step takes when it waits for no loader, None where it is not known.
        starts: What starts of passes add to steady steps, as a share of them.
    """
    waited = waited_for(case)
    loaders = modelled(waited)
    found: list[Candidate] = []
    if loaders:
        # A step that waits for none of them says nothing where the model does not know them all.
        is_whole = len(loaders) == len(waited)
        forecast = LoaderForecast(case, loaders, free_step_s if is_whole else None)
        found += _of_workers(loaders, forecast)
        found += _of_prefetch(loaders, forecast)
    return [*found, *_of_persistence(case, starts), *_of_pinning(case)]


def left_out(case: RunContext) -> tuple[str, ...]:
    """Returns why more workers are not tried: training would be another."""
    told = []
    for fed in waited_for(case):
        first = needed_first(fed.loader, {"num_workers": _MORE_THAN_ONE})
        shards = shards_of(fed)
        if not keeps_multiplicity(fed):
            told.append(
                f"{fed.loader.site}: no other number of workers is tried: each would give all of "
                "its IterableDataset, unless that asks get_worker_info()"
            )
        elif first:
            told.append(f"{fed.loader.site}: more workers are not tried: first {first[0]}")
        elif shards is not None and (fed.loader.num_workers or 0) >= shards:
            told.append(f"{fed.loader.site}: more workers are not tried: {shards} shard(s)")
    return tuple(told)


def steps_per_batch(case: RunContext) -> float:
    """Returns how many updates there are for each batch of the feeding loader."""
    training = case.summary.training
    return training.steps / training.iterations if training.iterations else 1.0


def steps_of_a_pass(case: RunContext) -> float | None:
    """Returns the steps of the longest pass whose end trials are to see; None without any.

    From a run that saw one end: what comes between passes (evaluation, say) nobody knows else. Of a
    loader without a length, no more than so many.
    """
    found = []
    for fed in waited_for(case):
        loader = fed.loader
        if loader.passes < 2:
            continue
        batches = loader.length or loader.iterations / (loader.passes - 1)
        if _next_start_tells(fed, batches):
            found.append(batches * steps_per_batch(case))
    return max(found, default=None)


def _next_start_tells(fed: Feed, batches: float) -> bool:
    """Whether training is visibly slower for starts of passes, or may be with workers.

    Args:
        batches: Of a pass.
    """
    loader = fed.loader
    if not loader.num_workers:
        # Of one that has a length the first start alone tells.
        return not loader.length
    if loader.persistent_workers or fed.measured is None:
        return False
    return fed.starts_s / max(loader.passes, 1) >= LEAST_GAIN * batches * fed.measured.step_s


def _of_workers(loaders: Sequence[Modelled], forecast: LoaderForecast) -> list[Candidate]:
    """Returns the fewest workers that do nearly as well as any, and the next more."""
    wanted = [_fewest_workers(k, loaders, forecast) for k in range(len(loaders))]
    found: list[Candidate] = []
    for more in range(_WORKERS_TRIED_AT_MOST):
        chosen = [
            settings[min(more, len(settings) - 1)] if settings else one.inputs.setting
            for one, settings in zip(loaders, wanted, strict=True)
        ]
        chosen = _alike_by_line(loaders, on_the_cores(loaders, chosen))
        speed = forecast.speedup(chosen)
        changed = [
            (one, setting)
            for one, setting in zip(loaders, chosen, strict=True)
            if setting != one.inputs.setting
        ]
        if speed is None or not changed:
            continue
        changes = {one.feed.loader.site: with_workers(one.feed, x) for one, x in changed}
        cautions = [
            said for one, x in changed for said in cautions_of(one.feed, with_workers(one.feed, x))
        ]
        candidate = Candidate(
            WORKERS,
            _by_line(changes),
            (speed.low, speed.high),
            cautions=tuple(dict.fromkeys(cautions)),
            sites=tuple(changes),
        )
        if all(candidate.overrides != known.overrides for known in found):
            found.append(candidate)
    return found


def _fewest_workers(
    index: int, loaders: Sequence[Modelled], forecast: LoaderForecast
) -> list[Setting]:
    """Returns settings of a loader with the fewest workers that will do, and with more.

    None where those that it has are as good, beside others that have as many as can help them.
    """
    beside = [_most(one) for one in loaders]
    tried = _settings(loaders[index])
    if not tried:
        return []

    def batch_s(setting: Setting) -> float:
        return forecast.batch_s(index, [*beside[:index], setting, *beside[index + 1 :]])

    found = [batch_s(setting) for setting in tried]
    first = fewest_of(found)
    if len(loaders) > 1 and found[first] > (1 - LEAST_GAIN) * batch_s(
        loaders[index].inputs.setting
    ):
        return []
    return tried[first:]


def _settings(one: Modelled) -> list[Setting]:
    """Returns a loader's setting with every other number of workers that may be worth trying."""
    loader, now = one.feed.loader, one.feed.loader.num_workers or 0
    # Workers that are there already stay as they are from pass to pass: one change at a time.
    stays = bool(loader.persistent_workers) if now else loader.may_keep_workers
    return [
        replace(one.inputs.setting, workers=workers, is_persistent=stays and workers > 0)
        for workers in (0, *TRIED_WORKERS)
        if may_have_workers(one.feed, workers)
    ]


def _most(one: Modelled) -> Setting:
    """Returns a loader's setting with as many workers as may be worth trying."""
    return max([one.inputs.setting, *_settings(one)], key=lambda setting: setting.workers)


def _alike_by_line(loaders: Sequence[Modelled], chosen: Sequence[Setting]) -> list[Setting]:
    """Returns the settings with one for each line: what it builds cannot be told apart."""
    by_line: dict[str, Setting] = {}
    for one, setting in zip(loaders, chosen, strict=True):
        known = by_line.get(one.feed.loader.site)
        if known is None or setting.workers > known.workers:
            by_line[one.feed.loader.site] = setting
    return [by_line[one.feed.loader.site] for one in loaders]


def _by_line(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns overrides: of several lines the workers, and what is not alike for all, by line.

    Args:
        changes: Arguments by line.
    """
    if len(changes) == 1:
        return dict(next(iter(changes.values())))
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for change in changes.values() for name in change):
        by_line = {site: change[name] for site, change in changes.items() if name in change}
        is_alike = len(by_line) == len(changes) and all(one is True for one in by_line.values())
        found[name] = True if is_alike else by_line
    return found


def _of_prefetch(loaders: Sequence[Modelled], forecast: LoaderForecast) -> list[Candidate]:
    """More batches ahead: what helps where some take far longer than others."""
    now = forecast.speedup([one.inputs.setting for one in loaders])
    for factor in TRIED_PREFETCH:
        changed = [one for one in loaders if may_have_ahead(one.feed, factor)]
        settings = [
            replace(one.inputs.setting, prefetch=factor) if one in changed else one.inputs.setting
            for one in loaders
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
                    sites=_lines([one.feed for one in changed]),
                )
            ]
    return []


def _of_persistence(case: RunContext, starts: float) -> list[Candidate]:
    """Workers that live on from pass to pass, or start in a shorter way."""
    of_training = sum(restart_share(case, fed) for fed in case.feeding)
    # A trial that is ended stands for a run that goes on, pass after pass.
    times = 1.0
    if of_training > 0 and case.summary.run.exit.was_limited:
        times = max(starts / (1 + starts) / of_training, 1.0)

    def predicted(chosen: Sequence[Feed]) -> Interval:
        return up_to(times * sum(restart_share(case, fed) for fed in chosen))

    restarting = [fed for fed in case.feeding if restart_share(case, fed) >= LEAST_GAIN]
    kept = [fed for fed in restarting if may_be_kept(case, fed)]
    found = []
    if kept:
        persistent = {KEPT: True}
        cautions = tuple(
            dict.fromkeys(said for fed in kept for said in cautions_of(fed, persistent))
        )
        found.append(Candidate("restarts", persistent, predicted(kept), cautions, _lines(kept)))
    spawned = [x for x in restarting if x.loader.start_method in NEW_PYTHON]
    if spawned and not case.is_on_device:
        overrides = {"multiprocessing_context": "fork"}
        caution = "workers are forked: a lock that a thread of yours holds then stays locked there"
        forked = predicted(spawned)
        found.append(Candidate("start of workers", overrides, forked, (caution,), _lines(spawned)))
    return found


def _of_pinning(case: RunContext) -> list[Candidate]:
    """Pinned memory for what is copied to a device."""
    pageable = pageable_loaders(case)
    if not pageable:
        return []
    predicted = up_to(copied_share(case))
    return [Candidate("pinned memory", {"pin_memory": True}, predicted, sites=_lines(pageable))]


def _lines(feeding: Sequence[Feed]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fed.loader.site for fed in feeding))
