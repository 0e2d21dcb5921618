"""Summarizes the measurements of a search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.model.optimizer_builder import policy_cautions
from trainprof.analysis.statistics.speedup import UNKNOWN, SpeedUp
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import (
    BASELINE,
    CUT_SHORT,
    INTERRUPTED,
    OK,
    Recommended,
    Times,
    TrialSummary,
    Tuning,
)
from trainprof.findings.loading.loader_change import call_with
from trainprof.tune.candidates import Plan
from trainprof.tune.choice import against, stream_cautions
from trainprof.tune.measurements import Measurements, cold_runs, held_up_runs, runs_on_other_batches
from trainprof.tune.trial import WARM_UP, Measured, Trial

_FIRST_COUNTS: Final = (
    "the budget had time for one baseline, which also warmed the caches: speedups may be too high"
)
# Rounding of sums in another order.
_SAME_LOSS: Final = 1e-6
_FEWEST_LOSSES: Final = 3
_OTHER: Final = "other"


def summary_of_tune(
    base: RunSummary,
    measurements: Measurements,
    *,
    name: str,
    directory: str,
    budget_s: float,
    command: Sequence[str] | None = None,
    is_sandboxed: bool = True,
) -> RunSummary:
    """Returns the summary of the first baseline, with the trials.

    `directory` and `command` as typed, secrets masked; the default is the baseline's command.
    """
    rows = trials_of(measurements)
    written = dict.fromkeys(path for run in measurements.runs for path in run.written)
    return replace(
        base,
        run=replace(
            base.run,
            name=name,
            directory=directory,
            command=base.run.command if command is None else list(command),
        ),
        trials=rows,
        recommended=recommended_of(measurements, rows, base),
        tuning=Tuning(
            budget_s=budget_s,
            spent_s=measurements.spent_s(),
            trial_steps=measurements.trial_steps,
            ended_by=measurements.ended_by,
            unfinished=list(measurements.unfinished),
            needed_budget_s=measurements.needed_budget_s,
            uncontained=[f"wrote {path}" for path in written],
            is_sandboxed=is_sandboxed,
            notes=[
                *(measurements.plan.notes if measurements.plan is not None else ()),
                *([_FIRST_COUNTS] if measurements.first_counts else []),
                *_left_out(measurements),
                *_failed_after(measurements),
                *_unlike(measurements),
            ],
        ),
    )


def trials_of(measurements: Measurements) -> list[TrialSummary]:
    """Returns one row per trial, in order of their first runs."""
    runs = [run for run in measurements.runs if run.outcome != INTERRUPTED]
    trials = {run.trial.name: run.trial for run in runs if run.trial.name != WARM_UP}
    return [_row(measurements, trial) for trial in trials.values()]


def _row(measurements: Measurements, trial: Trial) -> TrialSummary:
    runs = _results(measurements.of(trial.name))
    good = [run for run in runs if run.is_ok]
    worst = next((run for run in runs if run.outcome != OK), runs[0])
    is_base = trial.name == BASELINE
    losses = None if is_base else _losses(measurements, runs)
    speed = None if is_base else measurements.speedup(trial)
    predicted = measurements.predicted.get(trial.name)
    times = times_of(speed)
    is_least = any(run.is_least for run in good)
    memory = [x.peak_memory_bytes for x in good if x.peak_memory_bytes is not None]
    return TrialSummary(
        name=trial.name,
        overrides=dict(trial.overrides),
        steps_per_s=_steps_per_s(measurements.alike(trial.name).other),
        speedup=Times(1.0, 1.0, 1.0) if is_base and good else times,
        verdict=speed.verdict if speed is not None else UNKNOWN,
        predicted=list(predicted) if predicted is not None else None,
        held=None
        if times is None or predicted is None or is_least
        else whether_held(times, predicted),
        runs=len(runs),
        directories=[run.directory for run in runs],
        outcome=worst.outcome,
        detail=worst.detail,
        losses=losses,
        losses_apart=_losses_apart(measurements, runs) if losses == _OTHER else None,
        refused={name: why for run in runs for name, why in run.refused.items()},
        cautions=list(measurements.cautions.get(trial.name, ())),
        against=against(measurements, trial),
        peak_memory_bytes=max(memory, default=None),
        steps=max((run.steps for run in runs), default=None),
        was_cut=any(run.was_cut for run in runs),
        is_least=is_least,
        disturbance=statistics.fmean(x.disturbance for x in good) if good else 0.0,
    )


def _results(runs: Sequence[Measured]) -> list[Measured]:
    """Leaves out runs that will be repeated: interrupted, or cut short by the budget."""
    ended = [run for run in runs if run.outcome != INTERRUPTED]
    return [run for run in ended if run.outcome != CUT_SHORT] or ended


def whether_held(measured: Times, predicted: tuple[float, float]) -> bool | None:
    """Returns whether the measured interval is inside the forecast; None if it overlaps an edge."""
    if measured.low is None or measured.high is None:
        return None
    low, high = predicted
    if low <= measured.low and measured.high <= high:
        return True
    return False if measured.high < low or high < measured.low else None


def _steps_per_s(runs: Sequence[Measured]) -> float | None:
    paces = [run.training_pace or run.pace for run in runs]
    means = [pace.mean_s for pace in paces if pace is not None and pace.mean_s > 0]
    return 1 / statistics.fmean(means) if means else None


def _losses(measurements: Measurements, runs: Sequence[Measured]) -> str | None:
    """Returns "same" or "other"; None if unknown, or if baselines differ among themselves."""
    base = [run.losses for run in measurements.of(BASELINE) if len(run.losses) >= _FEWEST_LOSSES]
    other = [run.losses for run in runs if len(run.losses) >= _FEWEST_LOSSES]
    if not base or not other or not all(_are_same(base[0], losses) for losses in base[1:]):
        return None
    if len(base) < 2:
        # With one baseline, different losses may be random, equal ones are not.
        return "same" if all(_are_same(base[0], losses) for losses in other) else None
    return "same" if all(_are_same(base[0], losses) for losses in other) else _OTHER


def _losses_apart(measurements: Measurements, runs: Sequence[Measured]) -> float | None:
    base = next((run.losses for run in measurements.of(BASELINE) if run.losses), ())
    pairs = [(now, was) for run in runs for now, was in zip(run.losses, base, strict=False)]
    apart = [abs(now / was - 1) for now, was in pairs if was]
    return max(apart, default=None) if all(map(math.isfinite, apart)) else None


def _are_same(first: Sequence[float], other: Sequence[float]) -> bool:
    count = min(len(first), len(other))
    both = np.array(first[:count]), np.array(other[:count])
    return bool(np.allclose(*both, rtol=_SAME_LOSS, atol=_SAME_LOSS, equal_nan=True))


def recommended_of(
    measurements: Measurements, rows: Sequence[TrialSummary], base: RunSummary
) -> Recommended | None:
    """Returns the recommended setting, None if no setting was visibly faster."""
    if measurements.best is None:
        return None
    best = measurements.best
    row = next(row for row in rows if row.name == best.name)
    if row.speedup is None:
        return None
    changed = _changed_loaders(best, base)
    sharded = stream_cautions(measurements, best, [loader for loader, _ in changed])
    return Recommended(
        overrides=row.overrides,
        speedup=row.speedup,
        name=row.name,
        sites=list(best.sites) if best.loader_arguments() else [],
        change=[
            *(f"{loader.site}: {call_with(loader, change)}" for loader, change in changed),
            *_other_changes(best, measurements.plan),
        ],
        cautions=list(dict.fromkeys((*sharded, *row.cautions, *_builder_cautions(measurements)))),
    )


def _changed_loaders(trial: Trial, base: RunSummary) -> list[tuple[Loader, dict[str, Any]]]:
    loaders = {loader.site: loader for loader in reversed(base.loaders)}
    changes = ((site, trial.arguments_at(site)) for site in trial.sites)
    return [(loaders[site], change) for site, change in changes if change and site in loaders]


def _other_changes(trial: Trial, plan: Plan | None) -> list[str]:
    lines = []
    optimizers = plan.optimizers if plan is not None else ()
    if trial.overrides.get("pin_memory"):
        lines.append("batch.to(device, non_blocking=True)")
    for name, code in _SETTINGS.items():
        if name not in trial.overrides:
            continue
        value = trial.overrides[name]
        if name in _OF_OPTIMIZERS and optimizers:
            lines += [f"{call.site}: {call.with_argument(name, value)}" for call in optimizers]
        else:
            lines.append(code.format(value))
    return lines


def _builder_cautions(measurements: Measurements) -> list[str]:
    """Returns cautions if a package builds the optimizer that the best trial changed."""
    best, plan = measurements.best, measurements.plan
    is_changed = best is not None and bool(_OF_OPTIMIZERS & best.overrides.keys())
    return policy_cautions(plan.optimizers) if is_changed and plan is not None else []


_SETTINGS: Final = {
    "torch_threads": "torch.set_num_threads({!r})",
    "fused": "optimizer: fused={!r}",
    "foreach": "optimizer: foreach={!r}",
    "float32_matmul_precision": "torch.set_float32_matmul_precision({!r})",
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = {!r}",
    "autocast": "torch.autocast(..., enabled=True, dtype=torch.{})",
    "channels_last": "model.to(memory_format=torch.channels_last)",
}


_OF_OPTIMIZERS: Final = frozenset({"fused", "foreach"})


def _left_out(measurements: Measurements) -> list[str]:
    reasons = {
        "data came from disk, not from the page cache": cold_runs(measurements.runs),
        "another run of the trial was over 2x faster": held_up_runs(measurements.runs),
        "the replayed batches differ in size from later ones": (
            runs_on_other_batches(measurements.runs)
        ),
    }
    return [f"{', '.join(x)} not compared: {why}" for why, x in reasons.items() if x]


def _failed_after(measurements: Measurements) -> list[str]:
    """Reports that the baseline fails after a limit has ended its training."""
    return [
        f"the script fails after its training is cut short ({why}). Its steps still count"
        for why in measurements.failures_after()[:1]
    ]


def _unlike(measurements: Measurements) -> list[str]:
    """Reports trials of which only the steps that the baseline made too are compared."""
    trials = dict.fromkeys(run.trial.name for run in measurements.runs if run.is_ok)
    counted: dict[int, list[str]] = {}
    too_short = []
    for name in trials:
        both = measurements.alike(name) if name not in (WARM_UP, BASELINE) else None
        if both is not None and both.is_too_short:
            too_short.append(name)
        elif both is not None and both.until is not None:
            counted.setdefault(both.until, []).append(name)
    why = "step times change later, and not all runs got there"
    notes = [
        f"{', '.join(names)}: only the first {steps} steps are compared: {why}"
        for steps, names in counted.items()
    ]
    return notes + ([f"{', '.join(too_short)} not compared: {why}"] if too_short else [])


def times_of(speed: SpeedUp | None) -> Times | None:
    if speed is None or speed.mid is None:
        return None
    return Times(speed.low, speed.mid, speed.high)
