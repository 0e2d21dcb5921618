"""Loaders that training asks one after the other in every step: a wait for one hides another's."""

from __future__ import annotations

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import Gain, of_setting
from trainprof.analysis.diagnosis.loader_forecast import LoaderForecast, modelled
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.pipeline import predict


def gain_beside(case: Case, fed: LoaderCase) -> Gain | None:
    """Returns what the setting gives that a loader's cause names, among others as they are.

    None where no other is asked in the same steps, or matters.
    """
    setting = None if fed.cause is None else fed.cause.setting
    if setting is None or fed.inputs is None or setting == fed.inputs.setting:
        return None
    loaders = modelled([fed, *(one for one in case.feeding if _matters(one, fed))])
    forecast = LoaderForecast(case, loaders, felt=fed.exposed if case.is_on_device else None)
    if not forecast.are_side_by_side or loaders[0].fed is not fed:
        return None
    steps = forecast.of_steps([setting, *(one.inputs.setting for one in loaders[1:])])
    if steps is None:
        return None
    return of_setting(case, fed, setting, predict(fed.inputs, setting), steps=steps)


def _matters(other: LoaderCase, fed: LoaderCase) -> bool:
    """Whether training waits for another loader, or would once it does not wait for this one."""
    if other is fed or other.inputs is None or fed.cause is None or fed.cause.found is None:
        return False
    workers, made_s = other.inputs.setting.workers, float(other.inputs.fetch_s.mean())
    is_hidden = workers > 0 and made_s / workers > fed.cause.found.step_s.mid
    return is_hidden or other.wait_share >= LEAST_GAIN
