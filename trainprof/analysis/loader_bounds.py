"""What keeps the batches of a run's loaders from coming faster, by the pipeline model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.passes import EVALUATION, TRAINING
from trainprof.analysis.pipeline import Bound, PipelineInputs, measured_rates, predict
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.summary import Loader, LoaderBound

# The model plays each batch several times; means of more say no more about what bounds a loader.
MAX_BATCHES: Final = 1_000
MAX_LOADERS: Final = 4
# A model that is further from what was measured is not one of this run.
LARGEST_DEVIATION: Final = 1.5


def with_bounds(
    loaders: list[Loader], inputs_of: Callable[[int], PipelineInputs | None]
) -> list[Loader]:
    """Returns the loaders, those that were waited for most with what bounds them.

    Args:
        loaders: All of the run.
        inputs_of: Returns what the recording tells of a loader, by its id.
    """
    eligible = [
        one
        for one in loaders
        if one.role in (TRAINING, EVALUATION) and one.iterations >= MIN_STEADY_STEPS
    ]
    ranked = sorted(eligible, key=lambda one: (one.role != TRAINING, -one.wait_total_s))
    bounds = {one.id: _bound_of(inputs_of(one.id)) for one in ranked[:MAX_LOADERS]}
    return [replace(one, bound=bounds.get(one.id)) for one in loaders]


def _bound_of(inputs: PipelineInputs | None) -> LoaderBound | None:
    """None where the model does not apply: too few batches, or another pace than was measured."""
    if inputs is None or len(inputs.fetch_s) < MIN_STEADY_STEPS:
        return None
    inputs = shortened(inputs)
    measured = measured_rates(inputs)
    predicted = predict(inputs)
    step_s = predicted.step_s.mid
    if measured is None or not 0 < step_s < np.inf:
        return None
    if not 1 / LARGEST_DEVIATION <= measured.step_s / step_s <= LARGEST_DEVIATION:
        return None
    return _told(predicted.bound, step_s, measured.step_s)


def _told(bound: Bound, step_s: float, measured_step_s: float) -> LoaderBound:
    return LoaderBound(
        by=bound.name,
        margin=float(bound.margin),
        wait_cause=bound.wait_cause,
        parts_s={name: float(seconds) for name, seconds in bound.parts_s.items()},
        limits_s={name: float(seconds) for name, seconds in bound.limits_s.items()},
        step_s=float(step_s),
        measured_step_s=float(measured_step_s),
    )


def shortened(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the last passes of a series, so many as MAX_BATCHES hold, or the start of the last.

    A pass that was cut off stays as long as it was.
    """
    recorded = len(inputs.fetch_s)
    if recorded <= MAX_BATCHES:
        return inputs if inputs.batches <= MAX_BATCHES else replace(inputs, batches=recorded)
    whole = MAX_BATCHES // inputs.batches
    if whole:
        kept = slice(recorded - whole * inputs.batches, recorded)
    else:
        begins = max(recorded - inputs.batches, 0)
        kept = slice(begins, begins + MAX_BATCHES)
    series: dict[str, Any] = {
        one.name: value[kept]
        for one in fields(inputs)
        if isinstance(value := getattr(inputs, one.name), np.ndarray)
    }
    return replace(inputs, batches=min(inputs.batches, MAX_BATCHES), **series)
