"""What keeps the batches of a run's loaders from coming faster, by the pipeline model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.loader_figures import Loader, LoaderBound
from trainprof.analysis.passes import EVALUATION, TRAINING
from trainprof.analysis.pipeline import (
    Bound,
    PipelineInputs,
    Prediction,
    Rates,
    measured_rates,
    predict,
)
from trainprof.analysis.steady import MIN_STEADY_STEPS

# The model plays each batch several times; means of more say no more about what bounds a loader.
MAX_BATCHES: Final = 1_000
MAX_LOADERS: Final = 4
# Of the measured step to the model's.
LARGEST_DEVIATION: Final = 1.5


@dataclass(frozen=True, slots=True)
class LoaderModel:
    """A loader's recording, and the pipeline model of it, which meets the pace that was measured.

    Attributes:
        inputs: What the recording tells, shortened.
        measured: Steps and waits as recorded, in the model's windows.
        now: The model's, of the setting that was recorded.
    """

    inputs: PipelineInputs
    measured: Rates
    now: Prediction


def model_of(recorded: PipelineInputs | None) -> LoaderModel | None:
    """None where the model does not apply: too few batches, or another pace than was measured."""
    if recorded is None or len(recorded.fetch_s) < MIN_STEADY_STEPS:
        return None
    inputs = shortened(recorded)
    measured, now = measured_rates(inputs), predict(inputs)
    if measured is None or not 0 < now.step_s.mid < np.inf:
        return None
    # A model that is further from what was measured is not one of this run.
    if not 1 / LARGEST_DEVIATION <= measured.step_s / now.step_s.mid <= LARGEST_DEVIATION:
        return None
    return LoaderModel(inputs, measured, now)


def with_bounds(
    loaders: list[Loader], known_of: Callable[[int], LoaderModel | None]
) -> list[Loader]:
    """Returns the loaders, those that were waited for most with what bounds them.

    Args:
        loaders: All of the run.
        known_of: Returns the model of a loader, by its id.
    """
    eligible = [
        one
        for one in loaders
        if one.role in (TRAINING, EVALUATION) and one.iterations >= MIN_STEADY_STEPS
    ]
    ranked = sorted(eligible, key=lambda one: (one.role != TRAINING, -one.wait_total_s))
    bounds = {one.id: _bound_of(known_of(one.id)) for one in ranked[:MAX_LOADERS]}
    return [replace(one, bound=bounds.get(one.id)) for one in loaders]


def _bound_of(model: LoaderModel | None) -> LoaderBound | None:
    if model is None:
        return None
    return _told(model.now.bound, model.now.step_s.mid, model.measured.step_s)


def _told(bound: Bound, step_s: float, measured_step_s: float) -> LoaderBound:
    """The model is not exact: where the run went below a limit, what it came to is told for it."""
    return LoaderBound(
        by=bound.name,
        margin=float(bound.margin),
        wait_cause=bound.wait_cause,
        parts_s={name: float(seconds) for name, seconds in bound.parts_s.items()},
        limits_s={name: float(min(s, measured_step_s)) for name, s in bound.limits_s.items()},
        step_s=float(step_s),
        measured_step_s=float(measured_step_s),
    )


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
