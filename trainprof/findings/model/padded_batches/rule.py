"""Sequences are padded beyond the longest one of their batch.

What it means: all batches are padded to one length (padding="max_length"), so the model computes
positions that no sequence of the batch has.

How it is measured: trainprof counts padding in a few integer tables that models get in training, by
their attention_mask or by the padding_idx of an nn.Embedding. On a GPU the copied table counts.
Nothing is reported without either of them, or if your files use packed or nested sequences. The
gain is the share of such positions in forward and backward, or more, as attention grows with the
square of the length.

When it is wrong: the model may crop its input itself, or need a fixed width.

What to do: pad in collate_fn, to the longest sequence of the batch. transformers has
DataCollatorWithPadding, and DataCollatorForSeq2Seq for labels of tokens; torch has
torch.nn.utils.rnn.pad_sequence. Remove padding="max_length" from the tokenizer's call. Batches then
differ in width. Results change where positions are counted or not masked. torch.compile compiles
again for each width: pad to a multiple of 32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import plain_finding, python_gain, spent_in
from trainprof.findings.model.padded_batches.probe import PaddingNote
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

_LEAST_STEPS: Final = 4
_COMPUTING: Final = ("forward", "loss", "backward", "recompute")
# What computing grows with, at most: layers with the length, attention with its square.
_GROWS_WITH: Final = 1.5
_ADVICE: Final = 'collate_fn=DataCollatorWithPadding(tokenizer), without padding="max_length"'
_OF_TORCH: Final = "torch.nn.utils.rnn.pad_sequence in collate_fn, without a fixed length"
_COMPILED: Final = "torch.compile compiles again for each width: pad to a multiple of 32"


def find(context: RunContext) -> Finding | None:
    note = context.notes.last(PaddingNote)
    if note is None or note.looks < _LEAST_STEPS or note.rows <= 0 or note.is_left_out:
        return None
    rows, places, filled, longest = note.rows, note.places, note.filled, note.longest
    if not 0 < filled <= longest <= places:
        return None
    computing_s = sum(spent_in(context, x) for x in _COMPUTING)
    if context.is_on_device:  # while it surely is busy
        at_work = context.summary.devices[0].busy_share if context.summary.devices else None
        computing_s = min(computing_s, at_work[0] * context.settled_s) if at_work else 0.0
    computing_s *= min(note.reading_ns / max(note.all_ns, 1), 1.0)
    spent_s = (1 - longest / places) * computing_s
    part = spent_s / context.settled_s if context.settled_s > 0 else 0.0
    gain = python_gain(context, spent_s, with_warmup=False)
    most = python_gain(
        context, computing_s * (1 - (longest / places) ** _GROWS_WITH), with_warmup=False
    )
    if part < RULE.threshold(context.settings, "share") or not (gain and most):
        return None
    asked_at = (context.notes.sites.known(site) for site in note.sites)
    collated_at = (x.loader.collate_site or x.loader.site for x in context.feeding[:1])
    lengths = {"width": places / rows, "longest": longest / rows, "length": filled / rows}
    time = f"{percent(part)} of {context.summary.time_of_devices}"
    time = time if context.is_on_device else context.of_step(spent_s, *_COMPUTING)
    return plain_finding(
        RULE.id,
        f"batches are padded to {lengths['width']:.0f} positions, their longest sequence has "
        f"{lengths['longest']:.0f}: the rest takes {time}",
        replace(gain, training=(1.0, most.training[1]), run=(1.0, most.run[1])),
        site=next((site for site in (*asked_at, *collated_at) if site is not None), None),
        advice=_ADVICE if note.sites else _OF_TORCH,
        cautions=[_COMPILED] if context.summary.compilations else [],
        evidence={**lengths, "computing_s": computing_s, "needless_s": spent_s},
    )


RULE: Final = Rule(
    id="padded_batches",
    thresholds={
        "share": Threshold(0.05, "of training, computing positions that no sequence has"),
    },
    find=find,
    explanation=__doc__,
    order=210,
    traits=RuleTraits(
        keys=["forward", "backward"],
        action="Pad each batch to its longest sequence",
    ),
    saves_in_steps=True,
)
