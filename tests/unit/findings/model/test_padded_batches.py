"""Batches that are padded beyond their longest sequence, and what leaving that out gives."""

from __future__ import annotations

from typing import Any

from support.cases import Planted, case_of, noted, with_run, with_summary
from support.findings import Row, is_silent, reports, row

from trainprof.analysis.summary.device import Device
from trainprof.findings.model.padded_batches.probe import PaddingNote
from trainprof.findings.run_context import RunContext

# Of batches of 10 rows.
COUNTS = {"looks": 12, "rows": 120, "places": 19_200, "filled": 4_320, "longest": 10_800}
LEFT = 10_800 / 19_200


def padded(at: str | None = None, *, collate: str | None = None, **changes: Any) -> RunContext:
    """Most of training is forward and backward."""
    planted = Planted(workers=2, fetch_s=0.001, compute_s=0.01).having(collate_site=collate)
    values: dict[str, Any] = {**COUNTS, **changes, "sites": (1,) if at else ()}
    notes = noted(PaddingNote(**values), places=(at,) if at else ())
    return case_of(planted, parts={"forward": 0.7, "backward": 1.3}, notes=notes)


def saving(context: RunContext, site: str, of_computing: float = 1.0) -> Row:
    computing_s = sum(context.training.get(part, 0.0) for part in ("forward", "loss", "backward"))
    spent_s = (1 - LEFT) * of_computing * computing_s
    likely = context.training_s / (context.training_s - spent_s)
    of_rows = {"width": 160.0, "longest": 90.0, "length": 36.0}
    # Attention grows with the square.
    most = (1.1 * likely, 2 * likely)
    return row(context, site, saved_s=spent_s, likely=likely, high=most, is_at_most=True, **of_rows)


def on_device(at_work: float) -> RunContext:
    """Only its own work counts."""
    seconds: dict[str, Any] = {"seconds": {"forward": 10.0, "backward": 20.0}}
    busy, idle = [at_work, 0.95], {"host_s": 0.1}
    device = Device(0, "cuda:0", busy, idle, {}, None, None, 2000, **seconds)
    return with_summary(with_run(padded(), device="cuda:0"), devices=[device])


test_padded_batches = reports(
    "padded_batches",
    {
        "its line": saving(padded("train.py:40"), "train.py:40"),
        "the collate function": saving(padded(collate="data.py:30"), "data.py:30"),
        "the loader": saving(padded(), "train.py:41"),
        "one of several models": saving(padded(reading_ns=3, all_ns=4), "train.py:41", 0.75),
        "a device": row(on_device(0.9), is_only=False),
    },
)
test_others = is_silent(
    "padded_batches",
    {
        "few samples": padded(looks=3),
        "padded to the longest of each batch": padded(longest=19_000),
        "nonsense": padded(rows=-1),
        "left out": padded(is_left_out=True),
        "a small model": padded(reading_ns=1, all_ns=100),
        "a device that idles": on_device(0.1),
    },
)
