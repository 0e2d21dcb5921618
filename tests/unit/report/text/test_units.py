"""Numbers as people read them."""

from __future__ import annotations

import pytest

from trainprof.report.text.units import byte_count, count, counted, percent, seconds

MIB = 1 << 20


@pytest.mark.parametrize(
    ("write", "values"),
    [
        (
            seconds,
            {
                None: "not measured",
                float("nan"): "not measured",
                float("inf"): "not measured",
                0.0: "0 s",
                9.1e-6: "9.10 µs",
                231e-6: "231 µs",
                999.7e-6: "1.00 ms",
                0.187: "187 ms",
                0.9996: "1.00 s",
                4.3: "4.30 s",
                58.37: "58.4 s",
                99.96: "100 s",
                738.0: "12.3 min",
                5999.0: "1.67 h",
                360000.0: "100 h",
                -0.002: "-2.00 ms",
            },
        ),
        (
            byte_count,
            {
                None: "not measured",
                0: "0 B",
                900: "900 B",
                1000: "0.98 KiB",
                1023: "1.00 KiB",
                64 << 10: "64.0 KiB",
                1023 << 10: "1.00 MiB",
                4.6 * MIB: "4.60 MiB",
                612 * MIB: "612 MiB",
                1010 * MIB: "0.99 GiB",
                7.9 * 1024 * MIB: "7.90 GiB",
                5000 << 40: "5,000 TiB",
            },
        ),
        (
            percent,
            {None: "not measured", 0.0: "0 %", 0.0004: "< 1 %", 0.005: "< 1 %", 0.814: "81 %"},
        ),
        (count, {12345: "12,345"}),
        (lambda number: counted(int(number or 0), "pass", "passes"), {1: "1 pass", 0: "0 passes"}),
        (lambda number: counted(int(number or 0), "step"), {1: "1 step", 2: "2 steps"}),
    ],
)
def test_numbers_as_text(write, values):
    assert {value: write(value) for value in values} == values
