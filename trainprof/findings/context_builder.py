"""Makes a case of what the analysis knows of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.loading.loader_figures import total_s
from trainprof.analysis.machine.free_cores import shared_cpu
from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.pipeline.fit import LoaderModel
from trainprof.analysis.run.metadata import Notes
from trainprof.analysis.statistics.step_noise import half_split_noise
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.analysis.timeline.iterations import EVALUATION, TRAINING
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.findings.loading.waiting import Limits, cause_of, runnable_share
from trainprof.findings.run_context import Case, LoaderCase

_MOST_LOADERS: Final = 4
# A loader that costs less of training is not played through the model, unless its workers are at
# work for so much of it, each waiting for a free core for so much of that.
_LOOKED_AT_FROM_SHARE: Final = 0.03
_CROWDED_FROM_SHARE: Final = 0.1
# Of training, that workers need at least to make all of a loader's batches: one beside it that is
# waited for may hide that.
_HIDDEN_FROM_SHARE: Final = 0.25


def build_case(
    summary: RunSummary,
    *,
    training_s: float,
    training: Mapping[str, float],
    loaders: Sequence[Loader],
    known_of: Callable[[int], LoaderModel | None],
    steps: StepTable,
    checkpoints: Checkpoints,
    settings: Mapping[str, float],
    full_collections: int = 0,
    clips_gradients: bool = False,
    backwards: int = 0,
    torch: TorchSettings | None = None,
    notes: Notes | None = None,
    steps_shares: Mapping[int, float] | None = None,
) -> Case:
    """Returns what the rules look at.

    Args:
        summary: Without findings.
        training_s: Of the training phase.
        training: Seconds per ledger key inside it.
        loaders: As it has them.
        known_of: Returns the pipeline model of a loader, by its id.
        steps: Of the training phase.
        checkpoints: What was saved and loaded in the training phase.
        settings: Thresholds that the user has set, by "rule.name".
        full_collections: How often the garbage collector walked all objects in training.
        clips_gradients: By torch.nn.utils.
        backwards: Runs of the autograd engine in training.
        torch: How it was set, None where nothing is known.
        notes: Of probes that have a rule of their own.
        steps_shares: Of each loader, by its id, as `LoaderCase.steps_share` has it; None: all.
    """
    here = [one for one in loaders if one.thread == "training"]
    on_device = summary.run.is_on_device
    shares, taken = steps_shares or {}, _taken_cores(summary)

    def models_of(number: int) -> LoaderModel | None:
        model = known_of(number)
        if model is None:
            return None
        return replace(model, inputs=replace(model.inputs, taken_cores=taken))

    cases = {
        role: [
            replace(
                _loader_case(one, models_of, training_s, _limits(settings), exposed, on_device),
                steps_share=shares.get(one.id, 1.0),
            )
            for one in _costliest([one for one in here if one.role == role])
        ]
        for role, exposed in (
            (TRAINING, _exposed_share(summary, training, LOADER_KEYS, "loader_s")),
            (EVALUATION, _exposed_share(summary, training, ("evaluation",), "evaluation_s")),
        )
    }
    return Case(
        summary=summary,
        training_s=training_s,
        training=training,
        loaders=loaders,
        feeding=cases[TRAINING],
        evaluating=cases[EVALUATION],
        checkpoints=checkpoints,
        noise=half_split_noise(steps.wall_ns[steps.steady.mask].astype(np.float64)),
        steps=steps,
        settings=settings,
        full_collections=full_collections,
        clips_gradients=clips_gradients,
        backwards=backwards,
        torch=torch or TorchSettings(),
        notes=notes or Notes(),
    )


def _exposed_share(
    summary: RunSummary, training: Mapping[str, float], keys: Sequence[str], cause: str
) -> float:
    """Returns which share of some ledger keys held training up.

    Args:
        summary: Of the run.
        training: Seconds per ledger key inside the training phase.
        keys: Of the ledger.
        cause: What a device is idle for meanwhile.
    """
    if not summary.run.is_on_device:
        return 1.0
    told = [device.idle_because for device in summary.devices or ()]
    waited_s = sum(training.get(key, 0.0) for key in keys)
    if not told or told[0] is None or waited_s <= 0:
        return 0.0
    return min(told[0].get(cause, 0.0) / waited_s, 1.0)


def _taken_cores(summary: RunSummary) -> float:
    """Returns how many of the run's cores other programs kept busy; 0 where it hardly felt that."""
    cpu = shared_cpu(summary.system.cpu) if summary.system else None
    return cpu.others_share * cpu.cores if cpu is not None and cpu.is_disturbed else 0.0


def _limits(settings: Mapping[str, float]) -> Limits:
    waits = [value for name, value in settings.items() if name.endswith(".wait_share")]
    usual = Limits()
    return Limits(
        wait=min([usual.wait, *waits]),
        slow_samples=settings.get("slow_samples.excess_share", usual.slow_samples),
        receive=settings.get("slow_receive.receive_share", usual.receive),
        receive_s=settings.get("slow_receive.receive_s", usual.receive_s),
        collate=settings.get("slow_collate.collate_share", usual.collate),
        sample_by_sample=settings.get("sample_by_sample.wait_share", usual.sample_by_sample),
        cheap_sample_s=settings.get("sample_by_sample.sample_s", usual.cheap_sample_s),
        fair_shares=settings.get("too_few_workers.fair_shares", usual.fair_shares),
    )


def _costliest(loaders: list[Loader]) -> list[Loader]:
    ranked = sorted(loaders, key=lambda one: -(one.wait_total_s + total_s(one.first_batch_s)))
    return ranked[:_MOST_LOADERS]


def _loader_case(
    loader: Loader,
    known_of: Callable[[int], LoaderModel | None],
    training_s: float,
    limits: Limits,
    exposed: float,
    on_device: bool,
) -> LoaderCase:
    unknown = LoaderCase(loader, None, None, None, None, training_s, exposed)
    is_cheap = unknown.cost_s < _LOOKED_AT_FROM_SHARE * training_s
    if is_cheap and not (_may_crowd(loader, training_s) or _may_be_hidden(loader, training_s)):
        return unknown
    model = known_of(loader.id)
    if model is None:
        return unknown
    felt = exposed if on_device else None
    cause = cause_of(loader, model.inputs, model.now, unknown.wait_share, limits, felt=felt)
    return replace(
        unknown, inputs=model.inputs, measured=model.measured, now=model.now, cause=cause
    )


def _may_crowd(loader: Loader, training_s: float) -> bool:
    """Whether workers may take cores that training computes on."""
    fetch, least = loader.fetch, _CROWDED_FROM_SHARE
    if not loader.num_workers or fetch is None:
        return False
    return (fetch.running_s or 0.0) >= least * training_s and runnable_share(fetch) >= least


def _may_be_hidden(loader: Loader, training_s: float) -> bool:
    """Whether training may wait for it as soon as it waits for no other loader."""
    fetch, workers = loader.fetch, loader.num_workers
    if loader.role != TRAINING or not workers or fetch is None or fetch.wall_s is None:
        return False
    return fetch.wall_s.mean * fetch.n / workers >= _HIDDEN_FROM_SHARE * training_s
