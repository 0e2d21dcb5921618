"""Gradients that nothing uses: of parameters outside of optimizers, or thrown away."""

from __future__ import annotations

from dataclasses import replace

from support.cases import healthy, noted
from support.findings import Row, is_silent, reports, row

from trainprof.findings.run_context import RunContext
from trainprof.record.notes import DiscardedGradients, UnusedGradients, record_of

RULES_HERE = ("unused_gradients", "discarded_gradients")
BACKWARD_SHARE = 1 / 3


TEACHER = UnusedGradients(0.8, 0.0, True, "ResNet", model_site=1)
CRITIC = replace(TEACHER, unused_share=0.0, mixed_share=0.9)
ITS_PASS = DiscardedGradients(0.5, 0.0, True, "Maker", site=1)
OTHER_PASS = DiscardedGradients(0.0, 0.3, True, "Judge", site=2)
MIXED_PASS = replace(OTHER_PASS, mixed_share=0.9)


def run_with(*notes: UnusedGradients, recompute_s: float = 0.0, clips: bool = False) -> RunContext:
    are_passes = isinstance(notes[0], DiscardedGradients)  # then one stands in a list, too
    known = noted(TEACHER, places=("train.py:41", "train.py:47"))
    known = replace(known, records=[record_of(notes if are_passes else notes[0])])
    context = healthy(parts={"backward": 1.0}, notes=known)
    training = {**context.training, "recompute": recompute_s}
    return replace(context, training=training, clips_gradients=clips)


def saving(
    low: float, high: float, *notes: UnusedGradients, site: str = "train.py:41", clips: bool = False
) -> Row:
    """Of backward, these shares."""
    ends = {"low": 1 / (1 - low * BACKWARD_SHARE), "high": 1 / (1 - high * BACKWARD_SHARE)}
    return row(run_with(*notes, clips=clips), site, rel=0.03, **ends, is_at_most=False)


def of_a_part(note: UnusedGradients) -> Row:
    return row(run_with(replace(note, from_start=False)), is_at_most=True)


test_unused_gradients = reports(
    "unused_gradients",
    {
        "a teacher": saving(0.72, 0.88, TEACHER),
        "a critic": saving(0.27, 0.495, CRITIC),
        "for a part of the run": of_a_part(TEACHER),
        "with checkpoints": row(run_with(TEACHER, recompute_s=0.2), is_only=False),
    },
)
test_discarded_gradients = reports(
    "discarded_gradients",
    {
        "a pass": saving(0.45, 0.55, ITS_PASS),
        "clipped": saving(0.45, 0.55, ITS_PASS, clips=True),
        "two passes": saving(0.54, 0.715, OTHER_PASS, ITS_PASS),
        "through the other model": saving(0.27, 0.495, MIXED_PASS, site="train.py:47"),
        "for a part of the run": of_a_part(ITS_PASS),
    },
)
test_little = is_silent(
    "unused_gradients", {"a little": run_with(UnusedGradients(0.05, 0.02, True))}
)
test_few = is_silent(
    "discarded_gradients", {"few": run_with(DiscardedGradients(0.03, 0.02, True, site=1))}
)
