"""All changes together save no more than the parts of training that they are about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of, healthy
from support.findings import high_of, only

from trainprof.findings.combined_speedup import together
from trainprof.findings.diagnose import diagnose


def test_all_together_is_played_again_and_is_no_sum() -> None:
    context = case_of(Planted(fetch_s=0.02, compute_s=0.01), parts={"checkpoint": 1.0})
    findings = diagnose(context).findings
    assert [x.id for x in findings] == ["serial_loading", "slow_checkpoints"]
    # Two workers give a batch each 10 ms, as training takes them: 2 of 7 seconds remain.
    assert together(context, findings) == pytest.approx(7 / 2, rel=0.15)
    # Also where each of them has a lower bound of its own.
    both = [findings[0], replace(findings[1], is_at_most=False)]
    assert together(context, both) == pytest.approx(7 / 2, rel=0.15)
    assert together(context, findings[:1]) is None
    unmeasured = replace(findings[1], recoverable_s=None)
    assert together(context, [findings[0], unmeasured]) is None


def test_gains_of_one_part_do_not_add_up_beyond_it() -> None:
    context = case_of(Planted(fetch_s=0.03))
    plain = replace(
        only(context), change={}, evidence={}, predicted_speedup=[1.0, 1.1], of_steps=False
    )
    part_s = 0.6 * context.training_s
    training = dict.fromkeys(context.training, 0.0) | {
        "backward": part_s,
        "other": context.training_s - part_s,
    }
    context = replace(context, training=training, feeding=[])
    findings = [
        replace(plain, id=name, recoverable_s=0.9 * part_s)
        for name in ("padded_batches", "growing_backward")
    ]
    assert together(context, findings) == pytest.approx(1 / (1 - 0.6), rel=0.01)


def test_steps_that_get_faster_leave_checkpoints_as_they_are() -> None:
    context = case_of(Planted(fetch_s=0.02, compute_s=0.001), parts={"checkpoint": 4.0})
    loading, saving = diagnose(context).findings
    assert (loading.of_steps, saving.of_steps) == (True, False)
    loading = replace(loading, is_at_most=True, predicted_speedup=[1.0, 20.0])
    saving = replace(saving, recoverable_s=0.0, predicted_speedup=[1.0, 1.0])
    everything = together(context, [loading, saving])
    assert everything is not None
    assert everything <= context.training_s / 4.0


def test_starting_workers_for_evaluation_is_part_of_what_evaluation_takes() -> None:
    evaluation = Planted(
        workers=2, fetch_s=0.002, compute_s=0.002, start_s=0.1, passes=20, role="evaluation"
    )
    context = healthy(evaluation.having(id=1), parts={"evaluation": 5.0})
    findings = diagnose(context).findings
    assert {x.id for x in findings} == {"slow_validation", "worker_restart"}
    everything = together(context, findings)
    assert everything is not None
    assert everything <= 1.001 * max(high_of(x) for x in findings if x.id == "slow_validation")
