"""Backward computes gradients of parameters that no optimizer updates.

What it means: backward runs through a teacher that is not frozen, or a backbone of which only the
last layer is trained. The results accumulate in .grad.

How it is measured: over some 20 updates trainprof searches parameters of called modules that are in
no optimizer and whose gradients keep growing. Their cost is a share of backward, by the modules'
forward times: all of a module's if nothing before it is trained, else about half.

When it is wrong: a library may read these gradients. Nothing is reported if your script does.

What to do: call .requires_grad_(False) on these parameters once, before training. Gradients still
pass through them to the parameters that are trained. If they should learn, give them to the
optimizer. Reentrant activation checkpointing then needs use_reentrant=False, or inputs that require
gradients.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import needless_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.record.notes import UnusedGradients

_CLIPPED: Final = "gradients are clipped: updates change if the norm includes these"
# torch gives a reentrant checkpoint no gradient if none of its inputs needs one.
_CHECKPOINTED: Final = "activations are checkpointed: set use_reentrant=False first"


def find(context: RunContext) -> Finding | None:
    note = context.notes.last(UnusedGradients)
    if note is None:
        return None
    # Activations are checkpointed, or forwards computed again otherwise.
    is_recomputed = context.training.get("recompute", 0.0) > 0
    whose = f" of {note.model}" if note.model else ""
    cautions = [_CHECKPOINTED] if is_recomputed else []
    cautions += [_CLIPPED] if context.clips_gradients else []
    return needless_finding(
        context,
        RULE.id,
        RULE.threshold(context.settings, "share"),
        [note],
        f"backward computes gradients of parameters{whose} that no optimizer updates",
        site=context.notes.sites.known(note.model_site),
        advice=".requires_grad_(False) on them before training, or add them to the optimizer",
        cautions=cautions,
    )


RULE: Final = Rule(
    id="unused_gradients",
    thresholds={"share": Threshold(0.03, "of training, estimated")},
    find=find,
    explanation=__doc__,
    order=180,
    traits=RuleTraits(keys=["backward"], action="Freeze parameters that no optimizer updates"),
)
