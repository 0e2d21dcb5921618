"""A CPU computes with numbers that are too small for it.

What it means: numbers between zero and 1.2e-38 (float32; 2.2e-308 in float64) are denormal: many
CPUs take a hundred times as long for an operation that is given one, or gives one. They come of
whatever decays and is never quite zero: the end of a sound, a trace that is multiplied by 0.6 in
each step, the moments that an optimizer keeps of weights that no longer get a gradient.

How it is measured: in a few steps, what the operators of models were given (as their autograd graph
keeps it) and what optimizers keep is looked at; where such numbers are, some of these operators are
computed once more with them and once with zeros in their place. Of a backward as large a share is
taken to go, and at most two and a half times that share of both.

When it is wrong: an operator that is computed alone finds the caches and cores as it leaves them;
elementwise functions of denormals other than products are not looked at, so that it may be more.

What to do: torch.set_flush_denormal(True) at the start of the script (each process, workers too):
the CPU then takes such numbers for zero. Or set them to zero where they come from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.backward_gain import spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict import COMPUTE_KEYS
from trainprof.analysis.verdict_level import percent

ID: Final = "tiny_numbers"
KEYS: Final[tuple[str, ...]] = COMPUTE_KEYS
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training, computing with denormal numbers"),
}
# Of what operators that were looked at cost, or a few of an optimizer's: all, likely and at most.
_OF_ALL: Final = (1.0, 2.5)
# All of computing is never saved.
_MOST_OF_PHASE: Final = 0.8
_COMPUTING: Final = ("forward", "backward", "recompute")


def find(case: Case) -> Finding | None:
    told = case.torch.tiny_numbers
    if told is None or case.is_on_device:
        return None
    steps = max(case.summary.training.steps - told.since, 0)
    computing_s = sum(spent_in(case, phase) for phase in _COMPUTING)
    forward_s, updating_s = (spent_in(case, phase) for phase in ("forward", "optimizer"))
    likely_s, most_s = (
        _part_of(times * told.operators_s * steps, forward_s) * computing_s
        + _part_of(times * told.optimizers_s * steps, updating_s) * updating_s
        for times in _OF_ALL
    )
    part = likely_s / case.settled_s if case.settled_s > 0 else 0.0
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain, most = (of_python(case, one, with_warmup=False) for one in (likely_s, most_s))
    if gain is None or most is None:
        return None
    where = "operators of the model" if told.operators_s else "the optimizer"
    if told.operators_s and told.optimizers_s:
        where = "operators of the model and the optimizer"
    return plain_finding(
        ID,
        f"{where} compute with denormal numbers (smaller than 1.2e-38, up to "
        f"{percent(told.share)} of those in a tensor), for which a CPU takes many times as long: "
        f"about {percent(part)} of training",
        replace(gain, training=(1.0, most.training[1]), run=(1.0, most.run[1])),
        site=told.site,
        advice="torch.set_flush_denormal(True) at the start of the script, which takes them for "
        "zero; or set them to zero where they come from (what decays and is never quite zero)",
        cautions=["losses may differ in their last digits"],
        evidence={
            "looks": told.looks,
            "operators_s_a_step": told.operators_s,
            "optimizers_s_a_step": told.optimizers_s,
            "share": told.share,
        },
    )


def _part_of(seconds: float, phase_s: float) -> float:
    return min(seconds / phase_s, _MOST_OF_PHASE) if phase_s > 0 else 0.0
