"""All changes together save no more than the parts of training that they are about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of
from support.found import only

from trainprof.findings.combined_speedup import together


def test_gains_of_one_part_do_not_add_up_beyond_it() -> None:
    context = case_of(Planted(fetch_s=0.03))
    plain = replace(
        only(context), change={}, evidence={}, predicted_speedup=[1.0, 1.1], of_steps=False
    )
    part_s = 0.6 * context.training_s
    training = dict.fromkeys(context.training, 0.0) | {
        "optimizer": part_s,
        "other": context.training_s - part_s,
    }
    context = replace(context, training=training, feeding=[])
    findings = [
        replace(plain, id=name, recoverable_s=0.9 * part_s)
        for name in ("slow_optimizer", "recompiling")
    ]
    assert together(context, findings) == pytest.approx(1 / (1 - 0.6), rel=0.01)
