"""Two sides of runs, figure by figure: what `compare` shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trainprof.analysis.comparability import Discrepancy, discrepancies
from trainprof.analysis.comparable_facts import REMARK, SETTING, UNFINISHED, UNLIKE
from trainprof.analysis.compared_figures import (
    BY_SAMPLE,
    BY_STEP,
    LEDGER_GROUP,
    PART_PREFIX,
    STARTS,
    Metric,
    Sides,
    chance_between,
    ledger_metrics,
    run_metrics,
    step_metrics,
)
from trainprof.analysis.compared_run import ComparedRun
from trainprof.analysis.gate import REPEATED, Gate, judged, three_runs
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.speedup import (
    FASTER,
    LEAST_CHANCE,
    SLOWER,
    UNKNOWN,
    SpeedUp,
    are_repeated,
)
from trainprof.analysis.unlike_lengths import as_alike

# A part of a step that is halved or doubled, by so much of BASE's step, is no noise of single runs.
_CLEARLY: Final = 2
_CLEAR_SHARE: Final = 0.1
# So much of what steps gain or lose is left of it, on a logarithmic scale, with starts of passes.
_LEFT_AT_LEAST: Final = 0.5
# So much of its change has to be seen in the mean step.
_SEEN_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Comparison:
    """OTHER's runs against BASE's.

    Attributes:
        comparable: Nothing but settings differs, all runs ended as they should, and have steps
            enough.
        discrepancies: What the sides do not have in common, what matters most first.
        speedup: The answer: of steps, or of samples where steps are not the same work.
        measured_by: step|sample.
        with_starts: The same of training: steady steps and what starts of passes add to them; None
            where it is not known.
        with_borders: The same of all steps, starts of passes and warm-up included; None where it
            is not known.
        not_observed: Why a figure is missing, by its name or its group's.
        gate: What --fail-if-slower says, None where it is not asked for.
    """

    base: list[ComparedRun]
    other: list[ComparedRun]
    comparable: bool
    discrepancies: list[Discrepancy]
    speedup: SpeedUp
    measured_by: str
    with_starts: SpeedUp | None
    with_borders: SpeedUp | None
    metrics: list[Metric]
    not_observed: dict[str, str] = field(default_factory=dict)
    gate: Gate | None = None

    def of_kind(self, *kinds: str) -> list[Discrepancy]:
        return [one for one in self.discrepancies if one.kind in kinds]

    def metric(self, name: str) -> Metric | None:
        return next((one for one in self.metrics if one.name == name), None)

    def in_group(self, group: str) -> list[Metric]:
        return [one for one in self.metrics if one.group == group]

    def starts_alone(self) -> Metric | None:
        """Returns what starts of passes add to a step, where the sides differ by that for certain.

        None where steady steps differ too, and where it is a small part of BASE's training.
        """
        starts, loop = self.metric(STARTS), self.metric("loop_step_s")
        if starts is None or loop is None or not loop.base:
            return None
        if not self.speedup.is_undecided or starts.verdict not in (FASTER, SLOWER):
            return None
        apart_s = (starts.other or 0.0) - (starts.base or 0.0)
        # All steps together have to be the shorter, or longer, for it.
        is_seen = ((loop.other or 0.0) - loop.base) * apart_s > 0
        return starts if is_seen and abs(apart_s) >= LEAST_GAIN * loop.base else None

    def turned_by_starts(self) -> SpeedUp | None:
        """Returns the speed of training where starts of passes turn what steps alone tell.

        None where they do not, and where steps tell nothing for certain.
        """
        is_told = self.speedup.verdict in (FASTER, SLOWER)
        return _decided_by_starts(self.speedup, self.with_starts) if is_told else None

    def told_by_starts(self) -> SpeedUp | None:
        """Returns the speed of training where starts of passes tell what steps alone do not.

        None where steps tell it, and where starts of later passes lead.
        """
        if not self.speedup.is_undecided or self.starts_alone() is not None:
            return None
        return _decided_by_starts(self.speedup, self.with_starts)

    def answer(self) -> SpeedUp:
        """Returns the speed that the headline speaks of: of training, or of steps."""
        return self.turned_by_starts() or self.told_by_starts() or self.speedup

    @property
    def verdict(self) -> str:
        """faster|slower|no_visible_difference|unknown, as the headline says."""
        starts = self.starts_alone()
        return self.answer().verdict if starts is None else starts.verdict

    @property
    def why_unknown(self) -> str | None:
        return self.answer().why_unknown if self.verdict == UNKNOWN else None

    def clear_part(self) -> Metric | None:
        """Returns the part of a step that clearly changed, where the step itself does not tell.

        None where steps as a whole did not: what was saved is spent elsewhere.
        """
        step = self.metric("step_s")
        if not self.speedup.is_undecided or step is None or not step.base:
            return None
        least_s = _CLEAR_SHARE * step.base
        clear = [one for one in self.in_group(LEDGER_GROUP) if abs(_apart(one)) >= least_s]
        found = max(clear, key=lambda one: abs(_apart(one)), default=None)
        if found is None or found.verdict not in (FASTER, SLOWER):
            return None
        low, high = sorted((found.base or 0.0, found.other or 0.0))
        is_seen = _apart(step) / _apart(found) >= _SEEN_SHARE
        return found if is_seen and high >= _CLEARLY * low else None


def _decided_by_starts(steps: SpeedUp, with_starts: SpeedUp | None) -> SpeedUp | None:
    """Returns the speed of training with its starts of passes where steps alone tell another one.

    That is where it is faster or slower for certain and steps are not that, or where steps are, it
    is not, and starts seem to take most of the difference or more. Else None.
    """
    if with_starts is None or with_starts.low is None or with_starts.mid is None:
        return None
    if with_starts.verdict in (FASTER, SLOWER):
        return with_starts if with_starts.verdict != steps.verdict else None
    if steps.verdict not in (FASTER, SLOWER) or steps.mid is None:
        return None
    left = math.log(with_starts.mid) / math.log(steps.mid)
    return with_starts if left < _LEFT_AT_LEAST else None


def _apart(metric: Metric) -> float:
    return (metric.other or 0.0) - (metric.base or 0.0)


def compare(
    base: Sequence[ComparedRun], other: Sequence[ComparedRun], *, limit: float | None = None
) -> Comparison:
    """Compares one or more runs with one or more others.

    Args:
        base: Runs of one setting.
        other: Runs of the other.
        limit: How much longer a step may take, as a share; None without a gate.
    """
    base, other = as_alike(base, other)
    found = discrepancies(base, other)
    sides = Sides(base, other, found, chance_between(base, other))
    measured_by = BY_SAMPLE if sides.is_other_work else BY_STEP
    speedup, with_starts = sides.speedup(measured_by), sides.with_starts(measured_by)
    decisive = _decided_by_starts(speedup, with_starts) or speedup
    metrics = [*step_metrics(sides), *ledger_metrics(sides), *run_metrics(sides)]
    return Comparison(
        base=base,
        other=other,
        comparable=not any(one.kind in UNLIKE | {UNFINISHED} for one in found),
        discrepancies=found,
        speedup=speedup,
        measured_by=measured_by,
        with_starts=with_starts,
        with_borders=sides.with_borders(measured_by),
        metrics=metrics,
        not_observed=_not_observed(metrics, sides),
        gate=None
        if limit is None
        else judged(limit, decisive, found, measured_by, _telling(base, other)),
    )


def notes(comparison: Comparison) -> list[str]:
    """Returns what to know before reading the figures, one sentence each, in order of weight."""
    told = [_sentence(one.text) for one in comparison.of_kind(*UNLIKE)]
    told += [_sentence(one.text) for one in comparison.of_kind(UNFINISHED)]
    told += [_sentence(f"changed: {one.text}") for one in comparison.of_kind(SETTING)]
    told += [_sentence(one.text) for one in comparison.of_kind(REMARK)]
    why, rests_on = comparison.why_unknown, basis(comparison)
    told += [] if why is None else [f"No verdict: {why}"]
    return [*told, *([] if rests_on is None else [_sentence(rests_on)])]


def basis(comparison: Comparison) -> str | None:
    """Returns what the interval rests on, None where there is none."""
    speedup = comparison.speedup
    if speedup.low is None:
        return None
    counted = _telling(comparison.base, comparison.other)
    if speedup.chance is None:
        return f"{counted[0]} and {counted[1]} runs: the interval is that of their spread"
    chance = _difference(speedup.chance.share)
    sides = "one run each" if max(counted) <= 1 else f"{counted[0]} and {counted[1]} runs"
    told = f"{sides}: differences under {chance} can be chance"
    if are_repeated(*counted):
        told = (
            f"{counted[0]} and {counted[1]} runs: the interval is that of their spread, but of the "
            f"one alone differences under {chance} can be chance"
        )
    if min(counted) > 1:
        told = f"{counted[0]} and {counted[1]} runs, weighed with what two may differ by, {chance}"
    if speedup.chance.share > LEAST_CHANCE:
        told += f" ({speedup.chance.why})"
    return f"{told}; {three_runs(*counted)} tell smaller ones: {REPEATED}"


def _telling(base: Sequence[ComparedRun], other: Sequence[ComparedRun]) -> tuple[int, int]:
    """Returns how many runs of each side have steps that tell something."""
    has, against = (sum(run.is_telling() for run in side) for side in (base, other))
    return has, against


def _difference(share: float) -> str:
    """Returns a share as people say it: "3.5 %", "30 %", "a factor of 16"."""
    if share >= 1:
        return f"a factor of {1 + share:.2g}"
    return f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _not_observed(metrics: Sequence[Metric], sides: Sides) -> dict[str, str]:
    names = {metric.name for metric in metrics}
    reasons: dict[str, str] = {}
    if "sample_s" not in names:
        reasons["samples_per_s"] = "how large a batch is was not told"
    if "loop_step_s" not in names:
        reasons["loop_step_s"] = "the events of a run are gone, or tell of no step"
    if not any(name.startswith(PART_PREFIX) for name in names):
        reasons["ledger"] = "a run has no steady step"
    if "energy_wh" not in names:
        told = [
            run.summary.system.gpus_not_observed
            for run in (*sides.base, *sides.other)
            if run.summary.system is not None and run.summary.system.gpus_not_observed
        ]
        reasons["energy_wh"] = told[0] if told else "no GPU was sampled"
    return reasons


def to_jsonable(comparison: Comparison) -> dict[str, Any]:
    """Returns the comparison as plain JSON values."""
    speedup, borders = comparison.speedup, comparison.with_borders
    return {
        "schema_version": 1,
        "base": _side(comparison.base),
        "other": _side(comparison.other),
        "comparable": comparison.comparable,
        "notes": notes(comparison),
        "verdict": comparison.verdict,
        "measured_by": comparison.measured_by,
        "speedup": _speedup(speedup),
        "speedup_with_starts": None
        if comparison.with_starts is None
        else _speedup(comparison.with_starts),
        "speedup_with_borders": None if borders is None else _speedup(borders),
        "why_unknown": comparison.why_unknown,
        "gate": None if comparison.gate is None else _gate(comparison.gate),
        "chance": None if speedup.chance is None else speedup.chance.share,
        "discrepancies": [
            {"what": x.what, "kind": x.kind, "base": x.base, "other": x.other, "text": x.text}
            for x in comparison.discrepancies
        ],
        "metrics": [
            {
                "name": x.name,
                "group": x.group,
                "base": x.base,
                "other": x.other,
                "change": x.change,
                "low": x.low,
                "high": x.high,
                "verdict": x.verdict,
                "better": x.better,
            }
            for x in comparison.metrics
        ],
        "not_observed": comparison.not_observed,
    }


def _gate(gate: Gate) -> dict[str, float | str]:
    return {"limit": gate.limit, "outcome": gate.outcome, "why": gate.why}


def _speedup(found: SpeedUp) -> dict[str, float | None]:
    return {"low": found.low, "mid": found.mid, "high": found.high}


def _side(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    return {
        "name": ", ".join(run.name for run in runs),
        "runs": [
            {
                "name": run.name,
                "directory": run.summary.run.directory or run.directory,
                "command": run.summary.run.command,
                "started_at": run.summary.run.started_at,
                "steps": run.summary.training.steps,
                "steady_steps": run.steady_steps(),
                "step_s": run.mean_step_s(),
            }
            for run in runs
        ],
    }
