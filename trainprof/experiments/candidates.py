"""What is worth trying, and what the model says it will give: said before it is measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import FASTER_REST, of_setting, times_without
from trainprof.analysis.diagnosis.loader_change import cautions_of, with_workers
from trainprof.analysis.diagnosis.waiting import TRIED_WORKERS, fewest_of, most_workers
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.pipeline import (
    MODEL_ERROR,
    PipelineInputs,
    Prediction,
    Setting,
    predict,
)
from trainprof.analysis.tuning import BY_LOOP, BY_STEPS
from trainprof.analysis.verdict import COMPUTE_KEYS
from trainprof.experiments.trial import Trial, name_of

# Of a training step: from which shares on its parts are worth changing something for.
_OPTIMIZER_SHARE: Final = 0.05
_COMPUTE_SHARE: Final = 0.2
_TRANSFER_SHARE: Final = 0.03
# As FASTER_REST, where the thread sleeps in between: with 12 ms of sleep in steps of 21 ms the rest
# took 9 ms, without them 5.4 (benchmarks/scripts/planted_loading.py real and free).
_FASTER_AFTER_SLEEP: Final = 0.6
_WORKERS_TRIED_AT_MOST: Final = 2
_MORE_PREFETCH: Final = (4, 8)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change to try.

    Attributes:
        subject: What it is about: of several candidates about one thing one can be taken.
        overrides: As the trial has them.
        predicted: How many times as fast it will be, by the model; None where none applies.
        measured_by: As TrialSummary has it.
        cautions: What it alters, or needs.
    """

    subject: str
    overrides: Mapping[str, Any]
    predicted: Interval | None
    measured_by: str = BY_STEPS
    cautions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return name_of(self.overrides)

    def promise(self) -> float:
        """Returns by what candidates are ordered: those of which nothing is known come last."""
        return self.predicted[1] if self.predicted is not None else 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a baseline lets expect.

    Attributes:
        sites: The line that builds the loader whose settings are changed: of those that feed
            training the one that costs most. () without any.
        free_sites: The lines of all that feed training and are waited for: `sites` first.
        candidates: To be tried, the most promising first.
        ceiling, alone: The intervals for the two bounds, None where no model applies.
        pass_batches: Of a pass of the feeding loader, None where it tells its length itself.
        steps_per_batch: Updates for each batch of the feeding loader.
        notes: What is left out and why.
    """

    sites: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    ceiling: Interval | None = None
    alone: Interval | None = None
    pass_batches: int | None = None
    free_sites: tuple[str, ...] = ()
    steps_per_batch: float = 1.0
    notes: tuple[str, ...] = ()


def plan(case: Case, *, allow_numerics: bool = False, free_step_s: float | None = None) -> Plan:
    """Returns what is worth trying on a script, by a run of it.

    Args:
        case: Of the run as it is.
        allow_numerics: What changes the numbers may be tried.
        free_step_s: What a step takes with batches that cost nothing, once that is measured: a
            thread that never waits computes faster, and no recording tells by how much.
    """
    fed = case.feeding[0] if case.feeding else None
    waited_for = case.feeding[:1] + [x for x in case.feeding[1:] if x.wait_share >= LEAST_GAIN]
    # With several loaders a step on free data waits for none of them: no setting of one does that.
    is_one = len(waited_for) == 1
    unwaiting = _unwaiting(case, waited_for[0], free_step_s) if is_one else None
    candidates = [
        *(_of_loader(case, fed, unwaiting) if fed is not None else ()),
        *_of_threads(case),
        *_of_optimizer(case),
        *(_of_numerics(case) if allow_numerics else ()),
    ]
    worthwhile = [
        one for one in candidates if one.predicted is None or one.promise() >= 1 + LEAST_GAIN
    ]
    worthwhile.sort(key=lambda one: (-round(one.promise(), 1), one.overrides.get("num_workers", 0)))
    if fed is None:
        return Plan((), tuple(worthwhile))
    return Plan(
        (fed.loader.site,),
        tuple(worthwhile),
        ceiling=_ceiling(case, fed, others=waited_for[1:]),
        alone=_alone(fed),
        pass_batches=_pass_batches(fed),
        free_sites=tuple(dict.fromkeys(one.loader.site for one in waited_for)),
        steps_per_batch=_steps_per_batch(case),
        notes=_left_out(fed),
    )


def together(candidates: Sequence[Candidate]) -> Candidate:
    """Returns several changes as one; what each gives at most is multiplied.

    Args:
        candidates: Of different subjects, two or more.
    """
    overrides = dict(itertools.chain.from_iterable(x.overrides.items() for x in candidates))
    known = [one.predicted for one in candidates if one.predicted is not None]
    by_loop = any(one.measured_by == BY_LOOP for one in candidates)
    return Candidate(
        subject="+".join(one.subject for one in candidates),
        overrides=overrides,
        predicted=(
            # One change may take away what another would have given.
            max(low for low, _ in known),
            math.prod(high for _, high in known),
        )
        if len(known) == len(candidates)
        else None,
        measured_by=BY_LOOP if by_loop else BY_STEPS,
        cautions=tuple(dict.fromkeys(c for one in candidates for c in one.cautions)),
    )


def trial_of(candidate: Candidate, plan: Plan) -> Trial:
    return Trial(
        candidate.name,
        candidate.overrides,
        sites=plan.sites,
        measured_by=candidate.measured_by,
    )


def _unwaiting(case: Case, fed: LoaderCase, free_step_s: float | None) -> PipelineInputs | None:
    """Returns the loader's inputs with computing as fast as it is when nothing is waited for."""
    inputs, per_batch = fed.inputs, _steps_per_batch(case)
    if free_step_s is None or inputs is None or per_batch <= 0:
        return None
    batch_s = free_step_s * per_batch
    mean_s = float(inputs.compute_s.mean())
    if mean_s <= 0:
        return None
    return replace(inputs, compute_s=inputs.compute_s * min(batch_s / mean_s, 1.0))


def _forecast(fed: LoaderCase, setting: Setting, unwaiting: PipelineInputs) -> Interval | None:
    """Returns how many times as fast steps will be in another setting of the loader.

    Where waits remain, computing is as much slower as they are of those that there were.
    """
    assert fed.inputs is not None
    assert fed.measured is not None
    found = predict(fed.inputs, setting)
    now_s, before_s = fed.measured.step_s, fed.measured.wait_s
    fast = predict(unwaiting, setting)
    waits = min(max(fast.wait_s.mid / before_s, 0.0), 1.0) if before_s > 0 else 0.0
    low_s, high_s = (
        one + (other - one) * waits
        for one, other in (
            (fast.step_s.low, found.step_s.low),
            (fast.step_s.high, found.step_s.high),
        )
    )
    if not 0 < low_s <= high_s < np.inf:
        return None
    return now_s / high_s, now_s / low_s


def _of_loader(case: Case, fed: LoaderCase, unwaiting: PipelineInputs | None) -> list[Candidate]:
    found: list[Candidate] = []
    loader = fed.loader
    if fed.inputs is not None and fed.measured is not None and _keeps_multiplicity(fed):
        found += _of_workers(case, fed, unwaiting)
        found += _of_prefetch(case, fed, unwaiting)
    found += _of_persistence(case, fed)
    if case.is_on_device and not loader.pin_memory and _copy_share(case) >= _TRANSFER_SHARE:
        predicted = (1.0, times_without(_copy_share(case)))
        found.append(Candidate("pinned memory", {"pin_memory": True}, predicted))
    return found


def _of_workers(case: Case, fed: LoaderCase, unwaiting: PipelineInputs | None) -> list[Candidate]:
    """Returns the fewest workers that do nearly as well as any, and the next more or fewer."""
    assert fed.inputs is not None
    now, inputs = fed.loader.num_workers or 0, fed.inputs
    passes = max(fed.loader.passes, 1)
    tried: list[tuple[Candidate, Prediction]] = []
    for workers in TRIED_WORKERS:
        if workers == now or workers > max(most_workers(inputs), 1):
            continue
        # Workers that are there already stay as they are from pass to pass: one change at a time.
        stays = bool(fed.loader.persistent_workers) if now else passes > 1
        setting = replace(inputs.setting, workers=workers, is_persistent=stays)
        played = predict(unwaiting or inputs, setting)
        gain = of_setting(case, fed, setting, played)
        if gain is None or not np.isfinite(played.step_s.mid):
            continue
        predicted = gain.training if unwaiting is None else _forecast(fed, setting, unwaiting)
        cautions = tuple(cautions_of(fed, workers))
        candidate = Candidate("workers", with_workers(fed, setting), predicted, cautions=cautions)
        tried.append((candidate, played))
    if not tried:
        return []
    first = fewest_of([played for _, played in tried])
    around = tried[first : first + _WORKERS_TRIED_AT_MOST]
    return [candidate for candidate, _ in around]


def _of_prefetch(case: Case, fed: LoaderCase, unwaiting: PipelineInputs | None) -> list[Candidate]:
    """More batches ahead: what helps where some take far longer than others."""
    assert fed.inputs is not None
    if not fed.loader.num_workers:
        return []
    found = []
    for factor in _MORE_PREFETCH:
        if factor <= (fed.loader.prefetch_factor or 2):
            continue
        setting: Setting = replace(fed.inputs.setting, prefetch=factor)
        gain = of_setting(case, fed, setting, predict(fed.inputs, setting))
        if gain is not None and gain.likely >= 1 + LEAST_GAIN:
            overrides = {"prefetch_factor": factor}
            cautions = (f"{factor} batches of each worker wait in memory",)
            predicted = gain.training if unwaiting is None else _forecast(fed, setting, unwaiting)
            found.append(Candidate("prefetching", overrides, predicted, cautions=cautions))
    return found[:1]


def _of_persistence(case: Case, fed: LoaderCase) -> list[Candidate]:
    loader = fed.loader
    if not loader.num_workers or loader.persistent_workers or loader.passes < 2:
        return []
    later = (loader.passes - 1) / loader.passes
    share = later * fed.starts_s / case.training_s if case.training_s > 0 else 0.0
    if share < LEAST_GAIN:
        return []
    predicted = (1.0, times_without(share))
    found = [Candidate("restarts", {"persistent_workers": True}, predicted, BY_LOOP)]
    if loader.start_method in ("spawn", "forkserver") and not case.is_on_device:
        overrides = {"multiprocessing_context": "fork"}
        caution = "workers are forked: a lock that a thread of yours holds then stays locked there"
        found.append(Candidate("start of workers", overrides, predicted, BY_LOOP, (caution,)))
    return found


def _of_threads(case: Case) -> list[Candidate]:
    """How many threads torch computes with: fewer may be faster where a model is small.

    No model tells what another number gives.
    """
    cores = int(case.cores() or 0)
    if case.is_on_device or cores < 2 or case.share(*COMPUTE_KEYS) < _COMPUTE_SHARE:
        return []
    values = dict.fromkeys((1, max(cores // 2, 1), cores))
    values.pop(case.torch.threads or 0, None)
    caution = "sums are added up in another order: losses may differ in the last digits"
    return [
        Candidate("threads", {"torch_threads": value}, None, cautions=(caution,))
        for value in values
    ]


def _of_optimizer(case: Case) -> list[Candidate]:
    """Parameters all at once: on a CPU torch takes them one by one, unless it is told to."""
    share = case.share("optimizer")
    if share < _OPTIMIZER_SHARE or not (case.is_on_device or case.torch.looped):
        return []
    predicted = (1.0, times_without(share))
    caution = "updates are added up in another order: losses may differ in the last digits"
    ways = ("fused",) if case.is_on_device else ("fused", "foreach")
    return [Candidate("optimizer", {way: True}, predicted, cautions=(caution,)) for way in ways]


def _of_numerics(case: Case) -> list[Candidate]:
    share = case.share(*COMPUTE_KEYS)
    if not case.is_on_device or share < _COMPUTE_SHARE:
        return []
    caution = "changes the numbers: compare the losses"
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("matrix products", {"float32_matmul_precision": "high"}),
        ("convolutions", {"cudnn_benchmark": True}),
    )
    return [Candidate(subject, change, None, cautions=(caution,)) for subject, change in changes]


def _copy_share(case: Case) -> float:
    idle_s = case.idle_s("copy_s")
    return (idle_s or 0.0) / case.training_s if case.training_s > 0 else 0.0


def _steps_per_batch(case: Case) -> float:
    training = case.summary.training
    return training.steps / training.iterations if training.iterations else 1.0


def _left_out(fed: LoaderCase) -> tuple[str, ...]:
    """Returns why no workers are tried where they would change what is trained on."""
    if _keeps_multiplicity(fed):
        return ()
    why = "workers are not tried: its IterableDataset has none now, and each would give all of it"
    return (f"{fed.loader.site}: {why}, unless it asks get_worker_info()",)


def _keeps_multiplicity(fed: LoaderCase) -> bool:
    """Whether other numbers of workers give each sample as often as now."""
    return not fed.loader.is_iterable or bool(fed.loader.num_workers)


def _ceiling(case: Case, fed: LoaderCase, others: Sequence[LoaderCase] = ()) -> Interval | None:
    """Returns what training makes of batches that cost nothing.

    The rest of a step may be what it was, or faster by what waiting between had made it slower:
    by more where the thread slept meanwhile.
    """
    if fed.measured is None or fed.measured.step_s <= 0:
        return None
    waited = fed.measured.wait_s / fed.measured.step_s + sum(one.wait_share for one in others)
    share = min(max(waited, 0.0), 0.99)
    if case.is_on_device:
        share = min(share, fed.exposed * share)
    likely = times_without(share)
    asleep = _asleep_share(fed)
    faster = FASTER_REST + (_FASTER_AFTER_SLEEP - FASTER_REST) * asleep
    rest = 1.0 if case.is_on_device else 1 - faster * share
    return likely * (1 - 2 * MODEL_ERROR), likely * (1 + MODEL_ERROR) / rest


def _asleep_share(fed: LoaderCase) -> float:
    """Returns the share of the wait in which the training thread was on no core."""
    fetch = fed.loader.fetch
    if fed.loader.num_workers:
        return 1.0
    if fetch is None or fetch.wall_s is None or fetch.asleep_s is None or fetch.wall_s.mean <= 0:
        return 0.0
    return min(fetch.asleep_s / (fetch.wall_s.mean * fetch.n), 1.0)


def _alone(fed: LoaderCase) -> Interval | None:
    """Returns how many times as many batches the loader could give as training takes now."""
    if fed.inputs is None or fed.measured is None:
        return None
    nothing = np.full_like(fed.inputs.compute_s, 1e-9)
    played = predict(replace(fed.inputs, compute_s=nothing))
    if not played.step_s.low > 0 or not np.isfinite(played.step_s.high):
        return None
    found = played.speedup_over(fed.measured.step_s)
    return found.low, found.high


def _pass_batches(fed: LoaderCase) -> int | None:
    """Returns the length of a pass where it takes a whole one to know it."""
    loader = fed.loader
    if loader.length is not None or loader.passes < 2:
        return None
    return max(loader.iterations // loader.passes, 1)
