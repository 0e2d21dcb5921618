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

When it is wrong: where the result is needed in each step all the same: a policy's that acts,
samples that are put together with others or changed before a judge learns from them. Then only the
graph is for nothing. Under torch.no_grad() a small network is some 15 % faster, a large one some
4 %, and less memory is held. As nobody knows, half of the call is taken for what can most likely
go.

What to do: call it only where something is done with the result (every hundredth step, once an
epoch), and under torch.no_grad(). What another call has computed already can be kept instead.
"""

from __future__ import annotations

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


def find(case: Case) -> Finding | None:
    told = case.torch.forwards
    if not told or case.training_s <= 0:
        return None
    part = sum(one.share for one in told)
    forward_s = _with_gradients_s(case)
    seconds = part * forward_s
    # The share is of all calls of modules, those in a dataset too, and compiling is in the
    # forwards: of the whole run on the host it is better known what the calls took.
    if not case.is_on_device and case.summary.run.part is None:
        seconds = min(sum(one.seconds for one in told), forward_s)
    share = seconds / case.training_s
    if share < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    most, likely = of_python(case, seconds), of_python(case, seconds * _LIKELY_TO_GO)
    if most is None or likely is None:
        return None
    gain = replace(most, likely=likely.likely, saved_s=likely.saved_s)
    first = told[0]
    with_others = " with those below" if len(told) > 1 else ""
    return plain_finding(
        ID,
        f"no backward goes through what this call of {first.name} gives, with gradients enabled: "
        f"about {span(seconds)}{with_others}, {percent(share)} of training",
        gain,
        site=first.site,
        advice="torch.no_grad() around it, and call it only in steps that need the result",
        cautions=[
            "where each step needs the result, torch.no_grad() alone gives a small part of that, "
            "and memory"
        ],
        also=[_also(one) for one in told[1:]],
        evidence={
            "forward_s": forward_s,
            "unused_share_of_forward": part,
            "unused_s": seconds,
            "lines": len(told),
            "calls_looked_at": sum(one.looks for one in told),
        },
    )


def _with_gradients_s(case: Case) -> float:
    """Returns the seconds of forwards with gradients: a device's with all, nobody knows better."""
    training = case.summary.training
    without_s = 0.0 if case.is_on_device else training.forward_without_grad_s * training.steps
    return max(spent_in(case, "forward") - without_s, 0.0)


def _also(told: UnusedForwards) -> str:
    return f"the same holds for {told.name} at {told.site or 'another line'}"
