"""A model is called in each step, with gradients, and no backward pass goes through what it gives.

What it means: the call computes something that nothing is learned from: pictures to look at, the
numbers of a log, a second pass for a metric. And as gradients are enabled, all that backward would
need is kept until the result is gone.

How it is measured: from time to time, the calls of each line are looked at for some steps: a hook
on what they give, and where their graph begins, notes whether backward comes by before the graph is
gone. Those lines count whose calls all went without, in most steps, of models that an optimizer
has: what a teacher or a target network gives is needed. So is what another model that is trained is
given as it is, or the target of a loss, though detached. How long they take is that of the host, by
the calls that were looked at; on a device they are taken to be as large a part of forwards as on
the host.

When it is wrong: where the result is needed in each step all the same: a policy's that acts, the
target that a critic's loss is made of, samples that are put together with others or changed before
a judge learns from them. Then only the graph is for nothing. Under torch.no_grad() a small network
is some 15 % faster, a large one some 4 %, and less memory is held. As nobody knows, half of the
call is taken for what can most likely go; where the same model learns from what another line calls
it for, with other tensors, no more than torch.no_grad() gives: that is what a target looks like.

What to do: torch.no_grad() around it, and where no step needs the result, call it only where
something is done with it (every hundredth step, once an epoch). What another call has computed
already can be kept instead. In training mode a call also moves BatchNorm's running statistics and
draws dropout's random numbers: without it they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.backward_gain import spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.unused_forwards import UnusedForwards
from trainprof.analysis.verdict_level import percent

ID: Final = "unused_forward"
KEYS: Final[tuple[str, ...]] = ("forward",)
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: what could go at most"),
}
# Of the call: all of it where nothing needs the result, a tenth where each step does.
_LIKELY_TO_GO: Final = 0.5
# What torch.no_grad() gives at most, of a forward: measured of small networks, torch 2.13 on a CPU.
_WITHOUT_GRAPH: Final = 0.15
MOST_S: Final = "unused_s"
_CALL_LESS_OFTEN: Final = (
    "torch.no_grad() around it, and call it only in steps that need the result"
)
_IF_NEEDED: Final = (
    "where each step needs the result, torch.no_grad() alone gives a small part of that, and memory"
)
_NO_GRAPH: Final = (
    "torch.no_grad() around it, which keeps no graph: some 4 to 15 % of the call, and memory"
)
_IF_NOT_NEEDED: Final = (
    "where no step needs the result (it is no target, nor what a policy acts by), call it only in "
    "steps that do: then all of the call goes"
)
STILL_CALLED: Final = (
    "in training mode a call also changes BatchNorm's running statistics and draws dropout's "
    "random numbers: without it they differ"
)


def find(case: Case) -> Finding | None:
    told = case.torch.forwards
    if not told or case.training_s <= 0:
        return None
    part = sum(one.share for one in told)
    forward_s = with_gradients_s(case)
    seconds = part * forward_s
    # The share is of all calls of modules, those in a dataset too, and compiling is in the
    # forwards: of the whole run on the host it is better known what the calls took.
    if not case.is_on_device and case.summary.run.part is None:
        seconds = min(sum(one.seconds for one in told), forward_s)
    share = seconds / case.training_s
    if share < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    likely_s = seconds * _likely_to_go(told)
    most, likely = of_python(case, seconds), of_python(case, likely_s)
    if most is None or likely is None:
        return None
    gain = replace(most, likely=likely.likely, saved_s=likely.saved_s)
    first = told[0]
    with_others = " with those below" if len(told) > 1 else ""
    advice, needed = _CALL_LESS_OFTEN, _IF_NEEDED
    if first.may_be_target:
        advice, needed = _NO_GRAPH, _IF_NOT_NEEDED
    return plain_finding(
        ID,
        f"no backward goes through what this call of {first.name} gives, with gradients enabled: "
        f"about {span(seconds)}{with_others}, {percent(share)} of training",
        gain,
        site=first.site,
        advice=advice,
        cautions=[needed, STILL_CALLED],
        also=[_also(one) for one in told[1:]],
        evidence={
            "forward_s": forward_s,
            "unused_share_of_forward": part,
            MOST_S: seconds,
            "lines": len(told),
            "may_be_targets": sum(one.may_be_target for one in told),
            "calls_looked_at": sum(one.looks for one in told),
        },
    )


def _likely_to_go(told: Sequence[UnusedForwards]) -> float:
    """Returns which share of all their calls goes most likely."""
    weights = [_WITHOUT_GRAPH if one.may_be_target else _LIKELY_TO_GO for one in told]
    spent_s = [one.seconds for one in told]
    if sum(spent_s) <= 0:
        return min(weights)
    return sum(w * s for w, s in zip(weights, spent_s, strict=True)) / sum(spent_s)


def with_gradients_s(case: Case) -> float:
    """Returns the seconds of forwards with gradients: a device's with all, nobody knows better."""
    training = case.summary.training
    without_s = 0.0 if case.is_on_device else training.forward_without_grad_s * training.steps
    return max(spent_in(case, "forward") - without_s, 0.0)


def _also(told: UnusedForwards) -> str:
    return f"the same holds for {told.name} at {told.site or 'another line'}"
