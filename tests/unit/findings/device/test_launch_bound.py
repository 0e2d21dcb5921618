"""A device that waits for small pieces of work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, healthy, on_device, with_summary
from support.findings import hot_line, only, reported

from trainprof.analysis.model.optimizer_builder import OptimizerCall
from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import Compilation, PythonInModel
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

LINE = hot_line("forward", site="model.py:18")
COMPILED = Compilation("train.py:50", 2, 3.0, 0, 0.0, 1)


def launching(built_by: str | None = None, update_s: float = 2.0, **settings: Any) -> RunContext:
    """A device waits for work for 1 s."""
    planted = Planted(workers=2, fetch_s=0.002).having(built_by=built_by)
    parts = {"optimizer": update_s} if settings else {}
    context = case_of(planted, parts=parts, torch=TorchSettings(**settings))
    return with_summary(on_device(context, launch_s=1.0), part_lines=[LINE])


def calls(*names: str) -> tuple[OptimizerCall, ...]:
    return tuple(OptimizerCall(name) for name in names)


BY_TRAINER = OptimizerCall("AdamW", "train.py:9", "transformers")


@pytest.mark.parametrize(
    ("context", "cautions"),
    [
        pytest.param(launching(), 1, id="compiled by nothing"),
        pytest.param(launching("transformers"), 1, id="compiled by a package's settings"),
        pytest.param(with_summary(launching(), compilations=[COMPILED]), 1, id="compiled"),
        pytest.param(launching(unfused=calls("AdamW", "SGD")), 1, id="unfused optimizers"),
        pytest.param(
            launching(unfused=calls("AdamW", "SGD"), trains_by_lightning=True),
            2,
            id="unfused optimizers in Lightning",
        ),
        pytest.param(launching(unfused=calls("Muon", "Adagrad")), 1, id="none that can be fused"),
        pytest.param(
            launching(unfused=calls("AdamW"), update_s=0.1, trains_by_lightning=True),
            1,
            id="quick updates",
        ),
        pytest.param(
            launching(unfused=(*calls("SGD"), BY_TRAINER)), 1, id="one that a package builds"
        ),
    ],
)
def test_launch_bound(context: RunContext, cautions: int) -> None:
    finding = only(context)
    assert (finding.id, finding.site) == ("launch_bound", "model.py:18")
    assert finding.recoverable_s == pytest.approx(1.0)
    assert len(finding.cautions) == cautions


@pytest.mark.parametrize(
    ("python_s", "expected"),
    [
        (0.0, ["launch_bound"]),
        (0.4, ["launch_bound", "python_in_model"]),
        (1.4, ["python_in_model"]),
    ],
)
def test_what_keeps_the_host_from_launching_is_counted_once(
    python_s: float, expected: list[str]
) -> None:
    python = PythonInModel(looks=100, held=20, seconds={"forward": python_s}, lines=[])
    context = on_device(healthy(), launch_s=1.0)
    findings = diagnose(with_summary(context, python_in_model=python)).findings
    assert [x.id for x in findings] == expected
    # Longer than the device waited for the host it cannot have held it up.
    assert sum(x.recoverable_s or 0.0 for x in findings) == pytest.approx(1.0)


def test_a_device_that_keeps_up_with_small_work_and_one_that_does_not() -> None:
    context = on_device(healthy(), unknown_s=1.0)
    assert reported(context) == []
    [device] = context.summary.devices or ()
    dry = dict.fromkeys(("forward", "backward", "optimizer"), 0.95)
    assert reported(with_summary(context, devices=[replace(device, ran_dry=dry)])) == [
        "launch_bound"
    ]
