"""Python code inside the model, other than torch's operators, takes long.

What it means: between torch's operators a forward (a loss, a backward of the user's own) does other
things: loops over elements, matching, building indices, NumPy on small arrays. Nothing is learned
from that while it goes on.

How it is measured: 25 times a second another thread asks to run. While torch's operators compute it
may do so at once, while other code runs it has to wait: where it waits for 0.1 ms or longer, such
code was running. So it was where it met a library's own code that has NumPy or SciPy and no torch,
which may let others run meanwhile. Time between operators that is shorter than that is not counted.
And where Python reads many values of tensors one by one (an element as a condition, .item()) each
read is noted: where a forward has 64 or more, all the time from one to the next counts where it is
less than 0.1 ms, with the small operators in it, for one operator on whole tensors would do the
same. A loop that only writes elements is not known.

When it is wrong: what is compiled (torch.compile) and C++ extensions that keep the interpreter to
themselves look like Python code. A run with torch.compile is not judged, nor one with torch's
anomaly detection, which itself puts down the Python stack of each operator. On a GPU such code
costs nothing while the device still has work queued: there only that counts in which it waits for
the host to give out work. NumPy on large arrays that the user's code calls itself lets others run,
and looks like torch's operators: it is not counted. Where looks come late, the operator behind such
code is told instead of its line; in backward, the functions of yours that it calls (hooks of
tensors and modules, custom autograd Functions). Where another thread of the script's runs Python
code now and then, nothing is said: it may be that.

What to do: look at the named line. What depends on the data alone belongs into the dataset, where
it is made once, or by workers beside training; the rest may do with torch's operators on whole
tensors. `trainprof lines` times each line.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.run.evidence import NAMED_FROM_SHARE
from trainprof.analysis.stacks.python_in_model import PARTS, TOLD_FROM_SHARE
from trainprof.analysis.summary.code import ElementReads
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import plain_finding, python_gain, sampled_gain
from trainprof.findings.model.python_in_model.probe import BackwardCodeNote
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import caller, place, span, takes_of_it

# Of the time found: a part with less of it is not named.
_NAMED_PART: Final = 0.2


def find(context: RunContext) -> Finding | None:
    known, reads = context.summary.python_in_model, context.summary.element_reads
    if reads is not None and (known is None or reads.seconds > known.total_s):
        return _by_elements(context, reads)
    return _by_looks(context)


def _by_elements(context: RunContext, reads: ElementReads) -> Finding | None:
    share = reads.seconds / context.training_s if context.training_s > 0 else 0.0
    if context.is_on_device or share < RULE.threshold(context.settings, "share"):
        return None
    gain = python_gain(context, reads.seconds)
    if gain is None:
        return None
    return plain_finding(
        RULE.id,
        f"{reads.part} goes through tensors element by element: Python reads {reads.per_pass:,.0f} "
        f"values one by one in each, which takes about {span(reads.seconds)}, {percent(share)} of "
        f"training and {percent(reads.share)} of {reads.part}",
        gain,
        site=reads.site,
        advice="compare, index and fill whole tensors at once (masks, torch.where); what has to be "
        "a loop goes through x.tolist(), or a NumPy array, much faster",
        evidence={
            "python_s": reads.seconds,
            "python_share": share,
            "reads_each_pass": round(reads.per_pass),
        },
    )


def _by_looks(context: RunContext) -> Finding | None:
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
    advice = "do it once, in the dataset, or with torch's operators"
    also = []
    if line is not None:
        advice, also = f"{takes_of_it(line)}: {advice}", caller(line)
    elif known.behind is not None:
        also = [f"it comes ahead of {place(known.behind)}, which computes with torch"]
    elif called:
        also = [f"backward calls {' and '.join(called)}: hooks or custom autograd Functions"]
    parts_share = spent_s / sum(context.training[name] for name in parts)
    inside = " and ".join(parts)
    return plain_finding(
        RULE.id,
        f"Python code inside {inside}, other than torch's operators, takes about {span(spent_s)}, "
        f"{percent(share)} of training and {percent(min(parts_share, 1.0))} of {inside}",
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
    thresholds={"share": Threshold(TOLD_FROM_SHARE, "of training (TraceML, gpuprof)")},
    find=find,
    explanation=__doc__,
    order=150,
    traits=RuleTraits(keys=[*PARTS], gain="samples", lines="always"),
    saves_in_steps=True,
)
