"""Hooks on modules take much of a forward, and give nothing back to it.

What it means: a function given to register_forward_hook, or register_forward_pre_hook, runs
whenever its module is called, beside what the model computes: left from debugging, or a logger's of
activations. Nothing is learned from it.

How it is measured: of the looks at where training stands, those in a forward that met a line of
such a function, once warm-up was over. Hooks that the model had when it was first called count, if
they are the user's own, return nothing, change no tensor in place (x.mul_()) and, ahead of a call,
set no attribute: what does is a part of the model.

When it is wrong: where a function that a hook calls does so. Of a lambda nobody knows whether it
returns something, and changes the output by that. Hooks that collect what a loss is computed from
are needed; what they compute may not be. On a device nothing is said: there it is not the host's
time that counts.

What to do: take them off (the handle that register_forward_hook returned has .remove()), or return
at once but for one step in a hundred.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import NAMED_FROM_SHARE, Case
from trainprof.analysis.diagnosis.gains import of_looks
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span, takes_of_it
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "module_hooks"
KEYS: Final[tuple[str, ...]] = ("forward",)
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: less is in the noise of looks"),
}


def find(case: Case) -> Finding | None:
    told = case.summary.hooks_in_forward
    if told is None or case.is_on_device or case.training_s <= 0:
        return None
    share = told.seconds / case.training_s
    if share < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain = of_looks(case, told.seconds, told.looks, round(told.looks / told.share))
    if gain is None:
        return None
    line = next((one for one in told.lines if one.share >= NAMED_FROM_SHARE), None)
    where = "" if line is None else f": {takes_of_it(line)}"
    return plain_finding(
        ID,
        "hooks on the model's modules, which give it nothing back, take about "
        f"{span(told.seconds)}, {percent(told.share)} of forward and {percent(share)} of training",
        gain,
        site=line.site if line is not None else None,
        advice=f"take off what only looks on, or have it work in one step of a hundred{where}",
        cautions=["a hook that collects what a loss is made of, or returns something, is needed"],
        evidence={
            "hooks_s": told.seconds,
            "hooks_share_of_forward": told.share,
            "looks_that_met_hooks": told.looks,
            # What may be found in Python code besides is theirs up to that.
            "kept_s": told.seconds,
        },
    )
