"""torch.compile compiles again what it has compiled before.

What it means: compiled code is good for what it was compiled with: shapes, flags, numbers held by
Python. Where one of these changes, torch compiles another version, while training waits. After
eight versions of one piece of code (recompile_limit) it gives up and runs that uncompiled. What is
compiled at all is shown as Compiled, by line; it lies in forward and backward.

How it is measured: torch's compiler tells when it begins, when it ends and what it compiles; the
first version of each piece of code is not counted, nor what evaluation makes it compile, nor time
in which a device was surely at work.

When it is wrong: a second version is often the last, made for every shape. It comes once: in a run
of hours it does not matter.

What to do: TORCH_LOGS=recompiles in front of the script says what changed.
torch.compile(..., dynamic=True), batches of one size (padding to few lengths, drop_last=True),
numbers in tensors instead of Python's.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "recompiling"
KEYS: Final[tuple[str, ...]] = ("forward", "backward")
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: what comes a few times matters in short runs alone"),
    "seconds": Threshold(1.0, "nobody changes a script for less"),
}
# torch's recompile_limit, unless the script sets another.
_VERSIONS_KEPT: Final = 8
_OTHER_DATA: Final = (
    "drop_last=True leaves samples out (not where a model is evaluated: its figures change), and "
    "padded places have to be masked, in the loss and in normalization too"
)


def find(case: Case) -> Finding | None:
    least_share = case.threshold(ID, "share", THRESHOLDS["share"].value)
    least_s = case.threshold(ID, "seconds", THRESHOLDS["seconds"].value)
    told = case.summary.compilations
    times, spent_s = sum(one.again for one in told), sum(one.again_s for one in told)
    if case.is_on_device:
        spent_s = sum(one.again_idle_s or 0.0 for one in told)
    if not told or spent_s < max(least_s, least_share * case.training_s):
        return None
    often = "once" if times == 1 else f"{times} times"
    worst = max(told, key=lambda one: one.again_s)
    versions = max(one.most_versions for one in told)
    given_up = f"after {_VERSIONS_KEPT} versions of one piece of code torch runs it uncompiled"
    return plain_finding(
        ID,
        f"torch.compile compiled again what it had compiled before, {often}: "
        f"{span(spent_s)}, {percent(spent_s / case.training_s)} of training",
        outside_steps(case, spent_s, with_warmup=True),
        site=worst.site,
        advice="torch.compile(..., dynamic=True), or one shape for all batches (padding, "
        "drop_last=True); TORCH_LOGS=recompiles says what changed",
        cautions=[_OTHER_DATA],
        evidence={
            "again_s": spent_s,
            "again_share": spent_s / case.training_s,
            "again": times,
            "versions": versions,
        },
        also=[f"{given_up}: that was reached"] if versions >= _VERSIONS_KEPT else [],
    )
