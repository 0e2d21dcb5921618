"""Loaders that training asks one after the other in every step: a wait for one hides another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import Gain, of_setting, start_of_workers
from trainprof.analysis.diagnosis.loader_forecast import (
    LoaderForecast,
    Modelled,
    modelled,
    on_the_cores,
)
from trainprof.analysis.diagnosis.waiting import more_workers
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.pipeline import Interval, Setting, predict

# Of what one change gives: from here on it is told what another loader's gives besides.
_MUCH_MORE: Final = 1 + LEAST_GAIN


@dataclass(frozen=True, slots=True)
class SideBySide:
    """More workers for a loader that others are asked beside.

    Attributes:
        setting: Of the loader.
        gain: With it, and with those of the others.
        others: Those that get another setting as well, with it.
        alone: How many times as fast steps would be most likely without those.
    """

    setting: Setting
    gain: Gain
    others: list[tuple[LoaderCase, Setting]]
    alone: float


def side_by_side(case: Case, fed: LoaderCase) -> SideBySide | None:
    """Returns what more workers give a loader among others, and those together.

    The others' settings are told with the first loader that training waits for; of any later one
    it is told what it gives by itself. None where no other is asked in the same steps, or matters.

    Args:
        case: The run.
        fed: The loader, whose cause names a setting.
    """
    among = _among_others(case, fed)
    if among is None:
        return None
    loaders, forecast, own = among
    now = [one.inputs.setting for one in loaders]
    alone = [own, *now[1:]]
    waited_for = (one for one in case.feeding if one.wait_share >= LEAST_GAIN)
    is_first = next(waited_for, None) is fed
    chosen = _chosen(loaders, forecast, own) if is_first else alone
    steps, together = forecast.of_steps(alone), forecast.of_steps(chosen)
    if steps is None or together is None:
        return None
    if together.mid < _MUCH_MORE * steps.mid:
        chosen, together = alone, steps
    changed = [
        (one, setting)
        for one, before, setting in zip(loaders[1:], now[1:], chosen[1:], strict=True)
        if setting != before
    ]
    gain = _gain(case, fed, chosen[0], together, changed)
    if gain is None:
        return None
    others = [(one.fed, setting) for one, setting in changed]
    return SideBySide(chosen[0], gain, others, fed.of_all_steps(steps.mid))


def gain_beside(case: Case, fed: LoaderCase) -> Gain | None:
    """Returns what the setting gives that a loader's cause names, among others as they are.

    None where no other is asked in the same steps, or matters.
    """
    among = _among_others(case, fed)
    if among is None:
        return None
    loaders, forecast, own = among
    steps = forecast.of_steps([own, *(one.inputs.setting for one in loaders[1:])])
    return None if steps is None else _gain(case, fed, own, steps, [])


def _among_others(
    case: Case, fed: LoaderCase
) -> tuple[list[Modelled], LoaderForecast, Setting] | None:
    """Returns a loader, as the first, with those asked beside it, and what its cause names."""
    setting = None if fed.cause is None else fed.cause.setting
    if setting is None or fed.inputs is None or setting == fed.inputs.setting:
        return None
    loaders = modelled([fed, *(one for one in case.feeding if _matters(one, fed))])
    forecast = LoaderForecast(case, loaders, felt=fed.exposed if case.is_on_device else None)
    if not forecast.are_side_by_side or loaders[0].fed is not fed:
        return None
    return loaders, forecast, setting


def _matters(other: LoaderCase, fed: LoaderCase) -> bool:
    """Whether training waits for another loader, or would once it does not wait for this one."""
    if other is fed or other.inputs is None or fed.cause is None or fed.cause.found is None:
        return False
    workers, made_s = other.inputs.setting.workers, float(other.inputs.fetch_s.mean())
    is_hidden = workers > 0 and made_s / workers > fed.cause.found.step_s.mid
    return is_hidden or other.wait_share >= LEAST_GAIN


def _chosen(loaders: Sequence[Modelled], forecast: LoaderForecast, own: Setting) -> list[Setting]:
    """Returns the fewest workers of each that do, were the others never waited for."""
    with_workers = [
        replace(one.inputs.setting, workers=max(one.inputs.setting.workers, 1)) for one in loaders
    ]
    wanted = []
    for index, one in enumerate(loaders):
        inputs = forecast.inputs(index, with_workers)
        more = more_workers(inputs, predict(inputs), stay=one.fed.loader.may_keep_workers)
        otherwise = one.inputs.setting if index else own
        wanted.append(otherwise if more is None else more[0])
    return on_the_cores(loaders, wanted)


def _gain(
    case: Case,
    fed: LoaderCase,
    setting: Setting,
    steps: Interval,
    changed: Sequence[tuple[Modelled, Setting]],
) -> Gain | None:
    assert fed.inputs is not None
    longer_s = 0.0
    for one, other in changed:
        passes, now_s = one.fed.recorded_starts
        started = 1 if other.is_persistent else passes
        longer_s += max(started * start_of_workers(one.inputs, other).mid - now_s, 0.0)
    return of_setting(
        case,
        fed,
        setting,
        predict(fed.inputs, setting),
        steps=steps,
        wait_share=fed.wait_share + sum(one.fed.wait_share for one, _ in changed),
        more_starts_s=longer_s,
    )
