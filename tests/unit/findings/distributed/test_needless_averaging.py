"""Ranks that average gradients after each of several batches."""

from __future__ import annotations

from support.cases import healthy, noted, with_run
from support.findings import is_silent, reports, row

from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsNote
from trainprof.findings.run_context import RunContext


def averaging(batches: float, ranks: int = 2, backward_s: float = 1.0) -> RunContext:
    syncs = GradientSyncsNote(9, 1.0), GradientSyncsNote(1, batches)
    notes = noted(*syncs, places=("train.py:40",))
    return with_run(healthy(parts={"backward": backward_s}, notes=notes), world_size=ranks)


test_needless_averaging = reports(
    "needless_averaging",
    {"four": row(averaging(4.0), "train.py:40", batches_of_an_update=4.0, high=None)},
)
test_others = is_silent(
    "needless_averaging",
    {
        "hardly more than one": averaging(1.2),
        "no ranks": averaging(4.0, ranks=1),
        "quick backward": averaging(4.0, backward_s=0.01),
        "no notes": with_run(healthy(parts={"backward": 1.0}), world_size=2),
    },
)
