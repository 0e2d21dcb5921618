"""Why a change is not to be taken, or only with care, however fast its steps were."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from trainprof.analysis.statistics.speedup import Pace, speed_up
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import BASELINE
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.tune.measured import Found
from trainprof.tune.trial import FirstPass, Measured, Trial

# Runs of steps that differ by less differ by less than counts (LEAST_GAIN).
_SAME_STEPS: Final = 0.02
# Workers whose last batches are not full make a pass over a stream a little longer; those that each
# give all of it, or make many small batches of it, by more.
_OTHER_PASS: Final = 0.1
_SHARED: Final = (
    "{}: that each worker gives only its share is taken from its code's asking get_worker_info(); "
    "no trial saw a pass end: count the batches of an epoch before you take it"
)


def against(found: Found, trial: Trial) -> list[str]:
    """Returns why a trial is not to be recommended; [] where nothing speaks against it."""
    told = []
    for site in trial.sites if trial.loader_arguments() else ():
        base, other = (_passes(found, name, site) for name in (BASELINE, trial.name))
        if _are_longer(other, base) or _are_longer(base, other):
            told.append(
                f"a pass over {site} has {_told(other)} batches with it, and {_told(base)} in the "
                "script as it is: an epoch is another one then, whatever a step takes; look at how "
                "its __iter__ shares the data out among workers"
            )
    slower = _slower_whole_runs(found, trial) if trial.overrides else None
    if slower is not None:
        told.append(f"the whole script was {slower:.2f} times as fast from start to end")
    return told


def to_be_minded(found: Found, trial: Trial, loaders: Sequence[Loader]) -> list[str]:
    """Returns which streams a recommended trial takes to be shared out, though no pass ended.

    Args:
        found: What was measured.
        trial: That is recommended.
        loaders: That it changes, as the script has them.
    """
    return [
        _SHARED.format(one.site)
        for one in loaders
        if one.is_iterable and one.shares_samples and "num_workers" in trial.arguments_at(one.site)
        if not all(
            any(seen.is_ended for seen in _passes(found, name, one.site))
            for name in (BASELINE, trial.name)
        )
    ]


def first_passes(summary: RunSummary) -> Mapping[str, FirstPass]:
    """Returns the first pass over each stream, by the line that builds its loader.

    How long that is is for each worker to say; elsewhere a sampler, which workers do not change.
    """
    found: dict[str, FirstPass] = {}
    for one in sorted(summary.loaders, key=lambda loader: loader.id):
        if one.role != TRAINING or not one.is_iterable:
            continue
        if one.ended_batches:
            found.setdefault(one.site, FirstPass(one.ended_batches[0], is_ended=True))
        elif one.passes == 1 and not one.ended:
            found.setdefault(one.site, FirstPass(one.iterations, is_ended=False))
    return found


def _passes(found: Found, name: str, site: str) -> list[FirstPass]:
    return [run.passes[site] for run in found.of(name) if run.is_ok and site in run.passes]


def _are_longer(some: Sequence[FirstPass], others: Sequence[FirstPass]) -> bool:
    """Whether the passes of each of some runs are longer than those of all others that ended."""
    ended = [one.batches for one in others if one.is_ended]
    if not some or not ended:
        return False
    return min(one.batches for one in some) > (1 + _OTHER_PASS) * max(ended)


def _told(passes: Sequence[FirstPass]) -> str:
    """Returns how many batches a pass has, or that it has more than were seen."""
    ended = [one.batches for one in passes if one.is_ended]
    if ended:
        return f"{statistics.fmean(ended):,.0f}"
    return f"over {max(one.batches for one in passes):,}"


def _slower_whole_runs(found: Found, trial: Trial) -> float | None:
    """Returns how many times as fast whole runs were that surely took longer, by what counts.

    Of runs with other numbers of steps, as of a script that stops early by a loss, it tells none.
    """
    base, other = (
        [one for one in found.comparable(name) if one.run_s is not None]
        for name in (BASELINE, trial.name)
    )
    if not base:
        return None
    usual = statistics.median_low(one.steps for one in base)
    paces = [
        [_whole(one) for one in side if abs(one.steps - usual) <= _SAME_STEPS * usual]
        for side in (base, other)
    ]
    whole = speed_up(*paces, took_turns=True) if all(paces) else None
    if whole is None or whole.mid is None or whole.high is None or whole.high >= 1:
        return None
    return whole.mid if whole.mid < 1 - LEAST_GAIN else None


def _whole(run: Measured) -> Pace:
    """Returns how long a run took, as uncertain as its steps."""
    assert run.pace is not None
    assert run.run_s is not None
    return replace(run.pace, mean_s=run.run_s, steps_s=None, starts_s=None)
