"""Ranks average gradients after each of several batches, and use them once.

What it means: gradients of some batches are added up for one update (accumulation), and
DistributedDataParallel averages them among ranks after every pass of backward. Only what is there
at the update counts: averaged once, after the last batch, it is the same.

How it is measured: from time to time, calls of models in DistributedDataParallel are looked at for
some steps. A line counts whose calls all have their gradients averaged (no_sync(), by which
accelerate's accumulate() and Lightning set `require_backward_grad_sync` aside, was on in none of
them), where calls follow one another with a pass of backward between them, no parameter written,
and gradients there for the next ones to come on top of.

When it is wrong: averaging goes on beside backward: where that takes longer, and the network is
quick, it costs little. What it costs only a rerun tells, so no gain is said. Where the script looks
at gradients between batches (their norm for a log), it sees one rank's own. FSDP and DeepSpeed are
not looked at.

What to do: `with model.no_sync():` around forward and backward of all but the last batch of an
update; that one has to average, or ranks drift apart. With accelerate: `with
accelerator.accumulate(model):`.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsNote
from trainprof.findings.gain import unmeasured_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext


def find(context: RunContext) -> Finding | None:
    notes = context.notes.last_list(GradientSyncsNote)
    if not notes or (context.summary.run.world_size or 1) < 2:
        return None
    first, share = max(notes, key=lambda note: note.batches), context.share("backward")
    if first.batches < RULE.threshold(context.settings, "batches"):
        return None
    if share < RULE.threshold(context.settings, "share"):
        return None
    batches = round(first.batches)
    before = "the first" if batches == 2 else f"the first {batches - 1:,}"
    return unmeasured_finding(
        RULE.id,
        f"ranks average gradients after each of {batches:,} batches, and use them once: that goes "
        f"on in backward, {percent(share)} of training",
        site=context.notes.sites.known(first.site),
        advice=f"with model.no_sync(): around forward and backward of {before} of each update "
        "(accelerate: with accelerator.accumulate(model):)",
        cautions=[
            "the last batch of each update has to average, or ranks drift apart",
            "between batches a gradient is then one rank's own",
        ],
        evidence={"batches_of_an_update": first.batches, "backward_share": share},
    )


RULE: Final = Rule(
    id="needless_averaging",
    thresholds={
        "batches": Threshold(1.5, "of an update: fewer are no accumulation"),
        "share": Threshold(0.1, "of training, in backward: what averaging is a part of"),
    },
    find=find,
    explanation=__doc__,
    order=250,
    traits=RuleTraits(keys=["backward"]),
)
