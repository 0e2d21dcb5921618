"""The ledger's rows: rounding, folding and labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import summaries

from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.report.text.ledger import LABELS, LedgerTable, ledger_table, waits_are_merged
from trainprof.report.text.units import rounded_parts

parts = st.lists(st.floats(0, 1e5), min_size=1, max_size=20)


@settings(deadline=None)
@given(parts, st.integers(0, 3))
def test_rounded_parts_add_up_and_stay_close(values: list[float], decimals: int) -> None:
    rounded = rounded_parts(values, decimals)
    assert sum(rounded) == round(sum(value * 10**decimals for value in values))
    for whole, value in zip(rounded, values, strict=True):
        assert abs(whole - value * 10**decimals) <= 1


def test_the_largest_remainders_are_rounded_up() -> None:
    assert rounded_parts([33.4, 33.3, 33.3], 0) == [34, 33, 33]


def test_every_key_has_words() -> None:
    assert set(LABELS) == set(LEDGER_KEYS)


def test_rows_are_longest_first_and_rest_is_last() -> None:
    table = ledger_table(summaries.slow_loader())
    assert table is not None
    shares = [row.share for row in table.rows[:-1]]
    assert shares == sorted(shares, reverse=True)
    assert table.rows[-1].label == "rest (7 smaller)"


@pytest.mark.parametrize("most", range(2, 12))
def test_no_more_rows_than_asked_for(most: int) -> None:
    table = ledger_table(summaries.healthy(), max_rows=most)
    assert table is not None
    assert len(table.rows) <= most
    held = [key for row in table.rows for key in row.keys]
    assert len(held) == len(set(held)) == 15


@pytest.mark.parametrize("most", range(2, 12))
def test_a_row_has_the_same_figures_however_many_are_folded(most: int) -> None:
    def figures(table: LedgerTable | None) -> dict[str, tuple[str, str, str]]:
        assert table is not None
        return {row.label: (row.seconds, row.percent, row.per_step) for row in table.rows}

    # Each ends in half of what is shown: which of them are rounded up is a matter of all.
    seconds = dict.fromkeys(LEDGER_KEYS, 0.0) | {
        key: 1.05 + number / 10 for number, key in enumerate(LEDGER_KEYS[:12])
    }
    one = summaries.slow_loader()
    per_step_s = {key: value / 100 for key, value in seconds.items()}
    summary = replace(
        one,
        ledger=replace(one.ledger, seconds=seconds, wall_s=sum(seconds.values())),
        training=replace(one.training, per_step_s=per_step_s),
    )
    every = figures(ledger_table(summary, fold=False))
    some = ledger_table(summary, max_rows=most)
    shown = figures(some)
    assert all(every[label] == row for label, row in shown.items() if "rest" not in label)
    assert some is not None
    assert (some.total.seconds, some.total.percent) == ("19.2", "100.0 %")


def test_an_unknown_key_keeps_its_name() -> None:
    summary = summaries.slow_loader()
    more = {**summary.ledger.seconds, "all_reduce": 9.0}
    table = ledger_table(replace(summary, ledger=replace(summary.ledger, seconds=more)))
    assert table is not None
    assert "all reduce" in [row.label for row in table.rows]


def test_seconds_that_are_no_number_are_left_out() -> None:
    summary = summaries.slow_loader()
    odd = {**summary.ledger.seconds, "forward": None, "loss": float("nan")}
    table = ledger_table(
        replace(summary, ledger=replace(summary.ledger, seconds=odd)),  # type: ignore[arg-type]
        fold=False,
    )
    assert table is not None
    assert "forward" not in [row.label for row in table.rows if row.seconds != "0.0"]


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
def test_waits_are_merged_until_device_times_are_known(
    device_timing: str, device: str | None, devices: list[Device] | None, merged: bool
) -> None:
    summary = summaries.slow_loader()
    run = replace(summary.run, device_timing=device_timing, device=device)
    assert waits_are_merged(replace(summary, run=run, devices=devices)) is merged


@pytest.mark.parametrize(
    ("factor", "unit", "total"), [(1, "s", "58.4"), (100, "min", "97.4"), (1000, "h", "16.23")]
)
def test_long_runs_are_told_in_longer_units(factor: int, unit: str, total: str) -> None:
    summary = summaries.slow_loader()
    seconds = {key: value * factor for key, value in summary.ledger.seconds.items()}
    longer = replace(summary, ledger=replace(summary.ledger, wall_s=0.0, seconds=seconds))
    table = ledger_table(longer)
    assert table is not None
    assert (table.run_unit, table.total.seconds) == (unit, total)


@pytest.mark.parametrize(
    ("in_a_step_s", "label"),
    [(0.0, "gc outside of steps"), (0.001, "garbage collection")],
)
def test_what_python_collects_at_its_start_and_end_is_no_steps(
    in_a_step_s: float, label: str
) -> None:
    summary = summaries.slow_loader()
    ledger = replace(summary.ledger, seconds={**summary.ledger.seconds, "gc": 9.0})
    steps = 9 if in_a_step_s == 0 else round(4.5 / in_a_step_s)
    per_step = {**(summary.training.per_step_s or {}), "gc": in_a_step_s}
    training = replace(summary.training, steps=steps, per_step_s=per_step)
    table = ledger_table(replace(summary, ledger=ledger, training=training))
    assert table is not None
    assert label in [row.label for row in table.rows]


def test_the_row_that_the_page_speaks_of_is_not_folded_for_want_of_room() -> None:
    def labels(*spoken_of: str) -> list[str]:
        table = ledger_table(summaries.healthy(), max_rows=4, spoken_of=spoken_of)
        assert table is not None
        assert table.total.percent == "100.0 %"
        return [row.label for row in table.rows]

    plain = labels()
    assert "optimizer" not in plain
    asked = labels("optimizer")
    assert len(asked) == len(plain) == 4
    # It takes the place of the smallest of the others.
    assert asked == [*plain[:2], "optimizer", plain[3].replace("smaller", "others")]
    assert labels("no such part") == plain
