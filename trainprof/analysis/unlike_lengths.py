"""Runs that made unlike numbers of steps: what comes now and then is left out of all of them.

A checkpoint each 500 steps is a part of the mean step of a run of 10,000 steps, and none of the
same script's that was ended after 300. So are last steps of passes that are not full, and what
loaders take behind evaluation in the midst of a pass. Runs that all came to save at one rate are
compared with their checkpoints, from one save to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.events import Bool
from trainprof.analysis.saving_steps import CHECKPOINT, few_that_save
from trainprof.analysis.steady import MIN_STEADY_STEPS
from trainprof.analysis.step_noise import Floats
from trainprof.analysis.step_series import StepSeries

# A last batch that is not full makes so much of a difference at most, where passes are not short.
SAME_SAMPLES: Final = 0.02
# What more of the steps do than do not is a part of each.
_NOW_AND_THEN: Final = 0.5
# Saves that tell how often a run saves and what that takes: a mean of fewer is mostly chance.
_FEWEST_SAVES: Final = 5
# A script saves each so many steps; what differs is where steps between were left out. Of saving
# that is a fifth of all steps' time it makes 2 %, as SAME_SAMPLES does.
_SAME_RATE: Final = 0.1


def as_alike(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> tuple[list[ComparedRun], list[ComparedRun]]:
    """Returns the runs of both sides, those of unlike lengths without what comes now and then."""
    runs = [*base, *other]
    if not _are_unlike([run.summary.training.steps for run in runs]):
        return list(base), list(other)
    full = _samples_of_full_steps(runs) if have_short_ends(runs) else None
    is_kept = _save_alike(runs)
    left = [_without_odd_steps(run, full, with_saves=is_kept) for run in runs]
    return left[: len(base)], left[len(base) :]


def have_short_ends(runs: Sequence[ComparedRun]) -> bool:
    """Tells whether samples a step differ by last steps of passes that are not full, and no more.

    Runs of one length end as many passes: if they differ, their steps do.
    """
    means = [run.samples_per_step() for run in runs]
    if None in means or not _are_unlike(means):
        return False
    training = [run.summary.training for run in runs]
    seen = [round(mean * told.steps) for mean, told in zip(means, training, strict=True) if mean]
    if not _are_unlike([told.steps for told in training]) or not _are_unlike(seen):
        return False
    bounds = [bound for run in runs if (bound := run.samples_of_a_full_step()) is not None]
    return max(low for low, _ in bounds) <= min(high for _, high in bounds)


def _are_unlike(figures: Sequence[float | None]) -> bool:
    return len(set(figures)) > 1


def _samples_of_full_steps(runs: Sequence[ComparedRun]) -> float:
    return max(mean for run in runs if (mean := run.samples_per_step()) is not None)


def _save_alike(runs: Sequence[ComparedRun]) -> bool:
    """Whether all runs saved often enough, and at one rate: saving is a part of steps then."""
    rates = [_saves_per_step(run.series) for run in runs]
    known = [rate for rate in rates if rate is not None]
    return len(known) == len(runs) and max(known) <= (1 + _SAME_RATE) * min(known)


def _saves_per_step(series: StepSeries | None) -> float | None:
    """Returns how often a run saved now and then, None where it saved too seldom to tell."""
    if series is None:
        return None
    saves = few_that_save(_saving_s(series))
    whole = _between_saves(saves)
    steps, count = np.count_nonzero(whole), np.count_nonzero(saves & whole)
    return count / steps if count >= _FEWEST_SAVES and steps >= MIN_STEADY_STEPS else None


def _between_saves(saves: Bool) -> Bool:
    """Chooses the steps behind the first save up to the last: each save with the steps before."""
    chosen = np.flatnonzero(saves)
    whole = np.zeros_like(saves)
    if len(chosen):
        whole[chosen[0] + 1 : chosen[-1] + 1] = True
    return whole


def _without_odd_steps(
    run: ComparedRun, full: float | None, *, with_saves: bool = False
) -> ComparedRun:
    """Returns a run without steps that save checkpoints, and starts as passes alone have them.

    Args:
        full: Samples of a full step, where last steps of passes are left out, too; else None.
        with_saves: Keeps steps that save, and leaves out what comes before the first and after the
            last of them.
    """
    series = run.series
    if series is None:
        return _without_checkpoints(run)
    series = replace(
        series,
        starts_s=series.starts_s - series.starts_inside_s,
        between_s=series.between_s - series.between_inside_s,
        starts_inside_s=np.zeros_like(series.starts_inside_s),
        between_inside_s=np.zeros_like(series.between_inside_s),
    )
    saving_s = _saving_s(series)
    saves = few_that_save(saving_s)
    ends = np.zeros_like(saves) if full is None else series.ends_pass
    if with_saves:
        kept = _between_saves(saves) & ~_now_and_then(ends)
        return replace(_with_steps(run, series, kept), full_step_samples=full)
    odd = saves | _now_and_then(saves | ends)
    return replace(
        _with_steps(run, series, ~odd),
        full_step_samples=full,
        checkpoints_s=float(saving_s.mean()) if saves.any() else 0.0,
    )


def without_saves(run: ComparedRun) -> ComparedRun:
    """Returns a run without those of its steady steps that save checkpoints, where few do."""
    if run.series is None:
        return _without_checkpoints(run)
    saving_s = _saving_s(run.series)
    saves = few_that_save(saving_s)
    if not saves.any():
        return run
    left = _with_steps(run, run.series, ~saves)
    return replace(left, checkpoints_s=float(saving_s.mean()))


def _saving_s(series: StepSeries) -> Floats:
    return series.parts_s.get(CHECKPOINT, np.zeros(len(series.steady_s)))


def _now_and_then(chosen: Bool) -> Bool:
    is_usual = np.count_nonzero(chosen) > _NOW_AND_THEN * len(chosen)
    return np.zeros_like(chosen) if is_usual else chosen


def _with_steps(run: ComparedRun, series: StepSeries, kept: Bool) -> ComparedRun:
    """Returns a run with some of its steady steps, and what means of several ranks become then."""
    left = {key: part[kept] for key, part in series.parts_s.items()}
    parts_s = run.summary.training.per_step_s
    if parts_s is not None and not kept.all():
        parts_s = {key: value * _share_left(key, series, kept) for key, value in parts_s.items()}
    training = replace(run.summary.training, per_step_s=parts_s)
    return replace(
        run,
        summary=replace(run.summary, training=training),
        series=replace(
            series,
            steady_s=series.steady_s[kept],
            ends_pass=series.ends_pass[kept],
            parts_s=left,
        ),
    )


def _share_left(key: str, series: StepSeries, kept: Bool) -> float:
    """Returns what of a part of a mean steady step is left of it in some of the steps."""
    part = series.parts_s.get(key)
    before = 0.0 if part is None else float(part.mean())
    return float(part[kept].mean()) / before if part is not None and before > 0 else 1.0


def _without_checkpoints(run: ComparedRun) -> ComparedRun:
    """Returns a run of which only means are left, without what checkpoints add to them."""
    training = run.summary.training
    saved_s = (training.per_step_s or {}).get(CHECKPOINT, 0.0)
    if training.step_s is None or training.per_step_s is None or saved_s <= 0:
        return run
    training = replace(
        training,
        step_s=replace(training.step_s, mean=training.step_s.mean - saved_s),
        per_step_s={**training.per_step_s, CHECKPOINT: 0.0},
    )
    return replace(run, summary=replace(run.summary, training=training), checkpoints_s=saved_s)
