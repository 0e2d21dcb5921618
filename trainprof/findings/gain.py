"""The gain of a change, in training steps and in the whole run, and the finding with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainprof.analysis.pipeline.bounds import (
    Interval,
    PipelineInputs,
    Prediction,
    Setting,
    predict,
)
from trainprof.analysis.run.metadata import share_in
from trainprof.analysis.summary.finding import (
    IN_NOISE,
    LIKELY,
    LITTLE,
    MAY_LOSE,
    Finding,
    PassedOver,
    is_unsure,
    may_lose,
)
from trainprof.analysis.summary.levels import LEAST_GAIN, MANY_STEPS, percent
from trainprof.analysis.timeline.iterations import TRAINING

if TYPE_CHECKING:
    from trainprof.findings.rule import Rule
    from trainprof.findings.run_context import Feeder, RunContext
    from trainprof.record.notes import UnusedGradients

# The rest of the host's work may get faster without the waits (caches, clock rates), by this part
# of the share that goes. Measured on small CPU runs, and on an H200 whose host decoded pictures
# between steps: the ceiling was 12.4x (10.2 to 15.1), without this 8.8x.
FASTER_REST: Final = 0.25
# No gain is larger: the removed share of the time is at most this.
_MOST_REMOVED: Final = 0.99
_COMPARED: Final = "run again with the change, then: trainprof compare BASE OTHER"
# Share of their time saved by freezing parameters (low, likely, high): of operators that serve only
# such gradients, and of those that also compute used ones (torch 2.13 on one core).
_UNUSED_SAVES: Final = (0.9, 1.0, 1.1)
_MIXED_SAVES: Final = (0.3, 0.45, 0.55)
# A gain has to be this many times the difference of the run's halves.
NOISE_TIMES: Final = 2.0
# A change that may be slower needs a larger gain.
_UNSURE_GAIN: Final = 0.1
# A cause that does not rest on timings is reported from this gain on, whatever their noise.
_CERTAIN_GAIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Gain:
    """Speedups of a change, low and high.

    Attributes:
        training: Of training's steps, or of all training.
        run: Of the whole run.
        likely: As `training`: most likely, or at most.
        saved_s: Of the whole run: most likely, or at most.
        is_at_most: Only an upper bound is known.
        of_steps: `training` and `likely` are of steps, without evaluation and the like.
    """

    training: tuple[float, float]
    run: tuple[float, float]
    likely: float
    saved_s: float
    is_at_most: bool
    of_steps: bool


def setting_gain(
    context: RunContext,
    feeder: Feeder,
    setting: Setting,
    prediction: Prediction,
) -> Gain | None:
    """Returns the gain of another loader setting, as the pipeline model predicts it."""
    if feeder.inputs is None or feeder.measured is None:
        return None
    steps = prediction.speedup_over(feeder.measured.step_s)
    batches, (epochs, now_starts_s) = feeder.loader.iterations, feeder.recorded_starts
    starting = start_of_workers(feeder.inputs, setting)
    later = starting
    if setting.is_persistent:
        pairs = zip(prediction.reset_s.ends(), prediction.first_batch_s.ends(), strict=True)
        later = Interval(*(reset + first for reset, first in pairs))
    # Each of several loaders starts its own workers.
    firsts = epochs - feeder.loader.later_passes if feeder.loader.is_of_several else 1
    starts_s = [
        firsts * end + (epochs - firsts) * other
        for end, other in zip(starting.ends(), later.ends(), strict=True)
    ]
    # The recorded batches may have had longer waits than the rest of the run.
    waited_s = feeder.loader.wait_total_s + feeder.loader.made_first_s
    recorded_s = batches * feeder.measured.wait_s
    alike = min(waited_s / recorded_s, 1.0) if recorded_s > 0 else 1.0
    wall_s = context.wall_s
    run_s = [
        wall_s
        - alike * batches * feeder.measured.step_s * (1 - 1 / times)
        - (now_starts_s - start_s)
        for times, start_s in zip(reversed(steps.ends()), starts_s, strict=True)
    ]
    best, likely, worst = (wall_s / max(s, (1 - _MOST_REMOVED) * wall_s) for s in run_s)
    # A longer queue does not delay a batch.
    is_safe = replace(setting, prefetch=feeder.inputs.setting.prefetch) == feeder.inputs.setting
    least = 1.0 if is_safe else 0.0
    gain = Gain(
        training=(
            feeder.speedup_of_all_steps(max(steps.low, min(least, steps.mid))),
            _of_its_steps(context, feeder, steps.high, feeder.wait_share / feeder.steps_share),
        ),
        run=(max(min(worst, likely), min(least, likely)), max(best, likely)),
        likely=feeder.speedup_of_all_steps(steps.mid),
        saved_s=wall_s - wall_s / likely,
        is_at_most=False,
        of_steps=True,
    )
    return limited_by_device(context, feeder, gain)


def start_of_workers(inputs: PipelineInputs, setting: Setting) -> Interval:
    """Returns what starting an epoch costs with new workers: each start, and a first batch."""
    first = predict(inputs, replace(setting, is_persistent=False)).first_batch_s
    pairs = zip(first.ends(), inputs.spawn_s.ends(), strict=True)
    return Interval(*(pair + setting.workers * spawn for pair, spawn in pairs))


def faster_steps_gain(context: RunContext, speedup: Interval, wait_share: float) -> Interval:
    """Returns what training's steps gain of the model's speed-up, without a share of waits."""
    high = _with_faster_rest(context, speedup.high, wait_share)
    if not context.is_on_device:
        return replace(speedup, high=high)
    most = _without_waits(context, context.idle_s("loader_s") or 0.0)
    low, mid = (min(x, most.likely) for x in (speedup.low, speedup.mid))
    return Interval(low, mid, min(high, most.training[1]))


def inputs_gain(context: RunContext, feeder: Feeder, changed: PipelineInputs) -> Gain | None:
    """Returns the gain of a loader with changed inputs, at most."""
    if feeder.now is None or feeder.measured is None:
        return None
    pairs = zip(feeder.now.step_s.ends(), predict(changed).step_s.ends(), strict=True)
    # Both from one scenario: what is unknown about the run is in both.
    kept = min((then / now for now, then in pairs if now > 0), default=1.0)
    return batches_gain(context, feeder, (1 - kept) * feeder.measured.step_s)


def batches_gain(context: RunContext, feeder: Feeder, saved_s: float) -> Gain | None:
    """Returns the gain if each batch of a loader took `saved_s` less, at most."""
    assert feeder.measured is not None
    step_s = feeder.measured.step_s
    if not np.isfinite(saved_s) or step_s <= 0:
        return None
    kept_s = max(step_s - max(saved_s, 0.0), (1 - _MOST_REMOVED) * step_s)
    all_s = feeder.loader.iterations * (step_s - kept_s)
    run = context.wall_s / max(context.wall_s - all_s, (1 - _MOST_REMOVED) * context.wall_s)
    times = step_s / kept_s
    most = _of_its_steps(context, feeder, times, 1 - kept_s / step_s)
    likely = feeder.speedup_of_all_steps(times)
    gain = Gain((1.0, most), (1.0, run), likely, all_s, is_at_most=True, of_steps=True)
    return limited_by_device(context, feeder, gain)


def python_gain(context: RunContext, seconds: float, *, with_warmup: bool = True) -> Gain | None:
    """Returns the gain without some of the training thread's work in steps, at most.

    Workers have to keep up: their loader is simulated with shorter steps.

    Args:
        seconds: Of the training phase.
        with_warmup: As in `outside_steps`, on a GPU.
    """
    feeder = context.feeding[0] if context.feeding else None
    if context.is_on_device:
        return outside_steps(context, seconds, with_warmup=with_warmup)
    if feeder is None or not feeder.loader.num_workers:
        return outside_steps(context, seconds)
    # With several loaders, how much lies in the steps of one is unknown.
    if feeder.inputs is None or feeder.now is None or feeder.steps_share < 1:
        return outside_steps(context, seconds)
    batches = max(feeder.loader.iterations, 1)
    mean_s = float(feeder.inputs.compute_s.mean())
    kept = max(1 - seconds / batches / mean_s, 1 - _MOST_REMOVED) if mean_s > 0 else 1.0
    shorter = replace(feeder.inputs, compute_s=feeder.inputs.compute_s * kept)
    best = predict(shorter)
    return batches_gain(context, feeder, feeder.now.step_s.mid - best.step_s.mid)


def sampled_gain(context: RunContext, seconds: float, met: int, samples: int) -> Gain | None:
    """Returns `python_gain` of what `met` of `samples` stack samples show, with their error."""
    gain = python_gain(context, seconds)
    if gain is None or met <= 0:
        return gain
    error = float(np.sqrt(max(1 - met / max(samples, 1), 0.0) / met))
    most = python_gain(context, seconds * (1 + error))
    if most is None:
        return gain
    return replace(gain, training=(gain.training[0], most.training[1]), run=(1.0, most.run[1]))


def times_without(share: float) -> float:
    """Returns the speedup without a share of the time."""
    return 1 / max(1 - share, 1 - _MOST_REMOVED)


def outside_steps(context: RunContext, seconds: float, *, with_warmup: bool = False) -> Gain:
    """Returns the gain without some seconds of training, at most.

    Args:
        seconds: Of training.
        with_warmup: They may lie in its warm-up, or are compilation; else they come after it.
    """
    whole_s = context.training_s if with_warmup else context.settled_s
    kept = max(1 - seconds / whole_s, 1 - _MOST_REMOVED) if whole_s > 0 else 1.0
    of_run = max(1 - seconds / context.wall_s, 1 - _MOST_REMOVED) if context.wall_s > 0 else 1.0
    most = 1 / kept if context.is_on_device else _with_faster_rest(context, 1 / kept, 1 - kept)
    run = (1.0, 1 / of_run)
    return Gain((1.0, most), run, 1 / kept, seconds, is_at_most=True, of_steps=False)


def _with_faster_rest(context: RunContext, speedup: float, share: float) -> float:
    """Returns a speedup with a faster rest, by the share of a step that waits now."""
    works = context.summary.device_busy_share if context.is_on_device else 0.0
    if works is None or speedup <= 0:
        return speedup
    waits, left = min(max(share, 0.0), 1.0), 1 / speedup
    # The GPU's work takes the same time as before.
    of_host = min(1 - waits, max(left - works, 0.0))
    return 1 / (left - FASTER_REST * waits * of_host)


def _of_its_steps(context: RunContext, feeder: Feeder, times: float, waits: float) -> float:
    """Returns the speedup of all steps, at most, from that of a loader's steps.

    Args:
        waits: Share of those steps that is spent waiting now.
    """
    return feeder.speedup_of_all_steps(_with_faster_rest(context, times, waits))


def _without_waits(context: RunContext, seconds: float) -> Gain:
    """Returns the gain if a GPU waited some seconds less for batches, at most."""
    gain = outside_steps(context, seconds)
    most = _with_faster_rest(context, gain.likely, 1 - 1 / gain.likely)
    return replace(gain, training=(gain.training[0], most))


def limited_by_device(context: RunContext, feeder: Feeder, gain: Gain) -> Gain:
    """Returns a gain of faster loading: on a GPU at most its idle time for the loader."""
    if not context.is_on_device:
        return gain
    cause = "loader_s" if feeder.loader.role == TRAINING else "evaluation_s"
    most = _without_waits(context, context.idle_s(cause) or 0.0)
    return replace(
        gain,
        training=(min(gain.training[0], most.likely), min(gain.training[1], most.training[1])),
        run=(min(gain.run[0], most.run[1]), min(gain.run[1], most.run[1])),
        likely=min(gain.likely, most.likely),
        saved_s=min(gain.saved_s, most.saved_s),
    )


def unmeasured_finding(rule: str, title: str, **fields: Any) -> Finding:
    """Returns a finding of unknown gain; `diagnose` adds severity and thresholds.

    Args:
        fields: Other fields of the finding.
    """
    return Finding(
        id=rule,
        severity="",
        title=title,
        recoverable_s=None,
        predicted_speedup=None,
        run_speedup=None,
        is_at_most=False,
        verify=_COMPARED,
        **{"site": None, "change": {}, **fields},
    )


def plain_finding(rule: str, title: str, gain: Gain, **fields: Any) -> Finding:
    """Returns a finding; `diagnose` adds severity and thresholds.

    Args:
        fields: Other fields of the finding.
    """
    evidence = {**fields.pop("evidence", {}), LIKELY: gain.likely}
    return Finding(
        id=rule,
        severity="",
        title=title,
        evidence=evidence,
        recoverable_s=gain.saved_s,
        predicted_speedup=list(gain.training),
        run_speedup=list(gain.run),
        is_at_most=gain.is_at_most,
        of_steps=gain.of_steps,
        verify=_COMPARED,
        **{"site": None, "change": {}, **fields},
    )


def spent_in(context: RunContext, phase: str) -> float:
    """Returns the seconds of training in a phase: the GPU's where it computes the phase."""
    devices = context.summary.devices
    spent = devices[0].seconds if context.is_on_device and devices else context.training
    return spent.get(phase, 0.0)


def needless_finding(
    context: RunContext,
    rule: str,
    least_share: float,
    gradients: Sequence[UnusedGradients],
    title: str,
    **fields: Any,
) -> Finding | None:
    """Returns a finding of unused gradients; None where they cost under `least_share`.

    The gain is an upper bound on a GPU, and where only a part of the run computed them.
    """
    unused, mixed = (
        min(sum(share_in(getattr(note, name)) for note in gradients), 1.0)
        for name in ("unused_share", "mixed_share")
    )
    mixed, backward_s = min(mixed, 1 - unused), spent_in(context, "backward")
    saved_s = [
        (alone * unused + shared * mixed) * backward_s
        for alone, shared in zip(_UNUSED_SAVES, _MIXED_SAVES, strict=True)
    ]
    part = saved_s[1] / context.training_s if context.training_s > 0 else 0.0
    low, likely, high = (python_gain(context, seconds) for seconds in saved_s)
    if part < least_share or low is None or likely is None or high is None:
        return None
    training, run = (low.likely, high.likely), (low.run[1], high.run[1])
    gain = replace(likely, training=training, run=run, is_at_most=False)
    if context.is_on_device or not all(note.from_start for note in gradients):
        gain = outside_steps(context, saved_s[2], with_warmup=True)
    evidence = {"unused_share_of_backward": unused, "mixed_share_of_backward": mixed}
    cost = context.of_step(saved_s[1], "backward")
    if context.is_on_device:
        cost = f"{percent(part)} of {context.summary.time_of_devices}"
    return plain_finding(rule, f"{title}: {cost}", gain, evidence=evidence, **fields)


def least_gain(noise: float) -> float:
    """Returns the gain from which a finding in steady steps is reported."""
    return max(LEAST_GAIN, NOISE_TIMES * noise)


def noise_bar(finding: Finding, rule: Rule, context: RunContext) -> float:
    """Returns the gain above which the run's noise does not hide a finding."""
    if not rule.noise_matters:
        return LEAST_GAIN
    # A change that may be slower has to exceed the noise of whole steps.
    return least_gain(context.noise if is_unsure(finding) else context.noise_of(rule.traits.keys))


def passed_over_for(finding: Finding, rule: Rule, context: RunContext) -> PassedOver | None:
    """Returns why a finding is not reported, None where it is, or its gain is unknown."""
    if finding.recoverable_s is None:
        return None
    gain = float(finding.evidence[LIKELY]) - 1
    if may_lose(finding):
        return PassedOver(finding, MAY_LOSE)
    # Imports are most of a short run, but not of a longer one: training counts.
    of_training = (finding.recoverable_s or 0.0) / max(context.training_s, 1e-9)
    if gain < LEAST_GAIN or of_training < LEAST_GAIN / 2:
        return PassedOver(finding, LITTLE, LEAST_GAIN)
    if rule.noise_matters and is_unsure(finding) and gain < _UNSURE_GAIN:
        return PassedOver(finding, MAY_LOSE, _UNSURE_GAIN)
    bar = noise_bar(finding, rule, context)
    if not rule.by_timing and context.summary.training.steady_steps >= MANY_STEPS:
        bar = min(bar, _CERTAIN_GAIN)
    return None if gain >= bar else PassedOver(finding, IN_NOISE, bar)
