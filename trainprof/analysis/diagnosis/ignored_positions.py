"""Logits are computed for positions that the loss ignores.

What it means: of the targets of a cross entropy some are ignore_index: words that were not masked
in a masked language model, the question ahead of an answer, padding. For each of them the last
layer makes a logit for each class all the same, the loss goes through them, and backward through
both once more, with zeros.

How it is measured: in some steps, ever further apart, torch's cross entropy (and nll_loss) is
watched, inside of modules and outside: how many targets it ignores, and how long it takes; hooks on
its nodes tell what backward takes for it and for the matrix product that made the logits. Where the
product itself was made outside of modules, its time in forward is taken to be half of that in
backward, which is two of the kind.
Nothing is told of a line whose logits another such loss takes as well, or that backward went
through more than once, or where more rows of the product's gradient than the loss looks at were not
zero: something else learns from them (distillation, a second loss). Nor where the product is not of
hidden states and a learned weight: positions may meet in it.

When it is wrong: where something that is not learned from needs the logits of those positions: a
metric, generation. Where padding is told of as well (padded_batches), it is among what the loss
ignores: without it this saves less. A loss that a library's model computes itself is not told of,
nor one with reduction="none", on a GPU, or of a model that is compiled.

What to do: choose the positions ahead of the last layer: `known = targets != -100;
cross_entropy(head(hidden[known]), targets[known])`. The loss is the same, to rounding.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.backward_gain import gain_of, spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "ignored_positions"
KEYS: Final[tuple[str, ...]] = ("forward", "loss", "backward")
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: logits that the loss ignores"),
}
# Of that, what goes at least, likely and at most: to choose the rows takes a copy, but giving large
# logits back is not timed (1.04 to 1.2 times as much went of 500 to 2,300 positions on two cores).
_SAVES: Final = (0.75, 1.05, 1.3)
_LEAST_IGNORED: Final = 0.1
_PADDING: Final = (
    "padding is among what the loss ignores: where batches are padded to their own longest, this "
    "saves less"
)


def find(case: Case) -> Finding | None:
    losses = [one for one in case.torch.ignored if one.ignored >= _LEAST_IGNORED]
    if not losses or case.is_on_device or case.training_s <= 0:
        return None
    forward_s, loss_s, backward_s = (spent_in(case, phase) for phase in KEYS)
    spent_s = sum(one.spent for one in losses) * (forward_s + loss_s)
    spent_s = min(spent_s, forward_s + loss_s + backward_s)
    part = spent_s / case.training_s
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain = gain_of(case, [times * spent_s for times in _SAVES], is_of_whole_run=True)
    if gain is None:
        return None
    first, *others = losses
    with_others = " with those below" if others else ""
    return plain_finding(
        ID,
        f"the loss here ignores {percent(first.ignored)} of its {first.positions:,} targets a "
        f"step, for which {first.classes:,} logits each are computed, and gone back through: about "
        f"{span(spent_s)}{with_others}, {percent(part)} of training",
        gain,
        site=first.site,
        advice=(
            "choose positions ahead of the last layer: known = targets != ignore_index; "
            "cross_entropy(head(hidden[known]), targets[known])"
        ),
        cautions=[
            *([_PADDING] if _is_much_padding(case) else []),
            "where something else needs the logits of the other positions (a metric, "
            "generation), they have to stay for that",
            "losses may differ in the last digits",
        ],
        also=[f"so it is at {one.site}: {percent(one.ignored)} ignored" for one in others],
        evidence={
            "ignored_share": first.ignored,
            "positions": first.positions,
            "classes": first.classes,
            "times_forward": first.times,
            "lines": len(losses),
        },
    )


def _is_much_padding(case: Case) -> bool:
    told = case.torch.padding
    return told is not None and not told.is_left_out and told.needless_share >= _LEAST_IGNORED
