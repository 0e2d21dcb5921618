"""Sequences are padded further than the longest of their batch.

What it means: sequences of one batch have to be as long as each other, and are filled up with a
value that stands for nothing. Where all batches are filled up to one length (padding="max_length")
the model computes for positions that no sequence of the batch has: a layer takes as long for them
as for others, and attention longer.

How it is measured: tables of whole numbers that the model is given in training, a few batches of
them, spread over the run: how far their rows end, or begin, with one and the same value. Tables of
zeros and ones are masks where the ones of all rows lie together at one end, beside a table as large
that they mask: of other whole numbers, or of fractions that are not computed. Elsewhere they are
features, or what is to be learned (ranks, the times that somebody was seen at).
A value that rows also hold elsewhere is no padding (a wall, a black pixel, a flag that is not set):
more than 5 % of what they hold, or of what rows longer than the middle one hold beyond its length.
Nor are places that all rows of a batch end with, about as long as each other, so that less than 2 %
of what they hold lies beyond that length: columns of a table, an image's edge. Such tables count as
full, unless a mask of whole numbers leaves those places out; few beside more that are padded are
not counted.
On a device they are looked at as they are copied there. What goes beyond the longest row of a batch
is left out at no cost; padding up to it is not told, though half of a batch may be that. Calls that
are given larger tables of fractions (pictures, sounds) are left aside, and what other models take
in the same steps. What is saved of forward and backward is that share of them, or a little more, as
attention grows with the square of the length.

When it is wrong: where the model itself cuts its input, or leaves padding out (nothing is told
where the script's files name packed or nested sequences); where rows truly end with a value that
they hardly hold elsewhere, and differ in how far; where zeros and ones that are to be learned lie
beside fractions as many. Nothing is told of sequences that are about as long as each other in most
batches, or that hold what pads them, without a mask of whole numbers.

What to do: pad each batch to its own longest, as it is put together: DataCollatorWithPadding, or
tokenizer.pad in collate_fn, and no padding="max_length" ahead of it; torch.nn.utils.rnn.
pad_sequence. Labels that each token has are to be padded as well: DataCollatorForSeq2Seq and
DataCollatorForTokenClassification do so, DataCollatorWithPadding does not. A model that is made for
one width keeps it; where padding stands in front, one that counts positions from the first place
learns otherwise. Batches of sequences of like length (group_by_length=True, a sampler that sorts by
length) save more, but change the order of the data. Under torch.compile each new width is compiled
once: pad to a multiple of 32 or so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.backward_gain import spent_in
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "padded_batches"
KEYS: Final[tuple[str, ...]] = ("forward", "backward")
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training, computing for padding that no row of a batch needs"),
}
_LEAST_LOOKS: Final = 4
# What computing grows with, at most: with the length its layers, with its square attention.
_GROWS_WITH: Final = 1.5
_COMPUTING: Final = ("forward", "loss", "backward", "recompute")
_HUGGING_FACE: Final = "transformers"
_WIDTH: Final = (
    "a model that is made for one width fails with others: a Linear layer over all positions, a "
    "fixed table of them (CLIP's 77), an exported graph"
)
_IN_FRONT: Final = (
    "padding stands in front: positions that are counted from the left shift with the width "
    "of each batch, and the model learns otherwise (position_ids that leave padding out do not)"
)
_CHANGES: Final = (
    "batches then differ in width: what torch.compile compiles, it compiles for each (pad to a "
    "multiple of 32 or so); what a model makes of padding that is not masked changes"
)


def find(case: Case) -> Finding | None:
    told = case.torch.padding
    if told is None or told.looks < _LEAST_LOOKS or told.is_left_out:
        return None
    computing_s = told.of_calls * _computing_s(case)
    spent_s = told.needless_share * computing_s
    part = spent_s / case.settled_s if case.settled_s > 0 else 0.0
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    gain = of_python(case, spent_s, with_warmup=False)
    at_most_s = computing_s * (1 - (1 - told.needless_share) ** _GROWS_WITH)
    most = of_python(case, at_most_s, with_warmup=False)
    if gain is None or most is None:
        return None
    feeding = case.feeding[0].loader if case.feeding else None
    site = told.sites[0] if len(told.sites) == 1 else None
    if not told.sites and feeding is not None:
        site = feeding.collate_site or feeding.site
    return plain_finding(
        ID,
        f"sequences are padded to {told.width:.0f} positions, of which the longest of a batch "
        f"fills {told.longest:.0f} and the average one {told.length:.0f}: {percent(part)} of "
        f"{case.summary.time_of_devices} is computing for positions that none of a batch fills",
        replace(gain, training=(1.0, most.training[1]), run=(1.0, most.run[1])),
        site=site,
        advice=_advice(case, has_labels=told.has_labels),
        cautions=[_CHANGES, _WIDTH, *([_IN_FRONT] if told.is_left else [])],
        also=_also(told.sites, told.share),
        evidence={
            "width": told.width,
            "longest": told.longest,
            "length": told.length,
            "looks": told.looks,
            "computing_s": computing_s,
            "needless_s": spent_s,
        },
    )


def _computing_s(case: Case) -> float:
    """Returns for how long the model is computed: on a device, as long as it surely is at work."""
    computing_s = sum(spent_in(case, phase) for phase in _COMPUTING)
    if not case.is_on_device:
        return computing_s
    devices = case.summary.devices or ()
    at_work = devices[0].busy_share if devices else None
    return min(computing_s, at_work[0] * case.settled_s) if at_work else 0.0


def _advice(case: Case, *, has_labels: bool) -> str:
    if not case.has_loader_of(_HUGGING_FACE):
        labels = ", and its labels with the value that the loss ignores" if has_labels else ""
        return (
            "pad each batch to its own longest in collate_fn (torch.nn.utils.rnn.pad_sequence, or "
            f"the tokenizer's padding=True for the texts of one batch){labels}"
        )
    first = 'drop padding="max_length" where texts are tokenized'
    if not has_labels:
        return f"{first}; DataCollatorWithPadding(tokenizer) pads each batch to its longest"
    return (
        f"{first}; DataCollatorForSeq2Seq(tokenizer) pads each batch to its longest, its labels "
        "too, as DataCollatorForTokenClassification does where each token has one; "
        "DataCollatorForLanguageModeling(tokenizer, mlm=False) makes them of the ids, and takes no "
        "column of labels (DataCollatorWithPadding leaves labels as they are, and then fails)"
    )


def _also(sites: tuple[str, ...], share: float) -> list[str]:
    also = [f"it is asked for at {' and '.join(sites)}"] if len(sites) > 1 else []
    return [
        *also,
        f"{percent(share)} of all positions are padding: batches of sequences of like length "
        "(group_by_length=True, a sampler that sorts by length) save more, and change the order "
        "of the data",
    ]
