"""Chooses which measured changes to combine, repeat and recommend, and which to refuse."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainprof.analysis.statistics.speedup import FASTER, SLOWER, UNKNOWN, Pace, speed_up
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.tune import BASELINE, BROKEN, CEILING
from trainprof.tune.candidate import Candidate, together
from trainprof.tune.candidates import Plan
from trainprof.tune.loader_candidates import WORKERS
from trainprof.tune.measurements import Measurements
from trainprof.tune.trial import FirstEpoch, Measured, Trial, workers_of

# Largest difference in steps between runs of equal length, below LEAST_GAIN.
_SAME_STEPS: Final = 0.02
# Partial last batches of workers lengthen the epoch of a stream by less. Workers that each yield
# the whole stream lengthen it by more.
_OTHER_EPOCH: Final = 0.1
_SHARED: Final = (
    "{} seems to shard its stream by get_worker_info(), but no trial saw an epoch end: check the "
    "number of batches per epoch"
)


def best(measurements: Measurements) -> Trial | None:
    """Returns the fastest setting, or a nearly equal one that changes less.

    None if no setting was visibly faster, or every faster one is refused.
    """
    faster: list[tuple[float, Trial]] = []
    for trial in _ok_trials(measurements):
        speed = measurements.speedup(trial) if trial.overrides else None
        if speed is None or speed.verdict != FASTER or (speed.mid or 0.0) < 1 + LEAST_GAIN:
            continue
        is_broken = any(run.outcome in BROKEN for run in measurements.of(trial.name))
        if not is_broken and not against(measurements, trial):
            faster.append((speed.mid or 0.0, trial))
    if not faster:
        return None
    most = max(speed for speed, _ in faster)
    near = [trial for speed, trial in faster if speed >= most / (1 + LEAST_GAIN)]
    return min(near, key=_size)


def winners(measurements: Measurements, plan: Plan) -> list[Candidate]:
    """Returns the fastest change of each subject, if visibly faster and not refused."""
    fastest: dict[str, tuple[float, Candidate]] = {}
    for candidate in plan.candidates:
        speed = measurements.speedup(candidate.trial())
        if speed is None or speed.mid is None or speed.mid < 1 + LEAST_GAIN:
            continue
        if speed.verdict not in (FASTER, UNKNOWN) or against(measurements, candidate.trial()):
            continue
        # More of the same must gain more.
        known = fastest.get(candidate.subject)
        if known is None or speed.mid > known[0] * (1 + LEAST_GAIN):
            fastest[candidate.subject] = (speed.mid, candidate)
    return [candidate for _, candidate in sorted(fastest.values(), key=lambda pair: -pair[0])]


def untried_together(measurements: Measurements) -> list[str]:
    """Returns the combination of the faster changes, [] if each was tried in one."""
    fastest = winners(measurements, measurements.plan) if measurements.plan is not None else []
    tried = [set(run.trial.overrides) for run in measurements.runs if run.trial.overrides]
    is_tried = all(
        any(set(candidate.overrides) < names for names in tried) for candidate in fastest
    )
    return [] if len(fastest) < 2 or is_tried else [together(fastest).name]


def variants(
    measurements: Measurements, taken: Sequence[Candidate], plan: Plan
) -> list[list[Candidate]]:
    """Returns the changes, and variants with another number of workers, equally fast alone."""
    listed = [list(taken)]
    for index, candidate in enumerate(taken):
        speed = speed_of(measurements, candidate) or 0.0
        for other in plan.candidates:
            near = (speed_of(measurements, other) or 0.0) * (1 + LEAST_GAIN) >= speed
            if other.subject == candidate.subject == WORKERS and other is not candidate and near:
                listed.append([*taken[:index], other, *taken[index + 1 :]])
    return listed


def contenders(measurements: Measurements, at_most: int) -> list[Trial]:
    """Returns the fastest trials, at most `at_most`, and the ceiling."""
    trials = _ok_trials(measurements)
    changed = []
    for trial in trials:
        speed = measurements.speedup(trial) if trial.overrides else None
        if speed is None or (speed.mid or 0.0) < 1 + LEAST_GAIN / 2:
            continue
        if not against(measurements, trial):
            changed.append((speed.mid or 0.0, trial))
    changed.sort(key=lambda pair: -pair[0])
    fastest = [trial for _, trial in changed[:at_most]]
    ceiling = measurements.alike(CEILING)
    is_usable = ceiling.other and not ceiling.is_too_short
    return [*fastest, *(trial for trial in trials if trial.name == CEILING and is_usable)]


def is_decided(measurements: Measurements, trial: Trial) -> bool:
    """Whether repeated runs separate it from the baseline, with an interval below its gain."""
    speed = measurements.speedup(trial)
    runs = [run for run in measurements.of(trial.name) if run.is_ok]
    if speed is None or len(runs) < 2 or speed.low is None or speed.high is None:
        return False
    width, gain = speed.high - speed.low, abs((speed.mid or 1.0) - 1)
    if speed.verdict in (FASTER, SLOWER):
        return width <= max(gain, LEAST_GAIN)
    return speed.high < 1 + LEAST_GAIN


def speed_of(measurements: Measurements, candidate: Candidate) -> float | None:
    """Returns the speedup of a change over the baseline, None if unknown."""
    speed = measurements.speedup(candidate.trial())
    return None if speed is None else speed.mid


def _ok_trials(measurements: Measurements) -> list[Trial]:
    return list({run.trial.name: run.trial for run in measurements.runs if run.is_ok}.values())


def _size(trial: Trial) -> tuple[int, int]:
    return len(trial.overrides), workers_of(trial.overrides)


def against(measurements: Measurements, trial: Trial) -> list[str]:
    """Returns the reasons to refuse a trial, [] without any."""
    reasons = []
    for site in trial.sites if trial.loader_arguments() else ():
        base, other = (_first_epochs(measurements, name, site) for name in (BASELINE, trial.name))
        if _are_longer(other, base) or _are_longer(base, other):
            reasons.append(
                f"an epoch of {site} has {_batches(other)} batches, {_batches(base)} in the "
                "baseline. Shard the stream in its __iter__ by get_worker_info()"
            )
    slower = _slower_whole_runs(measurements, trial) if trial.overrides else None
    if slower is not None:
        reasons.append(f"the whole run is slower ({slower:.2f}x), start-up and exit included")
    lost = _lost(measurements.of(trial.name))
    if lost and not _lost(measurements.of(BASELINE)):
        reasons.append(f"{lost} of its first losses are NaN or infinite, unlike the baseline's")
    return reasons


def _lost(runs: Sequence[Measured]) -> int:
    """Returns the largest number of non-finite losses in a run."""
    return max((sum(not math.isfinite(x) for x in run.losses) for run in runs), default=0)


def stream_cautions(
    measurements: Measurements, trial: Trial, loaders: Sequence[Loader]
) -> list[str]:
    """Returns cautions for streams that seem sharded, though no trial saw an epoch end."""
    return [
        _SHARED.format(loader.site)
        for loader in loaders
        if loader.is_iterable
        and loader.shares_samples
        and "num_workers" in trial.arguments_at(loader.site)
        if not all(
            any(seen.is_ended for seen in _first_epochs(measurements, name, loader.site))
            for name in (BASELINE, trial.name)
        )
    ]


def _first_epochs(measurements: Measurements, name: str, site: str) -> list[FirstEpoch]:
    runs = [run for run in measurements.of(name) if run.is_ok]
    return [run.first_epochs[site] for run in runs if site in run.first_epochs]


def _are_longer(some: Sequence[FirstEpoch], others: Sequence[FirstEpoch]) -> bool:
    """Whether the epochs of all runs are longer than every other epoch that ended."""
    ended = [first.batches for first in others if first.is_ended]
    if not some or not ended:
        return False
    return min(first.batches for first in some) > (1 + _OTHER_EPOCH) * max(ended)


def _batches(epochs: Sequence[FirstEpoch]) -> str:
    """Returns the batches of an epoch, "over 120" if none ended."""
    ended = [first.batches for first in epochs if first.is_ended]
    if ended:
        return f"{statistics.fmean(ended):,.0f}"
    return f"over {max(first.batches for first in epochs):,}"


def _slower_whole_runs(measurements: Measurements, trial: Trial) -> float | None:
    """Returns the speed of whole runs of equal length if certainly slower, else None."""
    base, other = (
        [run for run in measurements.comparable(name) if run.run_s is not None]
        for name in (BASELINE, trial.name)
    )
    if not base:
        return None
    usual = statistics.median_low(run.steps for run in base)
    paces = [
        [_whole(run) for run in side if abs(run.steps - usual) <= _SAME_STEPS * usual]
        for side in (base, other)
    ]
    whole = speed_up(*paces, took_turns=True) if all(paces) else None
    if whole is None or whole.mid is None or whole.high is None or whole.high >= 1:
        return None
    return whole.mid if whole.mid < 1 - LEAST_GAIN else None


def _whole(run: Measured) -> Pace:
    """Returns the duration of a run as a pace, with the noise of its steps."""
    assert run.pace is not None
    assert run.run_s is not None
    return replace(run.pace, mean_s=run.run_s, steps_s=None, starts_s=None)
