"""A device that idles while the host waits for its values, by who asks for them and what for."""

from __future__ import annotations

from dataclasses import replace

from support.cases import Planted, case_of, on_device, with_summary
from support.findings import Row, is_silent, reports, row

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.device import SyncPoint
from trainprof.findings.run_context import RunContext

# All of the model is called at the line that waits.
CALLED = [
    HotLine(part, "net.py:9", "training_step", ["train.py:60"], 90, 1, 1)
    for part in ("forward", "backward")
]


def waits(
    kind: str,
    library_share: float | None = 0.0,
    *,
    built_by: str | None = None,
    by_lightning: bool = False,
    needed_s: float = 0.0,
) -> RunContext:
    """A run that waits at train.py:60."""
    planted = Planted(workers=2, fetch_s=0.002).having(built_by=built_by)
    settings = TorchSettings(trains_by_lightning=by_lightning)
    context = on_device(case_of(planted, torch=settings), sync_s=0.6)
    point = SyncPoint("train.py:60", kind, 200, 0, 3.0, 1.0, library_share=library_share)
    lines = CALLED if by_lightning else []
    return with_summary(context, sync_points=[replace(point, needed_s=needed_s)], part_lines=lines)


def chains() -> Row:
    """What they cost at most is all of their time."""
    context = on_device(case_of(Planted(workers=2, fetch_s=0.002)), sync_s=0.3, unknown_s=0.5)
    [device] = context.summary.devices or ()
    chained = with_summary(context, devices=[replace(device, exposed_s={"sync": [0.3, 0.7]})])
    most = context.settled_s / (context.settled_s - 0.7)
    return row(chained, "train.py:60", saved_s=0.3, high=most)


def saving(context: RunContext, saved_s: float = 0.6) -> Row:
    return row(context, "train.py:60", saved_s=saved_s)


KINDS = ("bool", "item", "nonzero", "int", "synchronize")
IN_TRAINER = {"built_by": "transformers"}

test_exposed_syncs = reports(
    "exposed_syncs",
    {
        **{kind: saving(waits(kind)) for kind in KINDS},
        "Lightning's loop": saving(waits("item", 1.0, by_lightning=True)),
        "own, at the line of that loop": saving(waits("item", by_lightning=True)),
        "a library without a loop": saving(waits("bool", 1.0)),
        "a Trainer's own check": saving(waits("bool", 1.0, **IN_TRAINER)),
        "an older run's check": saving(waits("bool", None, **IN_TRAINER)),
        "own, beside a Trainer": saving(waits("bool", 0.0, **IN_TRAINER)),
        # No script can leave that out.
        "half is needed": saving(waits("item", needed_s=0.3), 0.3),
        "chains": chains(),
    },
)
test_syncs_that_cost_nothing = is_silent(
    "exposed_syncs",
    {
        "not felt": on_device(case_of(Planted(workers=2, fetch_s=0.002)), sync_s=0.0),
        "needed": waits("item", needed_s=0.6),
    },
)
