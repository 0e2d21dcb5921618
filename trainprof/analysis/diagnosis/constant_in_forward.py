"""The model computes something anew in each step that never changes.

What it means: a mask, a position encoding, a graph's Laplacian, a filter is made inside of forward,
of nothing but sizes, buffers and settings: of nothing that comes with the batch or is learnt. Each
step makes the same numbers again.

How it is measured: in some steps, ever further apart, torch's functions inside the model are
watched as it calls them. What was given no tensor, or such alone as hold the same numbers as in the
look before (by where they lie, and by how often they were written to), and gave the same numbers in
each look (some thousands of them are compared), counts, with the time that it took there. What is
told is looked at again for as long as training lasts, and told no longer once it changes. Told are
lines of the user's model: those that call torch, and those that call a library which does. What the
model of a library computes inside is its own affair.

When it is wrong: what stays the same for these steps may change later: by epoch, by a schedule, or
with the length of a batch; in a short run the steps that are looked at may all be early, and the
finding says so. NumPy's and SciPy's functions are not seen, nor is a loss outside of any module.
Nothing is told of a model on a GPU, or of one that is compiled.

What to do: compute it once, in `__init__`, and keep it: `self.register_buffer("mask", mask,
persistent=False)` moves along with the model. Where it depends on a length, keep the longest and
cut it to size, or keep one for each length (functools.lru_cache). Some libraries' layers keep it
themselves, where they are told to: `GCNConv(..., cached=True)` of torch_geometric, on one graph.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.constants import ConstantLine
from trainprof.analysis.diagnosis.backward_gain import gain_of, spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.early_looks import are_of_others, seen_early
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "constant_in_forward"
KEYS: Final[tuple[str, ...]] = ("forward",)
THRESHOLDS: Final = {
    "share": Threshold(0.03, "of training: computing what stays the same"),
}
# Of the time in torch's functions, what goes at least, likely and at most: Python code between them
# goes too, and the caches are left to others.
_SAVES: Final = (0.8, 1.0, 1.25)
_MOST_NAMED: Final = 3
# Of a line, of all that such lines take, from which on it is named.
_NAMED_FROM: Final = 0.1
_KEEPS_IT: Final = "such as cached=True of torch_geometric's GCNConv and SGConv"
# Bytes, from which on it is said what keeping it takes.
_MUCH: Final = 64 << 20


def find(case: Case) -> Finding | None:
    told = case.torch.constants
    if told is None or case.is_on_device or case.training_s <= 0:
        return None
    if are_of_others(case, told.step_s):
        return None
    seconds = min(told.step_s * case.summary.training.steps, spent_in(case, "forward"))
    part = seconds / case.training_s
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain = gain_of(case, [times * seconds for times in _SAVES], is_of_whole_run=True)
    if gain is None:
        return None
    first, *others = told.lines
    named = [one for one in others if one.step_s >= _NAMED_FROM * told.step_s][:_MOST_NAMED]
    with_others = " with those below" if named else ""
    return plain_finding(
        ID,
        f"{_who(first)} the same in each step, of nothing that the batch brings or that is learnt: "
        f"about {span(seconds)}{with_others}, {percent(part)} of training",
        gain,
        site=first.site,
        advice=_advice(first),
        cautions=[
            f"it was the same in all {told.looks} steps that were looked at: what changes later, "
            "by epoch or with the length of a batch, has to be computed anew then",
            *seen_early(case, told.steps),
            *_of_memory(told.lines),
        ],
        also=[
            f"so it is at {one.site}, {percent(one.step_s / told.step_s)} of it" for one in named
        ],
        evidence={
            "constant_s_a_step": told.step_s,
            "looks": told.looks,
            "lines": len(told.lines),
            "bytes": max(one.bytes for one in told.lines),
        },
    )


def _who(line: ConstantLine) -> str:
    if line.package is None:
        return "the model computes here"
    return f"{line.package}, which the model calls here, computes"


def _advice(line: ConstantLine) -> str:
    once = (
        "compute it once, in __init__, and keep it (self.register_buffer(name, value, "
        "persistent=False)), or anew only where what it depends on has changed"
    )
    if line.package is None:
        return once
    return f"have {line.package} keep it, where it can ({_KEEPS_IT}), or {once}"


def _of_memory(lines: list[ConstantLine]) -> list[str]:
    most = max(one.bytes for one in lines)
    return [f"keeping it takes some {most / (1 << 20):,.0f} MiB"] if most >= _MUCH else []
