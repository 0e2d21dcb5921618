"""Models that compute in float64."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import healthy, idle_device, on_device, with_summary
from support.findings import finding_of, high_of, only, reported

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import Numerics


def double(*sites: str, kind: str = "float64", **settings: Any) -> TorchSettings:
    return TorchSettings(numerics=Numerics(kind, "unknown", [*sites]), **settings)


@pytest.mark.parametrize(
    ("sites", "site"),
    [([], None), (["train.py:9"], "train.py:9"), (["train.py:9", "data.py:4"], None)],
)
def test_double_precision(sites: list[str], site: str | None) -> None:
    finding = only(healthy(torch=double(*sites)))
    assert (finding.id, finding.site, finding.is_at_most) == ("double_precision", site, True)
    assert len(finding.cautions) == 1
    assert len(finding.also) == (len(sites) > 1)
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low == 1 < 1.5 < high < 2.5
    assert finding.recoverable_s == pytest.approx(
        0.5 * finding.evidence["computing_share"] * 2, rel=0.1
    )


@pytest.mark.parametrize(
    "settings",
    [double(kind="float32"), double(decomposes_in_float64=True)],
    ids=["single", "meant"],
)
def test_what_is_single_or_meant(settings: TorchSettings) -> None:
    assert reported(healthy(torch=settings)) == []


def test_on_a_device_the_gain_is_unknown() -> None:
    context = with_summary(on_device(healthy(torch=double())), devices=[idle_device({})])
    finding = finding_of("double_precision", context)
    assert finding is not None
    assert finding.predicted_speedup is None
    assert len(finding.cautions) == 1


def test_convolutions_may_gain_more() -> None:
    """torch has its fast ones for float32 alone."""
    plain = only(healthy(torch=double()))
    finding = only(healthy(torch=double(convolves_in_float64=True)))
    # A batch takes the two workers 1 ms, whatever the model does.
    assert high_of(finding) > 3 * high_of(plain)
    part = finding.evidence["computing_share"]
    assert finding.recoverable_s == pytest.approx(0.75 * part * 2, rel=0.1)
