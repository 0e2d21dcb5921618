"""How many times as fast a trial was from start to end, where runs went to the script's own end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainprof.analysis.speedup import Pace, SpeedUp, speed_up
from trainprof.analysis.tuning import BASELINE, Times
from trainprof.experiments.found import Found
from trainprof.experiments.trial import Measured, Trial

# Runs of steps that differ by less differ by less than counts (LEAST_GAIN).
_SAME_STEPS: Final = 0.02
# Nobody can say more of a part that would be nearly all of the time.
_MOST_TIMES: Final = 100.0


def of_whole_runs(found: Found, trial: Trial) -> Times | None:
    """Of runs that went to the script's own end; one each tells no interval.

    None where those of the trial made another number of steps than the script as it is, as they do
    that stop early by a loss: what other workers draw at random changes that.
    """
    if trial.data == "free":
        return _of_a_free_run(found, trial)
    base, other = (_paces(side) for side in _as_long(found, trial))
    return times_of(speed_up(base, other, took_turns=True)) if base and other else None


def times_of(speed: SpeedUp | None) -> Times | None:
    if speed is None or speed.mid is None:
        return None
    return Times(speed.low, speed.mid, speed.high)


def _as_long(found: Found, trial: Trial) -> tuple[list[Measured], list[Measured]]:
    """Returns the whole runs of both sides that made as many steps as most of the script as it is.

    Where other workers make more, smaller batches of a stream, a pass has more steps.
    """
    base, other = (_whole_runs(found.comparable(name)) for name in (BASELINE, trial.name))
    if not base:
        return [], []
    usual, times = statistics.median_low(one.steps for one in base), found.steps_for_one(trial)
    return (
        [one for one in base if _are_as_many(one.steps, usual)],
        [one for one in other if _are_as_many(one.steps, usual * times)],
    )


def _are_as_many(steps: int, usual: float) -> bool:
    return abs(steps - usual) <= _SAME_STEPS * usual


def _whole_runs(runs: Sequence[Measured]) -> list[Measured]:
    return [one for one in runs if one.run_s is not None and one.pace is not None]


def _paces(runs: Sequence[Measured]) -> list[Pace]:
    """Returns how long runs took, as uncertain as their steps."""
    return [
        replace(one.pace, mean_s=one.run_s, steps_s=None, starts_s=None)
        for one in runs
        if one.run_s is not None and one.pace is not None
    ]


def _of_a_free_run(found: Found, trial: Trial) -> Times | None:
    """Of a whole run whose every step is one with free data; the trial's own begins with real ones.

    Measured are the steps of both; that all else stays as it is, is taken for granted.
    """
    whole = [x for x in found.comparable(BASELINE) if x.run_s and x.training_pace is not None]
    free = [one.pace.mean_s for one in found.alike(trial.name).other if one.pace is not None]
    if not whole or not free:
        return None
    ratios = []
    for one in whole:
        assert one.run_s is not None
        assert one.training_pace is not None
        saved_s = one.steps * (one.training_pace.mean_s - statistics.fmean(free))
        ratios.append(one.run_s / max(one.run_s - saved_s, one.run_s / _MOST_TIMES))
    return Times(None, statistics.fmean(ratios), None)
