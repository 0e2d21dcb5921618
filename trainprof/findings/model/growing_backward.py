"""Backward takes longer with each step, while forward does not: it goes through earlier steps too.

What it means: what a step hands on to the next (a hidden state, a running average, a sum of losses)
still carries the graph that it was computed with. Each backward then goes through the steps before
it as well, which takes longer with every step, and keeps their activations in memory. Where torch
would refuse that, retain_graph=True was set.

How it is measured: the backward of each step but the first ones, smoothed over five: its longest
tenth against its shortest, which is twice as much as that of forward and of what the loop computes
itself at least, and how often it rises. On a device it is the host's time, which grows with the
operators it asks for; there whole steps have to grow as well, and tell what it costs.

When it is wrong: where what backward goes through grows on purpose (truncated backpropagation whose
window is being widened).

What to do: detach what goes from step to step (state = state.detach()), sum up losses by .item() or
.detach(), and drop retain_graph=True.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.pipeline.model import Float64
from trainprof.analysis.summary.code import hottest
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.timeline.events import Int64
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

_LEAST_STEPS: Final = 60
_SMOOTHED_OVER: Final = 5
_COLD_STEPS: Final = 3
# Steps far enough apart to differ by more than the machine's clock does from one moment to the
# next: on a quiet machine, on a busy one.
_HELD_AGAINST: Final = (10, 40)
# As the forward's: batches of other sizes make both longer.
_TIMES_FORWARD: Final = 2.0
# What is kept of earlier steps fills memory and caches too: without it the rest gets faster.
_TIMES_BESIDES: Final = 2.0
# Of the changes from some steps to the next; and how alike those are, where chance is 0: 0.5 where
# it falls back after sixty steps.
_BACKWARD: Final = ("backward",)
# What a loop computes by itself is in the last of them: a product with all that a bank keeps.
_FORWARD: Final = ("forward", "loss", "other")
_RISES_SHARE: Final = 0.7
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
    # The shortest are those of the beginning, which count as its warm-up.
    kept = float(whole[whole > 0].min()) * np.count_nonzero(whole) / float(whole.sum())
    gain = outside_steps(context, (1 - kept) * spent_s, with_warmup=True)
    line = hottest(context.summary.part_lines, "backward")
    return plain_finding(
        RULE.id,
        f"backward takes longer from step to step ({span(short_s)} in the shortest tenth of them, "
        f"{span(long_s)} in the longest, {percent(context.share('backward'))} of training in all) "
        "while forward stays as it is: it goes through earlier steps as well",
        replace(gain, training=(1.0, _TIMES_BESIDES * gain.training[1])),
        site=line.site if line is not None else None,
        advice="detach what one step hands on to the next (state = state.detach()), sum losses up "
        "by .item(), and drop retain_graph=True",
        evidence={
            "backward_s": spent_s,
            "short_backward_s": short_s,
            "long_backward_s": long_s,
            "times": times,
        },
    )


def _smoothed(steps: StepTable, keys: tuple[str, ...] | None) -> Float64:
    """Returns the time of steps under some ledger keys, or all of it, medians over a few, ns.

    Of those that had a backward: some loops have one in each second step. What grows looks like a
    warm-up at its beginning, which counts but for the very first.
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
    """Whether a series mostly goes up, by more than chance; it may fall back now and then."""
    if took.std() <= 0:
        return False
    alike = float(np.corrcoef(took[:-_SMOOTHED_OVER], took[_SMOOTHED_OVER:])[0, 1])
    rises = (float((took[n:] > took[:-n]).mean()) for n in _HELD_AGAINST if n < len(took))
    return alike >= _ALIKE and max(rises, default=0.0) >= _RISES_SHARE


def _spread(took: Float64) -> float:
    if len(took) == 0:
        return 1.0
    short, long = np.percentile(took, (10, 90)).tolist()
    return long / short if short > 0 else 1.0


RULE: Final = Rule(
    id="growing_backward",
    thresholds={
        "times": Threshold(2.5, "its longest tenth of the shortest; noise stays under 2"),
    },
    find=find,
    explanation=__doc__,
    order=170,
    traits=RuleTraits(keys=["backward"], gain="estimate"),
    noise_matters=False,
)
