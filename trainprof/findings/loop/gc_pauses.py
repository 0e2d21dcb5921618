"""Python's garbage collector pauses the training loop.

What it means: a full collection visits every object that Python tracks. With millions of small
objects, in a dataset or a cache, it takes long and happens repeatedly.

How it is measured: Python's own collector callbacks time each pause of 20 us and more.

When it is wrong: it is rarely wrong, as the pauses are measured, not estimated.

What to do: if the loop calls gc.collect(), remove the call. Otherwise call gc.freeze() once after
loading: later collections then skip these objects. Or call gc.disable(), and gc.collect() every few
hundred steps; until that call reference cycles keep their memory, on a GPU too. Arrays in place of
millions of objects remove the cause.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.code import hottest
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import plain_finding, python_gain
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

# Full collections: fewer are not regular.
_ENOUGH_FULL: Final = 3
# Python itself starts a full collection only when a quarter of all objects is new.
_CALLED_FROM_PER_STEP: Final = 0.5
_FREEZE: Final = (
    "gc.freeze() after loading; or gc.disable(), with gc.collect() every few hundred steps"
)
_CALLED: Final = "remove gc.collect(): by itself Python runs full collections far less often"


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
    full = f", with {context.full_collections} full collections in {steps} steps"
    full = full if context.full_collections else ""
    return plain_finding(
        RULE.id,
        f"Python's garbage collector takes {context.of_step(spent_s, 'gc')}{full}",
        gain,
        site=line.site if line is not None else None,
        action="Remove gc.collect() from the loop" if is_called else "",
        advice=_CALLED if is_called else _FREEZE,
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
    traits=RuleTraits(keys=["gc"], action="Run the garbage collector less often"),
    # A collection starts at the line that creates the objects.
    comes_of=("worker_restart", "python_in_loop", "python_in_model"),
    saves_in_steps=True,
)
