"""Within one forward the model computes the same again and again.

What it means: inside of a loop over time steps or layers, something is computed that the loop does
not change: a graph's adjacency or weights of parameters alone, the keys of a decoder's attention,
the bias of a batch's mask. Each but the first gives what is there already, and where it is learnt,
backward goes through each of them.

How it is measured: in some steps, ever further apart, torch's functions inside the model are
watched as it calls them. A call counts that was given, by its function and at the same line, what
another was given within the same outermost call of a module: tensors that nothing has been written
to since, or results of such calls, and other arguments that are equal; and that gave the same
numbers (some thousands of each are compared; where one differs, none counts). Nor does any where
the script then writes something else to what they gave, or where backward goes another way: through
a function that reverses gradients, a hook on a tensor, or to a leaf of its own. So random numbers
do not count, nor do views, nor what stays the same in all steps: constant_in_forward tells that.
Told is what most of those steps had, and the newest; each stands for the steps since the one
before. Nothing is told where that comes to more than forward took in all. Backward is taken to
spend the same share on it as forward does.

When it is wrong: where memory is what matters: what is kept lasts for all of forward. In a short
run the steps that are looked at may all be early, and the finding says so: what changes later is
not known. On a GPU, or
of a model that is compiled, nothing is told; nor of what the model of a library does inside.

What to do: compute it once in each forward, ahead of the loop, and pass it in. What a
parametrization computes (weight_norm, orthogonal) is kept for as long as a
`with torch.nn.utils.parametrize.cached():` lasts. nn.MultiheadAttention takes no keys that are
projected already: project them by hand, and use scaled_dot_product_attention. Gradients are then
added in another order: losses may differ by rounding. Batch normalization that is called less often
updates its running statistics less often, and dropout draws once for all.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import gain_of, spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.early_looks import are_of_others, seen_early
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.repeated_calls import (
    ATTENTION,
    PARAMETRIZATION,
    WEIGHT_NORM,
    RepeatedCalls,
    RepeatedLine,
)
from trainprof.analysis.verdict_level import percent

ID: Final = "repeated_in_forward"
KEYS: Final[tuple[str, ...]] = ("forward",)
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: computing again what one forward has computed"),
}
# Of forward's part, and of backward's, what goes at least, likely and at most: Python code between
# the functions goes, too; nobody has timed what backward does for them.
_SAVES: Final = ((0.8, 0.0), (1.0, 0.8), (1.25, 1.25))
# Of a phase: the first of the calls stays.
_MOST_OF_ALL: Final = 0.95
_BACKWARD: Final = (
    "what backward spends on it is taken to be the share that forward does; losses may differ by "
    "rounding, as gradients are added in another order"
)
_ACTS: Final = (
    "the line also calls batch normalization or dropout: running statistics are then updated once "
    "instead of each time, random numbers drawn once: what is trained changes"
)
_HOW: Final = {
    PARAMETRIZATION: "with torch.nn.utils.parametrize.cached(): around the loop that comes by here",
    WEIGHT_NORM: "torch.nn.utils.parametrizations.weight_norm (spectral_norm) in place of "
    "torch.nn.utils.weight_norm, and with torch.nn.utils.parametrize.cached(): around the loop "
    "that comes by here",
    ATTENTION: "nn.MultiheadAttention projects these keys and values anew: project them once, "
    "ahead of the loop that comes by here, and use F.scaled_dot_product_attention with them",
}
_MOST_NAMED: Final = 3
# Of a line, of all that such lines take, from which on it is named.
_NAMED_FROM: Final = 0.1


def find(case: Case) -> Finding | None:
    told = case.torch.repeated_calls
    if told is None or case.is_on_device or case.training_s <= 0:
        return None
    if are_of_others(case, told.step_s):
        return None
    forward_s, backward_s = _spent_s(case, told)
    part = (forward_s + backward_s) / case.training_s
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    saved_s = [
        min(one * forward_s, _MOST_OF_ALL * spent_in(case, "forward"))
        + min(other * backward_s, _MOST_OF_ALL * spent_in(case, "backward"))
        for one, other in _SAVES
    ]
    gain = gain_of(case, saved_s, is_of_whole_run=True)
    if gain is None:
        return None
    first, *others = told.lines
    named = [one for one in others if one.step_s >= _NAMED_FROM * told.step_s][:_MOST_NAMED]
    with_others = " with those below" if named else ""
    and_backward = f" and {span(backward_s)} of backward" if backward_s else ""
    return plain_finding(
        ID,
        f"{_who(first)} again what the same forward has computed, of the same: about "
        f"{span(forward_s)}{and_backward}{with_others}, {percent(part)} of training",
        gain,
        site=first.site,
        advice=_advice(first),
        cautions=[
            *([_BACKWARD] if backward_s else []),
            *([_ACTS] if any(one.acts for one in (first, *named)) else []),
            *seen_early(case, told.steps),
        ],
        also=[
            f"so it is at {one.site}, {percent(one.step_s / told.step_s)} of it" for one in named
        ],
        evidence={
            "repeated_s_a_step": told.step_s,
            "calls_a_step": sum(one.calls for one in told.lines),
            "backward_s": backward_s,
            "looks": told.looks,
            "lines": len(told.lines),
        },
    )


def _spent_s(case: Case, told: RepeatedCalls) -> tuple[float, float]:
    """Returns the seconds of forward, and of backward in proportion."""
    whole_s = spent_in(case, "forward")
    if whole_s <= 0:
        return 0.0, 0.0
    steps = case.summary.training.steps
    learns = min(told.learns_s * steps / whole_s, 1.0)
    return min(told.step_s * steps, whole_s), learns * spent_in(case, "backward")


def _who(line: RepeatedLine) -> str:
    if line.inside in (PARAMETRIZATION, WEIGHT_NORM):
        return "a parametrization computes a weight here"
    if line.package is None:
        return "the model computes here"
    return f"{line.package}, which the model calls here, computes"


def _advice(line: RepeatedLine) -> str:
    if line.inside is not None:
        return _HOW[line.inside]
    return "compute it once in each forward, ahead of the loop that comes by here, and pass it in"
