"""Backward computes gradients that are discarded before their optimizer steps.

What it means: the backward pass for one optimizer runs through a model that another one trains. A
discriminator's loss continues into the generator without .detach(), or an actor's loss computes
gradients of the critic. zero_grad() discards them.

How it is measured: over some 20 updates trainprof searches lines whose backward always loses the
gradients of one optimizer while another uses its own. Their cost is a share of backward, by the
modules' forward times: all of a module's if nothing before it is trained, else about half.

When it is wrong: a library may read these gradients. Nothing is reported if your script does.

What to do: .detach() the other model's output before it enters this loss. If this loss needs
gradients through that model, set .requires_grad_(False) on it for this backward. The training
result stays the same, unless these gradients count in a clipped norm.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import needless_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.record.notes import DiscardedGradients

_CLIPPED: Final = "gradients are clipped: updates change if the norm includes these"


def find(context: RunContext) -> Finding | None:
    notes, known = context.notes.last_list(DiscardedGradients), context.notes.sites.known
    if not notes:
        return None
    first, *others = sorted(notes, key=lambda note: -note.unused_share - note.mixed_share)
    model = first.model or "the other model"
    action, advice = "", f"pass the output of {model} to this loss with .detach()"
    if first.mixed_share:
        action = "Freeze the other model for this backward"
        advice = f".requires_grad_(False) on {model} before this forward, True after backward"
    return needless_finding(
        context,
        RULE.id,
        RULE.threshold(context.settings, "share"),
        notes,
        f"backward also computes gradients of {model}, which are discarded unused",
        site=known(first.site),
        action=action,
        advice=advice,
        cautions=[_CLIPPED] if context.clips_gradients else [],
        also=[
            f"{known(other.site) or 'another line'} does the same for {other.model}"
            for other in others
        ],
    )


RULE: Final = Rule(
    id="discarded_gradients",
    thresholds={"share": Threshold(0.03, "of training, estimated")},
    find=find,
    explanation=__doc__,
    order=190,
    traits=RuleTraits(keys=["backward"], action="Detach the other model's output"),
)
