"""Backward computes gradients that are set back before their optimizer makes a step.

What it means: a pass that is meant for one optimizer goes through what others train: the
discriminator's goes on into the generator, as nobody called .detach(), or the actor's computes the
gradients of the critic. zero_grad() throws them away before their optimizer steps.

How it is measured: over some 20 updates, lines whose passes always lose one optimizer's gradients,
while another uses its own. Of backward's time by that of the modules' forwards: all of a module's
where nothing before it is trained, else about half.

When it is wrong: where a library reads these gradients; where the script does, nothing is said.

What to do: .detach() what another model gave to the loss; of one that the pass goes through,
.requires_grad_(False) on its parameters for as long. What is trained stays the same.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import needless_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.record.notes import DiscardedGradients

_CLIPPED: Final = "gradients are clipped: where these are in that norm, updates change"


def find(context: RunContext) -> Finding | None:
    notes, known = context.notes.last_list(DiscardedGradients), context.notes.sites.known
    if not notes:
        return None
    first, *others = sorted(notes, key=lambda note: -note.unused_share - note.mixed_share)
    model = first.model or "the other model"
    advice = f"give this loss what {model} gives with .detach()"
    if first.mixed_share:
        advice = (
            f".requires_grad_(False) on the parameters of {model} for this pass, True behind it"
        )
    return needless_finding(
        context,
        RULE.id,
        RULE.threshold(context.settings, "share"),
        notes,
        f"this backward also computes gradients of {model}, which are thrown away unused",
        site=known(first.site),
        advice=advice,
        cautions=[_CLIPPED] if context.clips_gradients else [],
        also=[
            f"so it is at {known(other.site) or 'another line'}, of {other.model}"
            for other in others
        ],
    )


RULE: Final = Rule(
    id="discarded_gradients",
    thresholds={"share": Threshold(0.03, "of training: what backward does for them")},
    find=find,
    explanation=__doc__,
    order=190,
    traits=RuleTraits(keys=["backward"], gain="estimate"),
)
