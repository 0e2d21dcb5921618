"""A model is called once more in each step, without gradients, for the batch it was trained on.

What it means: a metric of the training batch (its accuracy, a norm for the log) is taken from a
second forward of the model, though the first one gave the same, but for what the update, dropout or
eval() make of it.

How it is measured: from time to time, the calls of each line are looked at for some steps: those
count that come after backward, and were given the very tensors that the same module was called with
before with gradients, not written to since, with the same other arguments, where nearly all calls
of the line are such, in at least every sixth step. Where all steps are for the same tensors (a
whole graph), none do. How long they take is that of the host; on a device it is taken as the same
share of its forwards.

When it is wrong: where the step needs what the model gives after its update (a line search, the
divergence at which PPO ends its epochs).

What to do: take what the first call has given (`output.detach()`), or look in every hundredth step.
In training mode a call also moves BatchNorm's running statistics and draws dropout's random
numbers: without it they differ.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.unused_forward import STILL_CALLED
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "repeated_forward"
KEYS: Final[tuple[str, ...]] = ("forward",)
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: what could go at most"),
}
# In evaluation mode, such a call may count as evaluation.
_THERE: Final = ("forward", "evaluation")


def find(case: Case) -> Finding | None:
    told = case.torch.repeats
    if not told or case.training_s <= 0:
        return None
    seconds = sum(one.seconds for one in told)
    if case.is_on_device:
        host_s = sum(case.training.get(phase, 0.0) for phase in _THERE)
        spent_s = sum(spent_in(case, phase) for phase in _THERE)
        seconds = min(seconds / host_s, 1.0) * spent_s if host_s > 0 else 0.0
    share = seconds / case.training_s
    gain = of_python(case, seconds)
    if share < case.threshold(ID, "share", THRESHOLDS["share"].value) or gain is None:
        return None
    first = told[0]
    with_others = " with those below" if len(told) > 1 else ""
    return plain_finding(
        ID,
        f"{first.name} is called here without gradients for the batch that it was trained on, once "
        f"more: about {span(seconds)}{with_others}, {percent(share)} of training",
        gain,
        site=first.site,
        advice="take what the first call gave (.detach()), or do this in every hundredth step",
        cautions=[
            "what the first call gave is from before the update, and in training mode if it was; "
            "a step that needs more than that (a line search, PPO's divergence) has to keep it",
            STILL_CALLED,
        ],
        also=[f"the same holds for {one.name} at {one.site or 'another line'}" for one in told[1:]],
        evidence={
            "repeated_s": seconds,
            "share": share,
            "lines": len(told),
            "calls_looked_at": sum(one.calls for one in told),
        },
    )
