"""The model compares all vectors with all others by one tensor that holds each number of each pair.

What it means: two tensors of vectors are spread over each other (`a[:, None] - b[None]`,
`a.unsqueeze(1) * b`), squared, and summed up along the vectors: distances to a codebook or to
prototypes, similarities of a contrastive loss, kernels. What lies in between is as many times as
large as there are vectors on the other side, is written to memory and read again, and backward
makes as much once more. A matrix product gives the same without it.

How it is measured: in some steps, ever further apart, torch's functions inside of modules
are watched as these call them: a difference or a product of two tensors of which each is spread
along a dimension of its own, at least 8 times as large as both, with vectors of 8 numbers and more;
its square; and its sum (mean, norm) along them. torch's cosine_similarity and pairwise_distance are
told where they are given all pairs so. Hooks on their nodes tell what backward takes for them. A
line is not told where anything else takes what it made, in any of these steps, or where the model
gives that out; nor under autocast, or of other numbers than float32 and float64; nor distances of
at most 25 vectors a side, of which cdist computes no matrix product and no second derivative, nor
any where gradients are differentiated (create_graph=True).

When it is wrong: where the large tensor is kept aside, and needed outside of modules, or is given
to a scripted function. A loss that is a plain function, and no module, is not watched; on a GPU, or
of a model that is compiled, nothing is told.

What to do: torch.cdist(a, b) for distances; a @ b.T for products; for cosines, F.normalize of both
and a product. Rounding differs: of points that nearly coincide, cdist's distances are less exact
(compute_mode="donot_use_mm_for_euclid_dist" keeps it exact, and takes longer).
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.broadcast_pairs import COSINE, DISTANCE, PRODUCT, ComparingLine
from trainprof.analysis.diagnosis.backward_gain import gain_of, spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "broadcast_pairs"
KEYS: Final[tuple[str, ...]] = ("forward", "backward")
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: comparing vectors by one large tensor"),
}
# Of what was timed of forward, and of backward, what goes at least, likely and at most: giving the
# memory back is not timed (256 x 256 vectors of 64 numbers on one core: 1.4 times as much went; of
# 8 x 8, two thirds).
_SAVES: Final = ((0.65, 0.75), (1.1, 1.0), (1.4, 1.3))
_HOW: Final = {
    PRODUCT: "a matrix product, a @ b.T, gives the sums without that tensor",
    DISTANCE: "torch.cdist(a, b) gives the distances (its square, the squared ones) without that "
    "tensor",
    COSINE: "F.normalize both along their vectors, and take the matrix product: a @ b.T",
}
_ROUNDED: Final = "losses may differ in the last digits"
_NEAR: Final = (
    "of points that nearly coincide, distances by a product are less exact, and so are their "
    "gradients"
)


def find(case: Case) -> Finding | None:
    told = case.torch.broadcast_pairs
    if told is None or case.is_on_device or case.training_s <= 0:
        return None
    lines = [one for one in told.lines if _may_be_replaced(case, one)]
    if not lines:
        return None
    forward_s, backward_s = _spent_s(case, lines)
    part = (forward_s + backward_s) / case.training_s
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    saved_s = [
        min(one * forward_s, spent_in(case, "forward"))
        + min(other * backward_s, spent_in(case, "backward"))
        for one, other in _SAVES
    ]
    gain = gain_of(case, saved_s, is_of_whole_run=True)
    if gain is None:
        return None
    first, *others = lines
    and_backward = f" and {span(backward_s)} of backward" if backward_s else ""
    with_others = " with those below" if others else ""
    return plain_finding(
        ID,
        f"the model compares {first.first:,} with {first.second:,} vectors of {first.long:,} "
        f"numbers here by a tensor of {first.numbers:,} numbers: about {span(forward_s)}"
        f"{and_backward}{with_others}, {percent(part)} of training",
        gain,
        site=first.site,
        advice=_HOW[first.what],
        cautions=[_ROUNDED, *([_NEAR] if first.what == DISTANCE else [])],
        also=[f"so it does at {one.site}: {_HOW[one.what]}" for one in others],
        evidence={
            "forward_s": forward_s,
            "backward_s": backward_s,
            "first": first.first,
            "second": first.second,
            "long": first.long,
            "numbers": first.numbers,
            "looks": told.looks,
            "lines": len(lines),
        },
    )


def _may_be_replaced(case: Case, line: ComparingLine) -> bool:
    """Whether training goes on with it: not each gradient of cdist's can be differentiated."""
    return line.what != DISTANCE or not case.torch.differentiates_gradients


def _spent_s(case: Case, lines: list[ComparingLine]) -> tuple[float, float]:
    """Returns the seconds of forward, and of backward."""
    forward_s = spent_in(case, "forward")
    times = sum(one.share * one.times for one in lines)
    return (
        min(sum(one.share for one in lines), 1.0) * forward_s,
        min(times * forward_s, spent_in(case, "backward")),
    )
