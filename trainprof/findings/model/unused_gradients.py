"""Backward computes gradients of parameters that no optimizer updates.

What it means: backward goes through a teacher that was not frozen, or a backbone of which the last
layer alone is trained, and adds the results up in .grad.

How it is measured: over some 20 updates, parameters of the modules that the script calls, that are
in none of its optimizers, and whose gradient backward keeps adding to. Of backward's time by that
of the modules' forwards: all of a module's where nothing before it is trained, else about half.

When it is wrong: where a library reads these gradients; where the script does, nothing is said.

What to do: .requires_grad_(False) on these parameters, once, before training. Gradients still go
through them to what is trained. If they were meant to learn, give them to the optimizer.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import needless_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.record.notes import UnusedGradients

_CAUTIONS: Final = (
    "where these gradients are clipped together with others, or logged, that changes",
    # torch gives a reentrant checkpoint no gradient where none of its inputs needs one.
    "activations are checkpointed: use_reentrant=False first, or x.requires_grad_() on inputs",
)


def find(context: RunContext) -> Finding | None:
    note = context.notes.last(UnusedGradients)
    if note is None:
        return None
    # Activations are checkpointed, or forwards computed again in another way.
    is_recomputed = context.training.get("recompute", 0.0) > 0
    whose = f" of {note.model}" if note.model else ""
    return needless_finding(
        context,
        RULE.id,
        RULE.threshold(context.settings, "share"),
        [note],
        f"backward computes the gradients of parameters{whose}, which no optimizer updates",
        site=context.notes.sites.known(note.model_site),
        advice=".requires_grad_(False) on those parameters, once, before training; or, if they "
        "were meant to learn, give them to the optimizer",
        cautions=[*_CAUTIONS[: 2 if is_recomputed else 1]],
    )


RULE: Final = Rule(
    id="unused_gradients",
    thresholds={"share": Threshold(0.03, "of training: what backward does for them")},
    find=find,
    explanation=__doc__,
    order=180,
    traits=RuleTraits(keys=["backward"], gain="estimate"),
)
