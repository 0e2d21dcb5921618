"""A CPU computes with numbers that are too small for it.

What it means: numbers between zero and 1.2e-38 (float32; 2.2e-308 in float64) are denormal: many
CPUs take a hundred times as long for an operation that is given one, or gives one. They come of
whatever decays and is never quite zero: the end of a sound, a trace that is multiplied by 0.6 in
each step, the moments that an optimizer keeps of weights that no longer get a gradient, gradients
that vanish on their way back through many steps or layers.

How it is measured: in a few steps, what the operators of models were given (as their autograd graph
keeps it) and what optimizers keep is looked at; where such numbers are, some of these operators are
computed once more with them and once with zeros in their place. Of a backward as large a share is
taken to go, and at most two and a half times that share of both; but in neither what these and some
of the other operators were timed to take without such numbers, or at most half of that. The
gradients that backward hands from operator to operator are looked at as they come, and some
operators compute them there once more with and without: where that tells more of backward, that
goes, and at most twice as much. What activation checkpointing gives back is not asked for, nor
anything of a model where torch does not tell what that is (2.13 does).

When it is wrong: an operator that is computed alone finds the caches and cores as it leaves them;
elementwise functions of denormals other than products are not looked at in a forward, so that it
may be more. What happens inside of one operator is not seen: a whole nn.LSTM is one on a CPU.

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
from trainprof.analysis.tiny_numbers import TinyNumbers
from trainprof.analysis.verdict import COMPUTE_KEYS
from trainprof.analysis.verdict_level import percent

ID: Final = "tiny_numbers"
KEYS: Final[tuple[str, ...]] = COMPUTE_KEYS
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training, computing with denormal numbers"),
}
_OTHERWISE: Final = "set them to zero where they come from (what decays and is never quite zero)"
_OTHERWISE_OF_GRADIENTS: Final = (
    "let gradients not vanish: fewer steps back, or a loss of more than the last state"
)
# Of what operators that were looked at cost, or a few of an optimizer's: all, likely and at most.
_OF_ALL: Final = (1.0, 2.5)
# Of what operators in backward cost that were computed again there: all, likely and at most. What
# adds gradients up is not among them.
_OF_BACKWARD: Final = (1.0, 2.0)
# What operators take without such numbers stays: likely all that was timed, at least half of it, as
# one that is computed alone may find caches and cores less ready.
_STAYS: Final = (1.0, 0.5)


def find(case: Case) -> Finding | None:
    told = case.torch.tiny_numbers
    if told is None or case.is_on_device:
        return None
    hows = zip(_OF_ALL, _OF_BACKWARD, _STAYS, strict=True)
    likely_s, most_s = (_saved_s(case, told, *how) for how in hows)
    part = likely_s / case.settled_s if case.settled_s > 0 else 0.0
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain, most = (of_python(case, one, with_warmup=False) for one in (likely_s, most_s))
    if gain is None or most is None:
        return None
    is_of_gradients = not told.operators_s and told.gradients_s > 0
    share = max(told.share, told.gradients_share)
    return plain_finding(
        ID,
        f"{_where(told)} with denormal numbers (smaller than 1.2e-38, up to "
        f"{percent(share)} of those in a tensor), for which a CPU takes many times as long: "
        f"about {percent(part)} of training",
        replace(gain, training=(1.0, most.training[1]), run=(1.0, most.run[1])),
        site=told.site or told.gradients_site,
        advice="torch.set_flush_denormal(True) at the start of the script, which takes them for "
        f"zero; or {_OTHERWISE_OF_GRADIENTS if is_of_gradients else _OTHERWISE}",
        cautions=["losses may differ in their last digits"],
        evidence={
            "looks": told.looks,
            "operators_s_a_step": told.operators_s,
            "optimizers_s_a_step": told.optimizers_s,
            "gradients_s_a_step": told.gradients_s,
            "without_s_a_step": told.forward_kept_s + told.backward_kept_s,
            "share": share,
        },
    )


def _where(told: TinyNumbers) -> str:
    """Returns what computes with them, and that it does."""
    if told.operators_s and told.optimizers_s:
        return "operators of the model and the optimizer compute"
    if told.operators_s:
        return "operators of the model compute"
    if told.gradients_s and told.optimizers_s:
        return "backward, whose gradients vanish on their way back, and the optimizer compute"
    if told.gradients_s:
        return "backward, whose gradients vanish on their way back, computes"
    return "the optimizer computes"


def _saved_s(
    case: Case, told: TinyNumbers, times: float, times_behind: float, stays: float
) -> float:
    """Returns the seconds of training that go.

    Args:
        case: The run.
        told: Of its steps.
        times: What goes of each phase, as a multiple of what was measured.
        times_behind: What goes of backward, as a multiple of what was measured there.
        stays: In each phase, of what was measured to.
    """
    forward_s, updating_s = (spent_in(case, phase) for phase in ("forward", "optimizer"))
    forwards = _steps_in(case, told, forward_s, told.operators_s + told.forward_kept_s)
    updates = _steps_in(case, told, updating_s, told.optimizers_s + told.optimizers_kept_s)
    of_forward = forwards * told.operators_s / forward_s if forward_s > 0 else 0.0
    of_updates = updates * told.optimizers_s / updating_s if updating_s > 0 else 0.0
    phases = (
        ("forward", of_forward, forwards * told.forward_kept_s),
        ("backward", of_forward, forwards * told.backward_kept_s),
        ("recompute", of_forward, 0.0),
        ("optimizer", of_updates, updates * told.optimizers_kept_s),
    )
    saved_s = {
        phase: max(min(times * share * spent_s, spent_s - stays * kept_s), 0.0)
        for phase, share, kept_s in phases
        if (spent_s := spent_in(case, phase)) > 0
    }
    backward_s = spent_in(case, "backward")
    passes = _steps_in(case, told, backward_s, told.gradients_s + told.gradients_kept_s)
    goes_s, kept_s = passes * told.gradients_s, passes * told.gradients_kept_s
    seen_s = min(times_behind * goes_s, backward_s - stays * kept_s)
    return sum({**saved_s, "backward": max(saved_s.get("backward", 0.0), seen_s)}.values())


def _steps_in(case: Case, told: TinyNumbers, spent_s: float, step_s: float) -> float:
    """Returns how many steps had denormals: no more than a phase has time for what was timed.

    What is computed alone may take longer than in its place.
    """
    steps = max(case.summary.training.steps - told.since, 0)
    return min(steps, spent_s / step_s) if step_s > 0 else 0.0
