"""Backward goes through the same graph several times in an update.

What it means: several losses of one forward have a backward each (`retain_graph=True`), and each of
these goes all the way back through what the losses share.

How it is measured: in a few updates the graph of each pass is gone through, and its nodes are
timed: those that an earlier pass of the update went through, and kept, count. Nothing is told
where gradients were changed, or set back, between two passes, where a pass gives none to a
parameter that it reaches, nor where it gives one to what no optimizer has (an input, say), which
the next loss may be made of. Nor is anything told where a parameter has a hook, where what is gone
through again has a backward of its own in Python, or where the script's own code reads gradients
(`.grad`) or registers hooks for them anywhere: what these do to one loss's gradients they may not
do to a sum's.

When it is wrong: where a library hooks tensors between the model and a loss (to clip what comes
back), reads gradients between two passes, or on a device changes them by `.data`. The sum takes
more memory where each loss has a large part of the graph to itself, freed now after its pass, as
the logits of a large vocabulary in pieces.

What to do: add the losses up, and call backward once for the sum: gradients add up all the same.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import gain_of, spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import called_from, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.repeated_backward import RepeatedBackward
from trainprof.analysis.verdict_level import percent

ID: Final = "repeated_backward"
KEYS: Final[tuple[str, ...]] = ("backward",)
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: what backward goes through again"),
}
# Of what it goes through again, at least, likely, at most: what is left gets faster, too (a trunk
# of linear layers under two losses, torch 2.13 on one core: 1.2 times as much).
_SAVES: Final = (0.85, 1.0, 1.25)
_LAST_DIGITS: Final = "losses may differ in the last digits: gradients are summed in another order"
_MEMORY: Final = (
    "the graphs of all losses are then held at once, until that backward: it may take more memory"
)


def find(case: Case) -> Finding | None:
    told = case.torch.repeated_backward
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
        f"backward goes through the same graph {first.passes} times in an update: this pass"
        f"{called_from(first.called_from)} again through what that of {_first(first)} kept "
        "(retain_graph=True). "
        f"What it goes through again takes about {span(seconds)}{with_others}, {percent(part)} of "
        "training",
        gain,
        site=first.site,
        advice="add the losses up, and call backward() once for the sum, without retain_graph",
        cautions=[_LAST_DIGITS, _MEMORY],
        also=[_also(one) for one in told[1:]],
        evidence={
            "backward_s": spent_in(case, "backward"),
            "repeated_share_of_backward": share,
            "repeated_s": seconds,
            "passes": first.passes,
            "updates_looked_at": first.looks,
            "lines": len(told),
        },
    )


def _first(told: RepeatedBackward) -> str:
    if told.first is None:
        return "an earlier one"
    return "the one before it" if told.first == told.site else told.first


def _also(told: RepeatedBackward) -> str:
    at = told.site or "another line"
    return f"so it goes at {at}{called_from(told.called_from)} through what {_first(told)} kept"
