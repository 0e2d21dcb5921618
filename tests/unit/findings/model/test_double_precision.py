"""Models that compute in float64."""

from __future__ import annotations

from typing import Any

from support.cases import healthy, idle_device, on_device, with_summary
from support.findings import is_silent, reports, row

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import Numerics
from trainprof.findings.run_context import RunContext


def double(*sites: str, kind: str = "float64", **settings: Any) -> RunContext:
    """Nearly all of 2 s is computing."""
    numerics = Numerics(kind, "unknown", [*sites])
    return healthy(torch=TorchSettings(numerics=numerics, **settings))


ON_DEVICE = with_summary(on_device(double()), devices=[idle_device({})])
HALF = {"low": 1.0, "high": (1.5, 2.5), "saved_s": (0.9, 1.05), "is_at_most": True}

test_double_precision = reports(
    "double_precision",
    {
        "of no known line": row(double(), None, **HALF),
        "of a line": row(double("train.py:9"), "train.py:9", **HALF),
        "of two lines": row(double("train.py:9", "data.py:4"), None, **HALF),
        # torch has fast ones for float32 alone; a batch takes the two workers 1 ms.
        "convolutions": row(
            double(convolves_in_float64=True), None, saved_s=(1.35, 1.6), high=(6.0, 20.0)
        ),
        "on a device": row(ON_DEVICE, None, predicted_speedup=None, is_only=False),
    },
)
test_what_is_single_or_meant = is_silent(
    "double_precision",
    {"single": double(kind="float32"), "meant": double(decomposes_in_float64=True)},
)
