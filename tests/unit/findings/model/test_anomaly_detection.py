"""torch's anomaly detection, which slows all that is measured."""

from __future__ import annotations

import pytest
from support.cases import Planted, case_of

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.findings.diagnose import diagnose


@pytest.mark.parametrize("is_on", [True, False])
def test_anomaly_detection_comes_first(is_on: bool) -> None:
    settings = TorchSettings(detects_anomalies=is_on)
    findings = diagnose(case_of(Planted(fetch_s=0.03, compute_s=0.01), torch=settings)).findings
    assert [x.id for x in findings] == ["anomaly_detection"] * is_on + ["serial_loading"]
    assert (findings[0].recoverable_s is None) is is_on
