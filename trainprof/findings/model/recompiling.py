"""torch.compile compiles again what it has compiled before.

What it means: compiled code is good for what it was compiled with: shapes, flags, numbers held by
Python. Where one of these changes, torch compiles another version, while training waits. After
eight versions of one piece of code (recompile_limit) it gives up and runs that uncompiled. What is
compiled at all is shown as Compiled, by line; its time is a part of the ledger.

How it is measured: torch's compiler reports when it begins and ends, what it compiles, and which
guard failed. Not counted: the first version of each piece of code, the first for training after one
for evaluation (grad mode, model.training), what evaluation compiles, and time in which a device
surely worked.

When it is wrong: a second version is often the last, made for every shape, and is not reported.
What comes a few times does not matter in a run of hours.

What to do: TORCH_LOGS=recompiles in front of the script says what changed. Where it is a number
that Python holds (a learning rate): a tensor, lr=torch.tensor(1e-3). Where it is a shape:
torch.compile(..., dynamic=True), or batches of one size (padding to few lengths, drop_last=True).
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.model.compilations import NUMBER
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.run import COMPILE_KEY
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

# torch's recompile_limit, unless the script sets another.
_VERSIONS_KEPT: Final = 8
_OTHER_DATA: Final = (
    "drop_last=True leaves samples out (not where a model is evaluated: its figures change), and "
    "padded places have to be masked, in the loss and in normalization too"
)


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
    changed = worst.again_for
    versions = max(x.most_versions for x in known)
    given_up = f"after {_VERSIONS_KEPT} versions of one piece of code torch runs it uncompiled"
    return plain_finding(
        RULE.id,
        f"torch.compile compiled again what it had compiled before, {times} times: "
        f"{span(spent_s)}, {percent(spent_s / context.training_s)} of training",
        outside_steps(context, spent_s, with_warmup=True),
        site=worst.site,
        advice=f"{_advice(changed)}; TORCH_LOGS=recompiles says what changed",
        cautions=[] if changed == [NUMBER] else [_OTHER_DATA],
        evidence={
            "again_s": spent_s,
            "again_share": spent_s / context.training_s,
            "again": times,
            "versions": versions,
        },
        also=[f"{given_up}: that was reached"] if versions >= _VERSIONS_KEPT else [],
    )


def _advice(changed: list[str]) -> str:
    """Returns what to do about what changed; shapes where that is unknown."""
    if changed[:1] == [NUMBER]:
        return (
            "hold the number that changes in a tensor (of an optimizer: lr=torch.tensor(1e-3)), or "
            "leave it out of what is compiled"
        )
    return (
        "torch.compile(..., dynamic=True), or one shape for all batches (padding, drop_last=True)"
    )


RULE: Final = Rule(
    id="recompiling",
    thresholds={
        "share": Threshold(0.05, "of training: what comes a few times matters in short runs alone"),
        "seconds": Threshold(1.0, "nobody changes a script for less"),
        "times": Threshold(
            2, "one more version (of state built by the first step, say) comes once"
        ),
    },
    find=find,
    explanation=__doc__,
    order=260,
    traits=RuleTraits(keys=[COMPILE_KEY]),
    noise_matters=False,
)
