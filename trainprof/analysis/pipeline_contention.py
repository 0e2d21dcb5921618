"""How much a recording was slowed by sharing its cores: with itself, and with other processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trainprof.analysis.pipeline_model import simulate
from trainprof.analysis.pipeline_rates import rates_of
from trainprof.analysis.pipeline_scenario import (
    Interval,
    PipelineInputs,
    filled,
    passes_of,
    pipelines_of,
    running_of,
)

# As shares of the most that is possible.
_SLOWDOWNS_TRIED: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# Of the fetches' time, that must be running and waiting for a core to tell of others.
_TELLING_SHARE: Final = 0.1
_SMALL_SLOWDOWN: Final = 0.05
_ROUNDS: Final = 2
_HALVINGS: Final = 6
_BATCHES_PLAYED: Final = 200


def with_contention(inputs: PipelineInputs) -> PipelineInputs:
    """Finds how much longer everything took in the recording because cores were shared.

    How long fetches waited for a core tells how many threads of other processes wanted one too;
    where that was not recorded there are none. Of several explanations that are consistent the one
    is taken that gives the recorded step best.
    """
    running = running_of(inputs, "mid")
    if inputs.wait_s is None or not running.any():
        return inputs
    runnable = filled(inputs.runnable_s, inputs.fetch_s)
    if runnable is not None:
        # One that mostly sleeps waits for a core at each waking, however many are free.
        if min(float(runnable.sum()), float(running.sum())) < _TELLING_SHARE * inputs.fetch_s.sum():
            return inputs
        return _with_others(replace(inputs, fetch_slowdown=float(runnable.sum() / running.sum())))
    if inputs.setting.workers == 0:
        return inputs
    most = float((inputs.fetch_s - running).sum() / running.sum())
    return _likeliest(inputs, (0.0, most))


def _with_others(inputs: PipelineInputs) -> PipelineInputs:
    """Finds the others that make fetches wait as long as they did."""
    low, high = 0.0, inputs.cores * (1 + inputs.fetch_slowdown)
    found = _among_others(inputs, low)
    missing = inputs.fetch_slowdown - found.fetch_slowdown
    if missing <= max(_SMALL_SLOWDOWN, _SMALL_SLOWDOWN * inputs.fetch_slowdown):
        return found.inputs
    for _ in range(_HALVINGS):
        found = _among_others(inputs, (low + high) / 2)
        if found.fetch_slowdown < inputs.fetch_slowdown:
            low = found.inputs.others.mid
        else:
            high = found.inputs.others.mid
    return found.inputs


def _among_others(inputs: PipelineInputs, others: float) -> _Slowed:
    # They come and go: half of them, or twice as many.
    tried = replace(inputs, others=Interval(others / 2, others, others * 2))
    return _play_slowed(_likeliest(tried, (inputs.fetch_slowdown,)))


def _likeliest(inputs: PipelineInputs, of_fetch: tuple[float, ...]) -> PipelineInputs:
    """Returns the slowdown of computing that gives most nearly what was recorded.

    Args:
        inputs: From a recording.
        of_fetch: The slowdown of fetches; where that is not known, the least and the most.
    """
    everybody = inputs.setting.workers + max(inputs.compute_cores.mid, 1.0) + inputs.others.mid
    most = max(everybody / inputs.cores - 1, 0.0)
    is_known = len(of_fetch) == 1
    played = [
        _play_slowed(replace(inputs, fetch_slowdown=slowdown, main_slowdown=most * share))
        for slowdown in of_fetch
        for share in _SLOWDOWNS_TRIED
    ]

    def error(one: _Slowed) -> float:
        return one.error + (0.0 if is_known else one.fetch_error)

    for _ in range(_ROUNDS):
        best = min(played, key=error)
        slowed = replace(best.inputs, main_slowdown=best.main_slowdown)
        if not is_known:
            slowed = replace(slowed, fetch_slowdown=min(best.fetch_slowdown, of_fetch[-1]))
        played.append(_play_slowed(slowed))
    return min(played, key=error).inputs


@dataclass(frozen=True, slots=True)
class _Slowed:
    """What came out slower than it went in.

    Attributes:
        fetch_slowdown, main_slowdown: As in `PipelineInputs`.
        error: Of the mean step and its computing, as a share of the recorded step.
        fetch_error: What the fetches should have taken longer by and did not, as a share of it.
    """

    inputs: PipelineInputs
    fetch_slowdown: float
    main_slowdown: float
    error: float
    fetch_error: float


def _play_slowed(inputs: PipelineInputs) -> _Slowed:
    whole = next(pipelines_of(inputs, inputs.setting, "mid"))
    series = ("asleep_s", "running_s", "compute_s", "receive_s")
    p = replace(whole, **{name: getattr(whole, name)[:_BATCHES_PLAYED] for name in series})
    flow = simulate(p)
    runs, computes = float(p.running_s.sum()), float(p.compute_s.sum())
    longer = float((flow.fetch_s - p.asleep_s - p.running_s).sum())
    computed = float((flow.step_s - flow.wait_s).sum())
    assert inputs.wait_s is not None
    wait_s, compute_s = (
        passes_of(inputs, s)[0][:_BATCHES_PLAYED] for s in (inputs.wait_s, inputs.compute_s)
    )
    recorded = rates_of(inputs.setting, [wait_s], [wait_s + compute_s])[0]
    again = rates_of(inputs.setting, [flow.wait_s], [flow.step_s])[0]
    error = abs(again.step_s - recorded.step_s)
    error += abs(again.step_s - again.wait_s - recorded.step_s + recorded.wait_s)
    fetch_slowdown = max(longer / runs, 0.0) if runs > 0 else 0.0
    missing = abs(fetch_slowdown - inputs.fetch_slowdown) * runs / len(p) / max(p.workers, 1)
    return _Slowed(
        inputs=inputs,
        fetch_slowdown=fetch_slowdown,
        main_slowdown=max(computed / computes - 1, 0.0) if computes > 0 else 0.0,
        error=error / recorded.step_s if recorded.step_s > 0 else 0.0,
        fetch_error=missing / recorded.step_s if recorded.step_s > 0 else 0.0,
    )
