"""Backward takes longer with each step, while forward does not: it runs through earlier steps too.

What it means: what a step passes to the next (a hidden state, a running average, a sum of losses)
still carries its graph. Each backward then runs through all earlier steps too, and their
activations stay in memory. Where torch would refuse that, retain_graph=True was set.

How it is measured: the backward time of each step but the first is smoothed over five steps. From
the fastest to the slowest tenth it has to grow by twice the factor of forward. Most steps have to
be slower than earlier ones. On a GPU the host's time counts, and whole steps have to grow too.

When it is wrong: the graph may grow on purpose, as with a truncation window that is widened.

What to do: detach what goes from step to step (state = state.detach()), sum losses with .item() or
.detach(), and remove retain_graph=True.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.model import Float64
from trainprof.analysis.summary.code import hottest
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

_LEAST_STEPS: Final = 60
_SMOOTHED_OVER: Final = 5
_COLD_STEPS: Final = 3
# Distances of compared steps: beyond the noise of clock rates, on a quiet machine and a busy one.
_APART: Final = (10, 40)
# Of the growth of forward: larger batches make both longer.
_TIMES_FORWARD: Final = 2.0
# The graphs of earlier steps fill memory and caches too: without them the rest gets faster.
_REST_TIMES: Final = 2.0
_BACKWARD: Final = ("backward",)
# "other" has what a loop computes itself, such as a product with a memory bank.
_FORWARD: Final = ("forward", "loss", "other")
# Of the compared steps.
_RISES_SHARE: Final = 0.7
# Autocorrelation, 0 by chance: 0.5 if it falls back after sixty steps.
_ALIKE: Final = 0.4


def find(context: RunContext) -> Finding | None:
    took = _smoothed(context.steps, _BACKWARD)
    if len(took) < _LEAST_STEPS or not _rises(took):
        return None
    short_s, long_s = (float(x) / 1e9 for x in np.percentile(took, (10, 90)))
    times = long_s / short_s if short_s > 0 else 0.0
    least = RULE.threshold(context.settings, "times")
    if times < max(least, _TIMES_FORWARD * _spread(_smoothed(context.steps, _FORWARD))):
        return None
    whole, spent_s = context.steps.per_step["backward"], context.training.get("backward", 0.0)
    if context.is_on_device:
        if not _rises(_smoothed(context.steps, None)):
            return None
        whole = np.where(whole > 0, context.steps.wall_ns, 0)
        spent_s = float(whole.sum()) / 1e9
    # The fastest are the first ones, which count as warm-up.
    kept = float(whole[whole > 0].min()) * np.count_nonzero(whole) / float(whole.sum())
    gain = outside_steps(context, (1 - kept) * spent_s, with_warmup=True)
    line = hottest(context.summary.part_lines, "backward")
    return plain_finding(
        RULE.id,
        f"backward grows from {span(short_s)} to {span(long_s)} a step while forward does not: it "
        "runs through earlier steps too",
        replace(gain, training=(1.0, _REST_TIMES * gain.training[1])),
        site=line.site if line is not None else None,
        advice="state = state.detach(); sum losses with loss.item(); no retain_graph=True",
        evidence={
            "backward_s": spent_s,
            "short_backward_s": short_s,
            "long_backward_s": long_s,
            "times": times,
        },
    )


def _smoothed(steps: StepTable, keys: tuple[str, ...] | None) -> Float64:
    """Returns the time of steps with a backward, medians over a few, ns.

    Growth at the beginning resembles a warm-up, which counts except for the very first steps.

    Args:
        keys: Of the ledger; None: all of a step.
    """
    nothing: Int64 = np.zeros(len(steps), dtype=np.int64)
    place = np.arange(len(steps))
    counted = steps.steady.mask | ((place >= _COLD_STEPS) & (place < steps.steady.warmup))
    counted &= steps.per_step.get("backward", nothing) > 0
    took = steps.wall_ns
    if keys is not None:
        took = sum((steps.per_step.get(key, nothing) for key in keys), nothing)
    took = took[counted]
    if len(took) < _SMOOTHED_OVER:
        return np.empty(0)
    windows = np.lib.stride_tricks.sliding_window_view(took, _SMOOTHED_OVER)
    result: Float64 = np.median(windows, axis=1)
    return result


def _rises(took: Float64) -> bool:
    """Whether a series mostly rises, by more than chance; it may fall back now and then."""
    if took.std() <= 0:
        return False
    alike = float(np.corrcoef(took[:-_SMOOTHED_OVER], took[_SMOOTHED_OVER:])[0, 1])
    rises = (float((took[n:] > took[:-n]).mean()) for n in _APART if n < len(took))
    return alike >= _ALIKE and max(rises, default=0.0) >= _RISES_SHARE


def _spread(took: Float64) -> float:
    if len(took) == 0:
        return 1.0
    short, long = np.percentile(took, (10, 90)).tolist()
    return long / short if short > 0 else 1.0


RULE: Final = Rule(
    id="growing_backward",
    thresholds={
        "times": Threshold(2.5, "slowest tenth to fastest tenth; noise stays under 2"),
    },
    find=find,
    explanation=__doc__,
    order=170,
    traits=RuleTraits(keys=["backward"], action="Detach what a step passes to the next"),
    noise_matters=False,
)
