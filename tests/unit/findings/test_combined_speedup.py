"""All changes together save no more than the parts of training that they are about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of
from support.found import only

from trainprof.findings.combined_speedup import together


def test_gains_of_one_part_do_not_add_up_beyond_it() -> None:
    case = case_of(Planted(fetch_s=0.03))
    plain = replace(
        only(case), change={}, evidence={}, predicted_speedup=[1.0, 1.1], of_steps=False
    )
    part_s = 0.6 * case.training_s
    training = dict.fromkeys(case.training, 0.0) | {
        "optimizer": part_s,
        "other": case.training_s - part_s,
    }
    case = replace(case, training=training, feeding=[])
    findings = [
        replace(plain, id=name, recoverable_s=0.9 * part_s)
        for name in ("slow_optimizer", "recompiling")
    ]
    assert together(case, findings) == pytest.approx(1 / (1 - 0.6), rel=0.01)
