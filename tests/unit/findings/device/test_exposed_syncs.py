"""A device that idles while the host waits for its values, by who asks for them and what for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of, on_device, with_summary
from support.findings import finding_of, high_of, only, reported

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


@pytest.mark.parametrize(
    ("context", "cautions"),
    [
        *(
            pytest.param(waits(kind), 1, id=kind)
            for kind in ("bool", "item", "float", "tolist", "numpy", "nonzero", "int", "index")
        ),
        pytest.param(waits("synchronize"), 0, id="synchronize"),
        *(
            pytest.param(waits(kind, 1.0, by_lightning=True), 0, id=f"{kind} of Lightning's loop")
            for kind in ("item", "bool", "synchronize")
        ),
        pytest.param(waits("item", by_lightning=True), 1, id="own, at the line of that loop"),
        pytest.param(waits("bool", 1.0), 0, id="a library without a loop"),
        pytest.param(waits("bool", 1.0, built_by="transformers"), 0, id="a Trainer's own check"),
        pytest.param(waits("bool", None, built_by="transformers"), 0, id="an older run's check"),
        pytest.param(waits("bool", 0.0, built_by="transformers"), 1, id="own, beside a Trainer"),
    ],
)
def test_exposed_syncs(context: RunContext, cautions: int) -> None:
    finding = only(context)
    assert (finding.id, finding.site) == ("exposed_syncs", "train.py:60")
    assert finding.recoverable_s == pytest.approx(0.6)
    assert len(finding.cautions) == cautions


@pytest.mark.parametrize(("needed_s", "saved_s"), [(0.3, 0.3), (0.6, None)])
def test_what_no_script_can_leave_out_is_not_promised(
    needed_s: float, saved_s: float | None
) -> None:
    finding = finding_of("exposed_syncs", waits("item", needed_s=needed_s))
    assert (finding and finding.recoverable_s) == (saved_s and pytest.approx(saved_s))


def test_a_sync_that_the_device_did_not_feel() -> None:
    assert reported(on_device(case_of(Planted(workers=2, fetch_s=0.002)), sync_s=0.0)) == []


def test_what_chains_of_syncs_cost_at_most_is_all_of_their_time() -> None:
    context = on_device(case_of(Planted(workers=2, fetch_s=0.002)), sync_s=0.3, unknown_s=0.5)
    [device] = context.summary.devices or ()
    chained = replace(device, exposed_s={"sync": [0.3, 0.7]})
    finding = only(with_summary(context, devices=[chained]))
    assert finding.recoverable_s == pytest.approx(0.3)
    assert high_of(finding) == pytest.approx(context.settled_s / (context.settled_s - 0.7))
