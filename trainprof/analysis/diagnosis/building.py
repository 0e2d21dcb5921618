"""Makes a case of what the analysis knows of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.waiting import Limits, cause_of
from trainprof.analysis.events import Int64
from trainprof.analysis.ledger import LOADER_KEYS
from trainprof.analysis.loader_bounds import LARGEST_DEVIATION, MAX_LOADERS, shortened
from trainprof.analysis.loader_cost import total_s
from trainprof.analysis.passes import EVALUATION, TRAINING
from trainprof.analysis.pipeline import PipelineInputs, measured_rates, predict
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.step_table import StepTable
from trainprof.analysis.summary import Loader, RunSummary

# A loader that costs less of training is not played through the model.
_LOOKED_AT_FROM_SHARE: Final = 0.03


def build_case(
    summary: RunSummary,
    *,
    training_s: float,
    training: Mapping[str, float],
    inputs_of: Callable[[int], PipelineInputs | None],
    steps: StepTable,
    checkpoint_site: str | None,
    settings: Mapping[str, float],
    full_collections: int = 0,
) -> Case:
    """Returns what the rules look at.

    Args:
        summary: Without findings.
        training_s: Of the training phase.
        training: Seconds per ledger key inside it.
        inputs_of: Returns what the recording tells of a loader, by its id.
        steps: Of the training phase.
        checkpoint_site: The line whose checkpoints took longest.
        settings: Thresholds that the user has set, by "rule.name".
        full_collections: How often the garbage collector walked all objects in training.
    """
    here = [one for one in summary.loaders if one.thread == "training"]
    exposed = _exposed_share(summary, training)
    cases = {
        role: [
            _loader_case(one, inputs_of, training_s, _limits(settings), exposed)
            for one in _costliest([one for one in here if one.role == role])
        ]
        for role in (TRAINING, EVALUATION)
    }
    return Case(
        summary=summary,
        training_s=training_s,
        training=training,
        feeding=cases[TRAINING],
        evaluating=cases[EVALUATION],
        checkpoint_site=checkpoint_site,
        noise=half_split_noise(steps.wall_ns[steps.steady.mask]),
        steps=steps,
        settings=settings,
        full_collections=full_collections,
    )


def half_split_noise(steady_ns: Int64) -> float:
    """Returns by how much the halves of the steady steps differ, as a share of their mean."""
    if len(steady_ns) < 2:
        return 0.0
    first, second = np.array_split(steady_ns, 2)
    mean = float(steady_ns.mean())
    return abs(float(first.mean()) - float(second.mean())) / mean if mean > 0 else 0.0


def _exposed_share(summary: RunSummary, training: Mapping[str, float]) -> float:
    """Returns which share of the waits for data held training up."""
    if summary.run.device in (None, "cpu"):
        return 1.0
    told = [device.idle_because for device in summary.devices or ()]
    waited_s = sum(training.get(key, 0.0) for key in LOADER_KEYS)
    if not told or told[0] is None or waited_s <= 0:
        return 0.0
    return min(told[0].get("loader_s", 0.0) / waited_s, 1.0)


def _limits(settings: Mapping[str, float]) -> Limits:
    waits = [value for name, value in settings.items() if name.endswith(".wait_share")]
    usual = Limits()
    return Limits(
        wait=min([usual.wait, *waits]),
        slow_samples=settings.get("slow_samples.excess_share", usual.slow_samples),
        receive=settings.get("slow_receive.receive_share", usual.receive),
        receive_s=settings.get("slow_receive.receive_s", usual.receive_s),
    )


def _costliest(loaders: list[Loader]) -> list[Loader]:
    ranked = sorted(loaders, key=lambda one: -(one.wait_total_s + total_s(one.first_batch_s)))
    return ranked[:MAX_LOADERS]


def _loader_case(
    loader: Loader,
    inputs_of: Callable[[int], PipelineInputs | None],
    training_s: float,
    limits: Limits,
    exposed: float,
) -> LoaderCase:
    unknown = LoaderCase(loader, None, None, None, None, training_s, exposed)
    if unknown.cost_s < _LOOKED_AT_FROM_SHARE * training_s:
        return unknown
    recorded = inputs_of(loader.id)
    if recorded is None or len(recorded.fetch_s) < MIN_STEADY_STEPS:
        return unknown
    inputs = shortened(recorded)
    measured, now = measured_rates(inputs), predict(inputs)
    if measured is None or not 0 < now.step_s.mid < np.inf:
        return unknown
    # A model that is further from what was measured is not one of this run.
    if not 1 / LARGEST_DEVIATION <= measured.step_s / now.step_s.mid <= LARGEST_DEVIATION:
        return unknown
    cause = cause_of(loader, inputs, now, unknown.wait_share, limits)
    return LoaderCase(loader, inputs, measured, now, cause, training_s, exposed)
