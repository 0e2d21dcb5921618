"""Gradients of gradients are prepared for at each update, and used at a few of them only.

What it means: a penalty of gradients (R1, R2, WGAN-GP, path lengths) is computed each time, with
autograd.grad(..., create_graph=True), but added to the loss at each sixteenth update, say: what it
takes at the others is thrown away, and so is the forward that it goes back through.

How it is measured: what each such call gives is given a hook that notes whether a pass of backward
comes by before its graph is gone. Those lines are told whose gradients are used at every nth update
that has some, without exception and four times at least, and let go of at all others. What is never
used may be read, and what is used at odd times may depend on its value. The time is that of the
passes that compute them; with the forward that they go back through up to two and a half times
that.

When it is wrong: where the script reads the penalty's value at each update (for a log, or to decide
by it) and needs it there.

What to do: compute it under the condition under which it is added to the loss. What is trained
stays the same to the bit, unless what is left out draws random numbers.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import gain_of, spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import called_from, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.rarely_used_gradients import RarelyUsedGradients
from trainprof.analysis.verdict_level import percent

ID: Final = "rarely_used_gradients"
KEYS: Final[tuple[str, ...]] = ("backward",)
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: the passes that compute what is not used"),
}
# Of these passes' time, what goes with them at least, likely, at most: no more where their forward
# serves the loss as well; with one of their own 2.0 to 2.4 times (perceptrons 384 to 1,024 wide, a
# convolutional judge, torch on one core).
_SAVES: Final = (0.9, 2.0, 2.5)


def find(case: Case) -> Finding | None:
    told = case.torch.rarely_used
    if not told or case.training_s <= 0:
        return None
    share = min(sum(one.share for one in told), 1.0)
    seconds = share * spent_in(case, "backward")
    part = seconds / case.training_s
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain = gain_of(case, [times * seconds for times in _SAVES], is_of_whole_run=True)
    if gain is None:
        return None
    first = told[0]
    with_others = " with those below" if len(told) > 1 else ""
    return plain_finding(
        ID,
        "backward uses the gradients that autograd.grad gives here"
        f"{called_from(first.called_from)} in 1 of "
        f"{first.period} updates: computing the others takes about {span(seconds)}{with_others}, "
        f"{percent(part)} of training",
        gain,
        site=first.site,
        advice="compute them, with the forward that they go back through, only in updates that "
        "use them: under the condition that adds them to the loss",
        cautions=[
            "what reads their value in the other updates (a log, a condition) needs them there, too"
        ],
        also=[_also(one) for one in told[1:]],
        evidence={
            "backward_s": spent_in(case, "backward"),
            "unused_share_of_backward": share,
            "unused_s": seconds,
            "used_each": first.period,
            "updates_looked_at": first.updates,
            "lines": len(told),
        },
    )


def _also(told: RarelyUsedGradients) -> str:
    at = told.site or "another line"
    return f"so it is at {at}{called_from(told.called_from)} in 1 of {told.period} updates"
