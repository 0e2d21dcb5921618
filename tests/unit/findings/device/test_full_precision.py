"""A device that computes in full float32 precision, and all that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import healthy, idle_device, on_device, with_summary
from support.findings import is_silent, only, reports, row

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import Numerics, Operators
from trainprof.findings.run_context import RunContext

LINEAR = Operators(matmuls=12)
PICTURES = Operators(matmuls=1, convolutions=53, convolutions_2d=53)
AMPERE, VOLTA, PASCAL = [8, 0], [7, 0], [6, 1]


def computing(
    busy: float = 0.81,
    spent: dict[str, float] | None = None,
    *,
    operators: Operators | None = LINEAR,
    capability: list[int] | None = AMPERE,
    parameters: str = "float32",
    products: str = "highest",
    **known: Any,
) -> RunContext:
    numerics = Numerics(parameters, products, capability=capability, operators=operators, **known)
    context = on_device(healthy(torch=TorchSettings(numerics=numerics)), loader_s=0.01)
    device = replace(idle_device({}), busy_share=[busy, 1.0], seconds=spent or {})
    return with_summary(context, devices=[device])


PASSES = {"forward": 0.5, "backward": 1.0, "optimizer": 0.2}
AT: dict[str, Any] = {"site": None, "saved_s": None, "busy_share": 0.81, "is_tried_by_tune": True}

test_full_precision = reports(
    "full_precision",
    {
        "matmuls without TF32": row(computing(), **AT),
        "mostly in forward and backward": row(computing(spent=PASSES), **AT, passes_share=0.88),
        "convolutions whose TF32 is off, too": row(
            computing(operators=PICTURES, convolutions_tf32=False), **AT
        ),
        "before TF32, without autocast": row(
            computing(capability=VOLTA), **AT | {"is_tried_by_tune": False}
        ),
    },
)
test_healthy_runs = is_silent(
    "full_precision",
    {
        "on a CPU": healthy(
            torch=TorchSettings(numerics=Numerics("float32", "highest", operators=LINEAR))
        ),
        "TF32": computing(products="high"),
        "a setting in torch's new way": computing(products="unknown"),
        "autocast": computing(operators=replace(LINEAR, lower=11)),
        "bfloat16 parameters": computing(parameters="bfloat16"),
        "float64, of which double_precision speaks": computing(parameters="float64"),
        "no tensor cores": computing(capability=PASCAL),
        "no NVIDIA device": computing(capability=None),
        "convolutions, which use TF32": computing(operators=PICTURES, convolutions_tf32=True),
        "compiled, unseen": computing(operators=replace(LINEAR, opaque=1)),
        "no products": computing(operators=Operators()),
        "an older run": computing(operators=None),
        "a tiny model, mostly idle": computing(0.3),
        "updates, mostly": computing(spent={**PASSES, "optimizer": 2.0}),
    },
)


@pytest.mark.parametrize(
    ("operators", "capability", "is_tried"),
    [
        (replace(LINEAR, mixes=["autocast", "GradScaler"]), VOLTA, True),
        (replace(LINEAR, mixes=["autocast"]), VOLTA, False),
        (LINEAR, AMPERE, True),
    ],
)
def test_how_it_is_measured(operators: Operators, capability: list[int], is_tried: bool) -> None:
    finding = only(computing(operators=operators, capability=capability))
    assert finding.is_tried_by_tune is is_tried
    assert ("tune --allow-numerics" in finding.verify) is is_tried
