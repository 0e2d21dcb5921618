"""A device that waits for small pieces of work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, healthy, on_device, with_summary
from support.findings import hot_line, is_silent, reports, row

from trainprof.analysis.model.optimizer_builder import OptimizerCall
from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import Compilation, PythonInModel
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

LINE = hot_line("forward", site="model.py:18")
COMPILED = Compilation("train.py:50", 2, 3.0, 0, 0.0, 1)


def launching(built_by: str | None = None, **settings: Any) -> RunContext:
    """A device waits for work for 1 s."""
    planted = Planted(workers=2, fetch_s=0.002).having(built_by=built_by)
    parts = {"optimizer": 2.0} if settings else {}
    context = case_of(planted, parts=parts, torch=TorchSettings(**settings))
    return with_summary(on_device(context, launch_s=1.0), part_lines=[LINE])


def keeping_up(ran_dry: float) -> RunContext:
    context = on_device(healthy(), unknown_s=1.0)
    [device] = context.summary.devices or ()
    dry = dict.fromkeys(("forward", "backward", "optimizer"), ran_dry)
    return with_summary(context, devices=[replace(device, ran_dry=dry)])


ADAM, SGD, MUON = (OptimizerCall(name) for name in ("AdamW", "SGD", "Muon"))
BY_TRAINER = OptimizerCall("AdamW", "train.py:9", "transformers")
AT: dict[str, Any] = {"site": "model.py:18", "saved_s": 1.0}

test_launch_bound = reports(
    "launch_bound",
    {
        "not compiled": row(launching(), **AT),
        "compiled by a package's settings": row(launching("transformers"), **AT),
        "compiled": row(with_summary(launching(), compilations=[COMPILED]), **AT),
        "unfused optimizers": row(launching(unfused=(ADAM, SGD)), **AT),
        "unfused in Lightning": row(launching(unfused=(ADAM,), trains_by_lightning=True), **AT),
        "none that can be fused": row(launching(unfused=(MUON,)), **AT),
        "of a package": row(launching(unfused=(SGD, BY_TRAINER)), **AT),
        "a device that keeps up": row(keeping_up(0.95), None),
    },
)
test_a_device_that_does_not_keep_up = is_silent("launch_bound", {"it": keeping_up(0.5)})


@pytest.mark.parametrize(
    ("python_s", "expected"),
    [(0.4, ["launch_bound", "python_in_model"]), (1.4, ["python_in_model"])],
)
def test_what_keeps_the_host_from_launching_is_counted_once(
    python_s: float, expected: list[str]
) -> None:
    python = PythonInModel(samples=100, held=20, seconds={"forward": python_s}, lines=[])
    context = on_device(healthy(), launch_s=1.0)
    findings = diagnose(with_summary(context, python_in_model=python)).findings
    assert [x.id for x in findings] == expected
    # Longer than the device waited for the host it cannot have held it up.
    assert sum(x.recoverable_s or 0.0 for x in findings) == pytest.approx(1.0)
