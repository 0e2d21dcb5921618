"""What bounds a loader's throughput, and what other settings of it would give.

The recorded fetches and computations are played through torch's pipeline again. What a recording
does not tell is an interval of what it may be, and so the answer is an interval too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.limit_names import (
    BLOCKED,
    COMPUTE,
    CPU,
    LATENCY,
    MAIN_PROCESS,
    RECEIVE,
    SAMPLER,
    STORAGE,
)
from trainprof.analysis.pipeline_bound import Bound, bound_of
from trainprof.analysis.pipeline_contention import with_contention
from trainprof.analysis.pipeline_model import Flow, Pipeline, simulate
from trainprof.analysis.pipeline_rates import (
    Rates,
    filled_window,
    mean_of,
    measured_rates,
    rates_of,
)
from trainprof.analysis.pipeline_scenario import (
    Interval,
    PipelineInputs,
    Scenario,
    Setting,
    pipelines_of,
)

__all__ = [
    "BLOCKED",
    "COMPUTE",
    "CPU",
    "LATENCY",
    "MAIN_PROCESS",
    "RECEIVE",
    "SAMPLER",
    "STORAGE",
    "Bound",
    "Interval",
    "PipelineInputs",
    "Prediction",
    "Rates",
    "Setting",
    "measured_rates",
    "predict",
    "with_contention",
]

# What the model leaves out (wake-ups, the pipe, the feeder thread), of the step:
# benchmarks/pipeline_model.py prints what it is.
MODEL_ERROR: Final = 0.05
_HIGHEST_ERROR: Final = 0.25
# Cores that all have work take longer over each piece of it: caches, hyper-threads, clock rates.
BUSY_CORES_SLOWDOWN: Final = 1.25
_CONTENDED_SHARE: Final = 0.1
# Likewise where nobody has to share one, and they are hardly ever idle.
_BUSY_SHARE: Final = 0.75
# Of a usual batch: a worker's first one that takes so many times as long opens something.
_OPENING_TIMES: Final = 2.0
_OPENING_SHARE: Final = 0.9
_OF_FETCHES: Final = ("fetch_s", "running_s", "runnable_s", "cpu_s", "reading_s")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A setting played through; in s.

    Attributes:
        step_s, wait_s: Of a batch once the pipeline is filled, over whole cycles of the workers.
        pass_wait_s: Of all batches of a pass but its first.
        first_batch_s: The first `next` of a pass.
        reset_s: Resuming workers that live on for another pass, and what they still make of one
            that was left; 0 of others.
        epoch_s: A pass from making the iterator to its end; with persistent workers a later one.
        bound: At the most likely.
        is_steady: A pass is long enough for the pipeline to fill; else means are over all of it.
        guessed: Inputs that the recording does not tell and that this setting depends on.
    """

    setting: Setting
    step_s: Interval
    wait_s: Interval
    pass_wait_s: Interval
    first_batch_s: Interval
    reset_s: Interval
    epoch_s: Interval
    bound: Bound
    is_steady: bool
    guessed: tuple[str, ...]

    @property
    def batches_per_s(self) -> Interval:
        step = self.step_s
        return Interval(1 / step.high, 1 / step.mid, 1 / step.low)

    def speedup_over(self, step_s: float) -> Interval:
        """Returns how many times faster it is than steps of `step_s`; low is the worst."""
        rate = self.batches_per_s
        return Interval(step_s * rate.low, step_s * rate.mid, step_s * rate.high)


def predict(inputs: PipelineInputs, setting: Setting | None = None) -> Prediction:
    """Plays the recorded series through a setting, by default the one it was recorded with.

    Args:
        inputs: With at least one fetch and as many computations.
        setting: What to predict.
    """
    setting = setting or inputs.setting
    if setting.is_persistent and setting.workers and not inputs.setting.is_persistent:
        inputs = _by_workers_that_live_on(inputs)
    mid = _play(inputs, setting, "mid")
    played = {"mid": mid, "low": _play(inputs, setting, "low")}
    is_slowed = mid.contended_share > _CONTENDED_SHARE or mid.busy_share > _BUSY_SHARE
    played["high"] = _play(inputs, setting, "high", BUSY_CORES_SLOWDOWN if is_slowed else 1.0)
    error = min(MODEL_ERROR + mid.sampling_error, _HIGHEST_ERROR)
    slack = error * mid.rates.step_s

    def interval(values: dict[str, float], slack_s: float | None = None) -> Interval:
        least, most = min(values.values()), max(values.values())
        around = (error * least, error * most) if slack_s is None else (slack_s, slack_s)
        return Interval(max(least - around[0], 0.0), values["mid"], most + around[1])

    return Prediction(
        setting=setting,
        step_s=interval({name: x.rates.step_s for name, x in played.items()}),
        wait_s=interval({name: x.rates.wait_s for name, x in played.items()}, slack),
        pass_wait_s=interval({name: x.rates.pass_wait_s for name, x in played.items()}, slack),
        first_batch_s=interval({name: x.first_batch_s for name, x in played.items()}, slack),
        reset_s=interval({name: x.reset_s for name, x in played.items()}),
        epoch_s=interval({name: x.epoch_s for name, x in played.items()}),
        bound=bound_of(inputs, mid.first, mid.parts_s),
        is_steady=mid.is_steady,
        guessed=_guessed(inputs, setting),
    )


def _by_workers_that_live_on(inputs: PipelineInputs) -> PipelineInputs:
    """Returns the series as workers make them that have opened what they read in a pass before.

    Where all that are started anew take far longer over their first batch, it counts as their
    second one does.
    """
    workers, count = inputs.setting.workers, len(inputs.fetch_s)
    place = np.arange(count)
    in_pass = place % max(inputs.batches, 1)
    is_first = in_pass < workers
    if workers == 0 or is_first.all():
        return inputs
    opens = is_first & (inputs.fetch_s > _OPENING_TIMES * np.median(inputs.fetch_s[~is_first]))
    if opens.sum() < _OPENING_SHARE * is_first.sum():
        return inputs
    opens &= (in_pass + workers < inputs.batches) & (place + workers < count)
    source = np.where(opens, np.minimum(place + workers, count - 1), place)
    series: dict[str, Any] = {name: getattr(inputs, name) for name in _OF_FETCHES}
    return replace(inputs, **{k: v[source] for k, v in series.items() if v is not None})


def _guessed(inputs: PipelineInputs, setting: Setting) -> tuple[str, ...]:
    if setting.workers == 0:
        return ()
    is_told = inputs.running_s is not None
    return (*inputs.guessed, *(() if is_told else ("running_s",)))


@dataclass(frozen=True, slots=True)
class _Played:
    """The passes of a setting.

    Attributes:
        first: The first of them.
        sampling_error: Of the mean step: two standard errors of what it was made of, as a share.
    """

    first: Pipeline
    rates: Rates
    is_steady: bool
    parts_s: dict[str, float]
    first_batch_s: float
    reset_s: float
    epoch_s: float
    contended_share: float
    busy_share: float
    sampling_error: float


def _play(
    inputs: PipelineInputs, setting: Setting, scenario: Scenario, slowdown: float = 1.0
) -> _Played:
    pipelines = list(pipelines_of(inputs, setting, scenario, slowdown))
    flows = [simulate(pipeline) for pipeline in pipelines]
    waits, steps = [flow.wait_s for flow in flows], [flow.step_s for flow in flows]
    rates, is_steady = rates_of(setting, waits, steps)
    ended = sum(flow.ended_s for flow in flows)
    left_out = (inputs.batches - len(pipelines[0])) * rates.step_s
    is_resumed = setting.is_persistent and setting.workers > 0
    reset_s = _reset_s(inputs, setting, pipelines[-1], scenario) if is_resumed else 0.0
    borders = reset_s if is_resumed else inputs.end_s if setting.workers else 0.0
    return _Played(
        first=pipelines[0],
        rates=rates,
        is_steady=is_steady,
        parts_s=_parts(setting, pipelines, flows),
        first_batch_s=float(np.mean([wait[0] for wait in waits])),
        reset_s=reset_s,
        epoch_s=ended / len(flows) + left_out + borders,
        contended_share=sum(flow.contended_s for flow in flows) / ended if ended > 0 else 0.0,
        busy_share=_busy_share(inputs, setting, flows),
        sampling_error=_sampling_error(inputs, pipelines, rates.step_s),
    )


def _reset_s(
    inputs: PipelineInputs, setting: Setting, pipeline: Pipeline, scenario: Scenario
) -> float:
    """Returns what it takes to resume workers that live on.

    Args:
        inputs: Of the recording.
        setting: With such workers.
        pipeline: A pass in it.
        scenario: It was made for.
    """
    recorded = inputs.setting
    if not inputs.left or setting == recorded:
        return inputs.reset_s
    before_s = 0.0
    if recorded.is_persistent and recorded.workers:
        before_s = _drain_s(next(pipelines_of(inputs, recorded, scenario)), inputs.left)
    return max(inputs.reset_s + _drain_s(pipeline, inputs.left) - before_s, 0.0)


def _drain_s(pipeline: Pipeline, left: int) -> float:
    """Returns how long workers still make batches of a pass that is left, and it takes them in.

    torch's `_reset` takes all that they were asked for off their queue, ahead of another pass.

    Args:
        pipeline: The pass, up to there.
        left: Batches that it would go on with.
    """
    count, asked = len(pipeline), min(pipeline.ahead, left)
    longer: dict[str, Any] = {
        name: np.append(series, np.resize(series, asked))
        for name in ("asleep_s", "running_s", "receive_s")
        for series in [getattr(pipeline, name)]
    }
    computes = np.append(pipeline.compute_s, np.zeros(asked))
    flow = simulate(replace(pipeline, **longer, compute_s=computes))
    return flow.ended_s - float(flow.called_s[count]) if asked else 0.0


def _parts(setting: Setting, pipelines: list[Pipeline], flows: list[Flow]) -> dict[str, float]:
    """What a mean step consists of."""
    window = filled_window(setting, len(pipelines[0])) or slice(
        1 if len(pipelines[0]) > 1 else 0, None
    )
    step = mean_of([flow.step_s[window] for flow in flows])
    wait = mean_of([flow.wait_s[window] for flow in flows])
    blocked = mean_of([flow.blocked_s[window] for flow in flows])
    receive = mean_of([flow.receive_s[window] for flow in flows])
    return {
        BLOCKED: blocked,
        RECEIVE: receive,
        SAMPLER: max(wait - blocked - receive, 0.0),
        COMPUTE: step - wait,
    }


def _busy_share(inputs: PipelineInputs, setting: Setting, flows: list[Flow]) -> float:
    """Returns which share of the cores' time is used, by others too; 0 of no more than worked then.

    What so many processes do side by side was recorded as it is.
    """
    ended = sum(flow.ended_s for flow in flows)
    if setting.workers <= inputs.setting.workers or not ended > 0 or not np.isfinite(inputs.cores):
        return 0.0
    used = sum(flow.used_core_s for flow in flows) / ended + inputs.others.mid
    return float(used / inputs.cores)


def _sampling_error(inputs: PipelineInputs, pipelines: list[Pipeline], step_s: float) -> float:
    """Two standard errors of the fetches' and computations' means, as a share of the step."""
    if step_s <= 0 or len(inputs.fetch_s) < 2:
        return 0.0
    workers = max(pipelines[0].workers, 1)
    spreads = (inputs.fetch_s.std() / workers, inputs.compute_s.std())
    return float(2 * np.hypot(*spreads) / np.sqrt(len(inputs.fetch_s)) / step_s)
