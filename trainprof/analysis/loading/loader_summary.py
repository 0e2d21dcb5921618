"""The loaders of a summary, with the preparation of their batches and what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from trainprof.analysis.loading.batch_preparation import BatchPreparation, batch_preparation
from trainprof.analysis.loading.loaders import loaders_in_loop, loaders_of, trained_samples
from trainprof.analysis.pipeline.bounds import PipelineInputs
from trainprof.analysis.pipeline.fit import LoaderModel, model_of, pipeline_inputs
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.run.metadata import number
from trainprof.analysis.stacks.hot_lines import FetchSamples, fetch_samples
from trainprof.analysis.summary.loader import Loader, LoaderBound
from trainprof.analysis.timeline.iterations import EVALUATION, TRAINING
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS

_LOADERS_MODELLED: Final = 8
MAX_BOUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class LoaderPart:
    """The loaders of a run.

    Attributes:
        in_loop: As the training phase has them, without those that have no epoch in it.
        samples: How many were trained on.
        known_of: Returns the model of a loader, by its id.
        making_of: Stack samples of its workers' fetches, by id of a loader that feeds training.
    """

    loaders: list[Loader]
    in_loop: list[Loader]
    samples: int | None
    known_of: Callable[[int], LoaderModel | None]
    making_of: Mapping[int, FetchSamples]


def loader_part(run: Analysed) -> LoaderPart:
    timeline, making = run.timeline, batch_preparation(run)
    loaders = loaders_of(run, making)
    costliest = sorted(loaders, key=lambda loader: -loader.wait_total_s)[:_LOADERS_MODELLED]
    known = {loader.id: _pipeline_inputs(run, making, loader.id) for loader in costliest}
    samples = trained_samples(timeline, making.fetches, run.metadata)
    known_of = cache(lambda number: model_of(known.get(number)))
    loaders = with_bounds(loaders, known_of)
    in_loop = loaders_in_loop(run, making, loaders)
    making_of = {
        loader.id: fetch_samples(making.fetches, loader.id, making.stack_samples)
        for loader in in_loop
        if loader.num_workers and loader.role == TRAINING
    }
    return LoaderPart(loaders, in_loop, samples, known_of, making_of)


def with_bounds(
    loaders: list[Loader], known_of: Callable[[int], LoaderModel | None]
) -> list[Loader]:
    """Returns all loaders, those that were waited for most with what bounds them."""
    eligible = [
        loader
        for loader in loaders
        if loader.role in (TRAINING, EVALUATION) and loader.iterations >= MIN_STEADY_STEPS
    ]
    ranked = sorted(eligible, key=lambda loader: (loader.role != TRAINING, -loader.wait_total_s))
    bounds = {loader.id: _bound_of(known_of(loader.id)) for loader in ranked[:MAX_BOUNDS]}
    return [replace(loader, bound=bounds.get(loader.id)) for loader in loaders]


def _bound_of(model: LoaderModel | None) -> LoaderBound | None:
    """The model is not exact: a limit that the run went below is the measured step."""
    if model is None:
        return None
    bound, measured_s = model.now.bound, model.measured.step_s
    return LoaderBound(
        by=bound.name,
        wait_cause=bound.wait_cause,
        parts_s=bound.parts_s,
        limits_s={name: min(s, measured_s) for name, s in bound.limits_s.items()},
        step_s=model.now.step_s.mid,
        measured_step_s=measured_s,
    )


def _pipeline_inputs(run: Analysed, making: BatchPreparation, loader: int) -> PipelineInputs | None:
    """None where lines were timed or devices waited for: parts are slowed, and not alike."""
    host = run.recording.section("host")
    cores = run.host.cores.usable or number(host.get("cores"), 0.0)
    if cores <= 0 or run.has_timed_lines() or run.synchronized() is not None:
        return None
    return pipeline_inputs(
        run.timeline,
        making.fetches,
        run.metadata,
        loader,
        cores=cores,
        ranks=run.host.ranks,
        details=making.details,
        samples=making.samples.get(run.process.pid or 0, []),
    )
