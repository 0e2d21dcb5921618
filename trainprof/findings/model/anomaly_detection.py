"""torch looks for NaN in every backward pass.

What it means: torch.autograd.set_detect_anomaly(True) is on. Each operation of the forward then
keeps the Python stack that it was called from, and each gradient is searched for NaN. That is for
finding a bug, and slows a model of many small operations to a tenth.

How it is measured: torch is asked after each backward pass whether it is on; twenty passes count.

When it is wrong: where it is meant to stay on. What it costs cannot be told from a run that has it:
a model of few large operations loses a tenth, one of many small ones most of its time.

What to do: take it out, or turn it on by an argument of the script, for when a NaN has come.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.gain import unmeasured_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    part = context.share(*COMPUTE_KEYS)
    if not context.torch.detects_anomalies or part < least:
        return None
    return unmeasured_finding(
        RULE.id,
        "torch's anomaly detection is on: forward and backward, "
        f"{percent(part)} of training, are slowed by it, and so is what is measured here",
        advice="take out torch.autograd.set_detect_anomaly(True) or detect_anomaly()",
        evidence={"computing_share": part},
    )


RULE: Final = Rule(
    id="anomaly_detection",
    thresholds={"share": Threshold(0.1, "of training, in forward and backward: what it slows")},
    find=find,
    explanation=__doc__,
    order=270,
    traits=RuleTraits(keys=["forward", "backward"], slows_everything=True),
)
