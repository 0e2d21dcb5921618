"""Python code inside the model, other than torch operators, takes long.

What it means: a forward, a loss or your own backward function runs Python between torch operators.
Examples are loops over elements, matching, index building, NumPy on small arrays.

How it is measured: 25 times a second a sampling thread requests the GIL. torch operators release
it, so a wait of 0.1 ms or more means that Python ran. Libraries that use NumPy or SciPy without
torch count too. If a forward reads 64 or more tensor values one by one, the time between reads
counts where it is under 0.1 ms. On a GPU only the time counts in which it waits for kernel
launches.

When it is wrong: compiled code and C++ extensions that hold the GIL resemble Python. Runs with
torch.compile, anomaly detection or a second Python thread are not judged. NumPy on large arrays in
your code resembles torch and is not counted. A late sample can show the operator behind such code.
In backward it can show the hooks and autograd Functions that backward calls.

What to do: change the named line. What depends only on the data belongs into the dataset, where
workers prepare it during training. The rest can use torch operators on whole tensors. `trainprof
lines` times each line.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.run.evidence import NAMED_FROM_SHARE
from trainprof.analysis.stacks.python_in_model import PARTS, REPORTED_FROM_SHARE
from trainprof.analysis.summary.code import ElementReads
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import plain_finding, python_gain, sampled_gain
from trainprof.findings.model.python_in_model.probe import BackwardCodeNote
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import caller, place, takes_of_it

# Of that time: a part of a step with less of it is not named.
_NAMED_PART: Final = 0.2
_WHOLE_TENSORS: Final = "use masks or torch.where; a loop is faster over x.tolist()"
_ONCE: Final = "move it to the dataset, or use operators on whole tensors"


def find(context: RunContext) -> Finding | None:
    known, reads = context.summary.python_in_model, context.summary.element_reads
    if reads is not None and (known is None or reads.seconds > known.total_s):
        return _by_elements(context, reads)
    return _by_samples(context)


def _by_elements(context: RunContext, reads: ElementReads) -> Finding | None:
    share = reads.seconds / context.training_s if context.training_s > 0 else 0.0
    if context.is_on_device or share < RULE.threshold(context.settings, "share"):
        return None
    gain = python_gain(context, reads.seconds)
    if gain is None:
        return None
    return plain_finding(
        RULE.id,
        f"each {reads.part} reads {reads.per_pass:,.0f} tensor values one by one in Python: "
        f"{context.of_step(reads.seconds, reads.part)}",
        gain,
        site=reads.site,
        action="Use whole tensors in place of a Python loop",
        advice=_WHOLE_TENSORS,
        evidence={
            "python_s": reads.seconds,
            "python_share": share,
            "reads_each_pass": round(reads.per_pass),
        },
    )


def _by_samples(context: RunContext) -> Finding | None:
    known = context.summary.python_in_model
    if known is None:
        return None
    spent_s = known.total_s
    if context.is_on_device:
        spent_s = min(spent_s, context.launching_s() or 0.0)
    share = spent_s / context.training_s if context.training_s > 0 else 0.0
    if share < RULE.threshold(context.settings, "share"):
        return None
    gain = sampled_gain(context, spent_s, known.held, known.samples)
    if gain is None:
        return None
    note = context.notes.last(BackwardCodeNote) if known.called_by_backward else None
    places = map(context.notes.sites.known, () if note is None else note.sites)
    called = [place for place in places if place is not None]
    parts = [name for name in known.seconds if known.seconds[name] >= _NAMED_PART * spent_s]
    line = next((x for x in known.lines if x.share >= NAMED_FROM_SHARE), None)
    advice, also = _ONCE, []
    if line is not None:
        advice, also = f"{takes_of_it(line)}: {advice}", caller(line)
    elif known.behind is not None:
        also = [f"it runs before {place(known.behind)}, which computes with torch"]
    elif called:
        also = [f"backward calls {' and '.join(called)}: hooks or custom autograd Functions"]
    return plain_finding(
        RULE.id,
        f"Python code inside {' and '.join(parts)} takes {context.of_step(spent_s, *PARTS)}",
        gain,
        site=line.site if line is not None else called[0] if len(called) == 1 else None,
        advice=advice,
        also=also,
        evidence={
            "python_s": spent_s,
            "python_share": share,
            "by_part_s": dict(known.seconds),
            "looks": known.samples,
            "looks_that_waited": known.held,
            "line_share": line.line_share if line is not None else None,
            "function_share": line.share if line is not None else None,
            "called_by_backward": called or None,
        },
    )


RULE: Final = Rule(
    id="python_in_model",
    thresholds={"share": Threshold(REPORTED_FROM_SHARE, "of training (TraceML, gpuprof)")},
    find=find,
    explanation=__doc__,
    order=150,
    traits=RuleTraits(
        keys=[*PARTS],
        lines="always",
        action="Move Python code out of the model",
    ),
    saves_in_steps=True,
)
