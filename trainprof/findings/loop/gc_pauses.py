"""Python's garbage collector stops training.

What it means: a full collection walks all objects that Python tracks; datasets and caches of
millions of small objects make that long, and it comes again and again.

How it is measured: the collector's own callbacks, pauses of 20 us and more.

When it is wrong: hardly ever; the share is what was stopped.

What to do: where the loop itself calls gc.collect(), take that out. Else gc.freeze() once
everything is loaded takes it out of later collections; or gc.disable() and a gc.collect() every few
hundred steps: until then what reference cycles hold stays in memory, a device's too. Arrays instead
of millions of objects end it.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.code import hottest
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import plain_finding, python_gain
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

# Walks over all objects: fewer are no habit yet.
_ENOUGH_FULL: Final = 3
# By itself Python walks all objects only once a quarter of them is new.
_CALLED_FROM_PER_STEP: Final = 0.5
_COLLECTED_RARELY: Final = (
    "gc.freeze() once everything is loaded, or gc.disable() and gc.collect() every few hundred "
    "steps; a call of gc.collect() in the loop goes"
)
_KEPT_IN_CYCLES: Final = (
    "with gc.disable() what reference cycles hold, memory of a device included, stays until the "
    "next gc.collect(): collect more often where memory grows"
)
_CALLED: Final = "take gc.collect() out of the loop: nothing but a call walks everything so often"


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    spent_s = context.held_up_s("gc", "host_s")
    part = spent_s / context.training_s if context.training_s > 0 else 0.0
    is_rare = 0 < context.full_collections < _ENOUGH_FULL
    gain = python_gain(context, spent_s) if part >= least and not is_rare else None
    if gain is None:
        return None
    line = hottest(context.summary.part_lines, "gc")
    steps = max(context.summary.training.steps, 1)
    is_called = context.full_collections >= _CALLED_FROM_PER_STEP * steps
    advice = _CALLED if is_called else _COLLECTED_RARELY
    return plain_finding(
        RULE.id,
        f"Python's garbage collector stops training for {span(spent_s)}, {percent(part)} of it, "
        f"with {context.full_collections} full collections in {steps} steps",
        gain,
        site=line.site if line is not None else None,
        advice=advice,
        cautions=[_KEPT_IN_CYCLES] if advice == _COLLECTED_RARELY else [],
        evidence={
            "gc_s": spent_s,
            "gc_share": part,
            "full_collections": context.full_collections,
        },
    )


RULE: Final = Rule(
    id="gc_pauses",
    thresholds={"share": Threshold(0.03, "of training; msprof and xpu_timer warn from 1 %")},
    find=find,
    explanation=__doc__,
    order=160,
    traits=RuleTraits(keys=["gc"]),
    # Who makes the objects that are collected stands where collecting begins.
    comes_of=("worker_restart", "python_in_loop", "python_in_model"),
    saves_in_steps=True,
)
