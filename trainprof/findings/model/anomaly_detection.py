"""Autograd anomaly detection is on, which slows forward and backward.

What it means: torch.autograd.set_detect_anomaly(True) is on. Each forward operation then records
its Python stack, and each gradient is searched for NaN. It is meant for debugging, and can make a
model of many small operations ten times slower.

How it is measured: torch is asked after each backward pass whether it is on. Twenty passes count.

When it is wrong: it may have to stay on. Its cost is unknown without a second run. It is a tenth in
a model of few large operations, and most of the time with many small ones.

What to do: remove it, or enable it by an option of your script when a NaN appears.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.findings.gain import unmeasured_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "share")
    part = context.share(*COMPUTE_KEYS)
    computing = context.of_step(part * context.training_s, *COMPUTE_KEYS)
    if not context.torch.detects_anomalies or part < least:
        return None
    return unmeasured_finding(
        RULE.id,
        f"anomaly detection is on and slows forward and backward, which take {computing}",
        advice="remove torch.autograd.set_detect_anomaly(True) or detect_anomaly()",
        evidence={"computing_share": part},
    )


RULE: Final = Rule(
    id="anomaly_detection",
    thresholds={"share": Threshold(0.1, "of training, in forward and backward")},
    find=find,
    explanation=__doc__,
    order=270,
    traits=RuleTraits(
        keys=["forward", "backward"],
        slows_everything=True,
        action="Turn off anomaly detection",
    ),
)
