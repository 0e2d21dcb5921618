"""The ledger's rows: rounding, folding and labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import summaries

from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.ledger import ledger_table, waits_are_merged
from trainprof.report.text.units import rounded_parts

parts = st.lists(st.floats(0, 1e5), min_size=1, max_size=20)


@settings(deadline=None)
@given(parts, st.integers(0, 3))
def test_rounded_parts_add_up_and_stay_close(values, decimals):
    rounded = rounded_parts(values, decimals)
    assert sum(rounded) == round(sum(value * 10**decimals for value in values))
    for whole, value in zip(rounded, values, strict=True):
        assert abs(whole - value * 10**decimals) <= 1


def labels_of(summary: RunSummary) -> list[str]:
    return [row.label for row in ledger_table(summary).rows]


def test_unknown_keys_keep_their_names_and_what_is_no_number_is_left_out():
    summary = summaries.slow_loader()
    odd: Any = {"all_reduce": 9.0, "forward": None, "loss": float("nan")}
    ledger = replace(summary.ledger, seconds={**summary.ledger.seconds, **odd})
    rows = ledger_table(replace(summary, ledger=ledger)).rows
    labels = [row.label for row in rows if row.seconds != "0.0"]
    assert "all reduce" in labels
    assert "forward" not in labels


def device(idle_because: dict[str, float] | None) -> Device:
    return Device(0, "cuda:0", [0.5, 0.6], idle_because, {}, None, None, 100)


@pytest.mark.parametrize(
    ("device_timing", "device", "devices", "merged"),
    [
        ("cpu", None, None, False),
        ("cpu", "cpu", None, False),
        ("async", None, None, True),
        ("async", "cuda", [device({"loader_s": 1.0})], False),
        ("async", "cuda", [device(None)], True),
        ("cpu", "mps", None, True),
        ("synchronized", "cuda", None, False),
    ],
)
def test_waits_are_merged_until_device_times_are_known(device_timing, device, devices, merged):
    summary = summaries.slow_loader()
    run = replace(summary.run, device_timing=device_timing, device=device)
    assert waits_are_merged(replace(summary, run=run, devices=devices)) is merged


@pytest.mark.parametrize(
    ("factor", "unit", "total"), [(1, "s", "58.4"), (100, "min", "97.4"), (1000, "h", "16.23")]
)
def test_long_runs_are_told_in_longer_units(factor, unit, total):
    summary = summaries.slow_loader()
    seconds = {key: value * factor for key, value in summary.ledger.seconds.items()}
    longer = replace(summary, ledger=replace(summary.ledger, wall_s=0.0, seconds=seconds))
    table = ledger_table(longer)
    assert (table.run_unit, table.total.seconds) == (unit, total)


@pytest.mark.parametrize(("in_a_step_s", "is_elsewhere"), [(0.0, True), (0.001, False)])
def test_what_python_collects_at_its_start_and_end_is_no_steps(in_a_step_s, is_elsewhere):
    summary = summaries.slow_loader()
    ledger = replace(summary.ledger, seconds={**summary.ledger.seconds, "gc": 9.0})
    steps = 9 if in_a_step_s == 0 else round(4.5 / in_a_step_s)
    per_step = {**(summary.training.per_step_s or {}), "gc": in_a_step_s}
    training = replace(summary.training, steps=steps, per_step_s=per_step)
    labels = labels_of(replace(summary, ledger=ledger, training=training))
    assert ("gc outside of steps" in labels) is is_elsewhere


@pytest.mark.parametrize(
    ("site", "of_it", "label"),
    [
        ("train.py:50", 1.0, "loss, metric at train.py:50"),
        ("losses/train.py:50", 0.6, "loss, metric at train.py:50"),
        ("train.py:50", 0.4, "loss"),  # most of it has a module
        (f"{'long' * 8}.py:50", 1.0, "loss"),
    ],
)
def test_a_loss_that_is_no_module_has_its_line(site, of_it, label):
    summary = summaries.slow_loader()
    ledger = replace(summary.ledger, seconds={**summary.ledger.seconds, "loss": 9.0})
    line = HotLine("loss", site, "train", [], 90, 0.9, 8.1)
    lines = {"part_lines": [line], "loss_in_loop_s": of_it * 9.0}
    labels = labels_of(replace(summary, ledger=ledger, **lines))
    assert [x for x in labels if x.startswith("loss")] == [label]
