"""torch.compile recompiles code that it had compiled before.

What it means: compiled code is valid for certain shapes, flags and Python numbers. When one of
these changes, torch compiles another version while training waits. After eight versions of one
piece of code (recompile_limit) torch runs it uncompiled.

How it is measured: torch's compiler reports the start and end of each compilation, its code, and
the guard that failed. First versions are not counted, nor the first one for training after
evaluation. Compilations in evaluation and time in which a GPU was busy are left out too.

When it is wrong: in a run of hours, a few recompilations do not matter. A second version is often
the last, for every shape, and is not reported.

What to do: run with TORCH_LOGS=recompiles to see what changed. Hold a changing number in a tensor:
lr=torch.tensor(1e-3). For changing shapes use torch.compile(..., dynamic=True), or batches of one
size. Padding has to be masked, in the loss and in normalization too. drop_last=True omits samples,
which changes the figures of validation.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.model.compilations import NUMBER
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import pair, percent
from trainprof.analysis.summary.run import COMPILE_KEY
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

# torch's recompile_limit, unless the script sets another.
_VERSIONS_KEPT: Final = 8
_NAMED: Final = "TORCH_LOGS=recompiles shows what changed"
_HOLD: Final = f"use a tensor, as in lr=torch.tensor(1e-3); {_NAMED}"
_SHAPES: Final = f"torch.compile(..., dynamic=True), or batches of one size; {_NAMED}"


def find(context: RunContext) -> Finding | None:
    least_share = RULE.threshold(context.settings, "share")
    least_s = RULE.threshold(context.settings, "seconds")
    known = context.summary.compilations
    times, spent_s = sum(x.again for x in known), sum(x.again_s for x in known)
    if context.is_on_device:
        spent_s = sum(x.again_idle_s or 0.0 for x in known)
    if times < RULE.threshold(context.settings, "times"):
        return None
    if not known or spent_s < max(least_s, least_share * context.training_s):
        return None
    worst = max(known, key=lambda x: x.again_s)
    versions = max(x.most_versions for x in known)
    is_number = worst.again_for[:1] == [NUMBER]
    limit = f"one piece of code reached {_VERSIONS_KEPT} versions: torch then runs it uncompiled"
    return plain_finding(
        RULE.id,
        f"torch.compile recompiles {times} times: {pair(spent_s, context.training_s)} of training "
        f"({percent(spent_s / context.training_s)})",
        outside_steps(context, spent_s, with_warmup=True),
        site=worst.site,
        action="Keep the changing number in a tensor" if is_number else "",
        advice=_HOLD if is_number else _SHAPES,
        cautions=[limit] if versions >= _VERSIONS_KEPT else [],
        evidence={
            "again_s": spent_s,
            "again_share": spent_s / context.training_s,
            "again": times,
            "versions": versions,
        },
    )


RULE: Final = Rule(
    id="recompiling",
    thresholds={
        "share": Threshold(0.05, "of training: in long runs a few recompilations do not matter"),
        "seconds": Threshold(1.0, "less is not worth a change"),
        "times": Threshold(
            2, "one more version, as of state that the first step builds, comes once"
        ),
    },
    find=find,
    explanation=__doc__,
    order=260,
    traits=RuleTraits(keys=[COMPILE_KEY], action="Avoid recompilations"),
    noise_matters=False,
)
