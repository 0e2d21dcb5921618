"""Sequences are padded further than the longest of their batch.

What it means: where all batches are filled up to one length (padding="max_length"), the model
computes for positions that no sequence of the batch has.

How it is measured: tables of whole numbers that models are given in training, a few batches of
them, by their attention_mask, else by the padding_idx of an nn.Embedding; on a device as they are
copied there. Where neither is known, or the script's files name packed or nested sequences, nothing
is said. Saved of forward and backward is the share of positions that no sequence of the batch has,
or a little more, as attention grows with the square of the length.

When it is wrong: where the model itself cuts its input, or is made for one width.

What to do: pad each batch to its own longest, as it is put together: DataCollatorWithPadding (where
tokens have labels DataCollatorForSeq2Seq, which pads those too), or tokenizer.pad in collate_fn,
and no padding="max_length" ahead of it; torch.nn.utils.rnn.pad_sequence.
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

_LEAST_LOOKS: Final = 4
# What computing grows with, at most: layers with the length, attention with its square.
_GROWS_WITH: Final = 1.5
_ADVICE: Final = (
    "pad each batch to its own longest as it is put together: DataCollatorWithPadding (with labels "
    'of tokens DataCollatorForSeq2Seq) and no padding="max_length", or '
    "torch.nn.utils.rnn.pad_sequence in collate_fn"
)
_CAUTIONS: Final = (
    "batches then differ in width: torch.compile compiles for each (pad to a multiple of 32), a "
    "model that is made for one width fails, and what is not masked or counts positions changes"
)


def find(context: RunContext) -> Finding | None:
    note = context.notes.last(PaddingNote)
    if note is None or note.looks < _LEAST_LOOKS or note.rows <= 0 or note.is_left_out:
        return None
    rows, places, filled, longest = note.rows, note.places, note.filled, note.longest
    if not 0 < filled <= longest <= places:
        return None
    computing_s = sum(spent_in(context, x) for x in ("forward", "loss", "backward", "recompute"))
    if context.is_on_device:  # as long as it surely is at work
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
    return plain_finding(
        RULE.id,
        f"sequences are padded to {lengths['width']:.0f} positions, of which the longest of a "
        f"batch fills {lengths['longest']:.0f} and the average one {lengths['length']:.0f}: "
        f"{percent(part)} of {context.summary.time_of_devices} is computing for the rest",
        replace(gain, training=(1.0, most.training[1]), run=(1.0, most.run[1])),
        site=next((site for site in (*asked_at, *collated_at) if site is not None), None),
        advice=_ADVICE,
        cautions=[_CAUTIONS],
        evidence={**lengths, "computing_s": computing_s, "needless_s": spent_s},
    )


RULE: Final = Rule(
    id="padded_batches",
    thresholds={
        "share": Threshold(0.05, "of training, computing for padding that no row of a batch needs"),
    },
    find=find,
    explanation=__doc__,
    order=210,
    traits=RuleTraits(keys=["forward", "backward"], gain="estimate"),
    saves_in_steps=True,
)
