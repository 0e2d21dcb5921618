"""Ranks average gradients after each of several batches, but use them once.

What it means: with gradient accumulation, several batches add up their gradients for one update.
DistributedDataParallel averages them among ranks in every backward. Only the gradients at the
update count: averaging once, after the last batch, gives the same.

How it is measured: from time to time, trainprof checks calls of DistributedDataParallel models for
some steps. A line counts if none of its calls is under no_sync(), which accelerate's accumulate()
and Lightning use. There must also be a backward between calls, no write to a parameter, and
gradients for the next backward to add to.

When it is wrong: averaging overlaps with backward, so on a fast network it costs little. The gain
is not measured. If your code reads gradients between batches, to log their norm for example, it
will see those of one rank. FSDP and DeepSpeed are not checked.

What to do: put `with model.no_sync():` around forward and backward of all but the last batch of an
update. The last batch has to average, or ranks drift apart. With accelerate: `with
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
    before = "the first batch" if batches == 2 else f"the first {batches - 1:,} batches"
    return unmeasured_finding(
        RULE.id,
        f"ranks average gradients after each of {batches:,} batches but use them once; backward is "
        f"{percent(share)} of training",
        site=context.notes.sites.known(first.site),
        advice=f"with model.no_sync(): around forward and backward of {before} of each update "
        "(accelerate: accelerator.accumulate(model))",
        cautions=["the last batch of each update has to average, or ranks drift apart"],
        evidence={"batches_of_an_update": first.batches, "backward_share": share},
    )


RULE: Final = Rule(
    id="needless_averaging",
    thresholds={
        "batches": Threshold(1.5, "per update: fewer are not accumulation"),
        "share": Threshold(0.1, "of training, in backward, which averaging is part of"),
    },
    find=find,
    explanation=__doc__,
    order=250,
    traits=RuleTraits(keys=["backward"], action="Average gradients once per update"),
)
