"""What is advised against waiting for a device's values, by who asks for them and what for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of, on_device

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.device import SyncPoint
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

EVERY_100TH: str = "every 100th step"


def waits(
    kind: str,
    library_share: float | None = 0.0,
    *,
    built_by: str | None = None,
    lines: tuple[HotLine, ...] = (),
    by_lightning: bool = False,
    needed_s: float = 0.0,
) -> RunContext:
    """A run that waits at train.py:60."""
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, built_by=built_by)
    settings = TorchSettings(trains_by_lightning=by_lightning)
    context = on_device(case_of(planted, torch=settings), sync_s=0.6)
    point = SyncPoint("train.py:60", kind, 200, 0, 3.0, 1.0, library_share=library_share)
    points = [replace(point, needed_s=needed_s)]
    return replace(
        context, summary=replace(context.summary, sync_points=points, part_lines=list(lines))
    )


def known(context: RunContext) -> Finding:
    [finding] = [x for x in diagnose(context).findings if x.id == "exposed_syncs"]
    return finding


def test_a_check_is_kept_and_never_made_every_hundredth_step() -> None:
    finding = known(waits("bool"))
    assert EVERY_100TH not in finding.advice
    assert "torch.where" in finding.advice
    assert "one step later" in finding.advice
    assert "would let through what it is to stop" in " ".join(finding.cautions)


@pytest.mark.parametrize("kind", ["item", "float", "tolist", "numpy"])
def test_a_value_may_be_asked_for_less_often_but_not_one_that_decides(kind: str) -> None:
    finding = known(waits(kind))
    assert EVERY_100TH in finding.advice
    assert "decides what comes next" in " ".join(finding.cautions)


@pytest.mark.parametrize("kind", ["nonzero", "int", "index"])
def test_a_number_of_the_device_that_is_to_stay_there(kind: str) -> None:
    assert EVERY_100TH not in known(waits(kind)).advice


def test_synchronize_brings_no_value_and_is_taken_out() -> None:
    finding = known(waits("synchronize"))
    assert finding.advice.startswith("take torch.cuda.synchronize() out of the loop")
    assert "torch.cuda.Event" in finding.advice
    assert EVERY_100TH not in finding.advice
    assert finding.cautions == []


# All of the model is called at the line that waits.
CALLED = tuple(
    HotLine(part, "net.py:9", "training_step", ["train.py:60"], 90, 1, 1)
    for part in ("forward", "backward")
)


@pytest.mark.parametrize("kind", ["item", "bool", "synchronize"])
def test_what_a_librarys_loop_asks_for_goes_by_its_settings(kind: str) -> None:
    finding = known(waits(kind, 1.0, lines=CALLED, by_lightning=True))
    assert "enable_progress_bar=False" in finding.advice
    assert "log_every_n_steps" in finding.advice
    assert EVERY_100TH not in finding.advice
    assert finding.cautions == []
    # The same line, where the script's own code reads what the call returns.
    own = known(waits(kind, 0.0, lines=CALLED, by_lightning=True))
    assert "enable_progress_bar" not in own.advice


def test_what_a_library_asks_for_that_has_no_loop() -> None:
    advice = known(waits("bool", 1.0)).advice
    assert "validate_args=False" in advice
    assert "torch.where" not in advice


@pytest.mark.parametrize(("share", "is_checked"), [(1.0, True), (None, True), (0.0, False)])
def test_a_trainers_own_check_is_told_from_the_scripts(
    share: float | None, is_checked: bool
) -> None:
    """Runs from before that was recorded do not tell whose it is."""
    advice = known(waits("bool", share, built_by="transformers")).advice
    assert ("logging_nan_inf_filter=False" in advice) is is_checked
    assert ("torch.where" in advice) is not is_checked


@pytest.mark.parametrize(("needed_s", "expected"), [(0.0, 0.6), (0.3, 0.3), (0.6, None)])
def test_what_no_script_can_leave_out_is_not_promised(
    needed_s: float, expected: float | None
) -> None:
    context = waits("item", needed_s=needed_s)
    found = [finding for finding in diagnose(context).findings if finding.id == "exposed_syncs"]
    assert [x.recoverable_s for x in found] == (
        [] if expected is None else [pytest.approx(expected)]
    )
