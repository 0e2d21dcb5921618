"""Numbers as people read them."""

from __future__ import annotations

import pytest

from trainprof.analysis.summary.levels import size
from trainprof.report.text.units import byte_count, count, counted, percent, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not measured"),
        (float("nan"), "not measured"),
        (float("inf"), "not measured"),
        (0.0, "0 s"),
        (9.1e-6, "9.10 µs"),
        (231e-6, "231 µs"),
        (999.7e-6, "1.00 ms"),
        (0.187, "187 ms"),
        (0.9996, "1.00 s"),
        (4.3, "4.30 s"),
        (58.37, "58.4 s"),
        (99.96, "1.67 min"),
        (738.0, "12.3 min"),
        (5999.0, "1.67 h"),
        (360000.0, "100 h"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not measured"),
        (0, "0 B"),
        (900, "900 B"),
        (1023, "1.00 KiB"),
        (612 << 20, "612 MiB"),
        (7.9 * (1 << 30), "7.90 GiB"),
        (5000 * (1 << 40), "5,000 TiB"),
    ],
)
def test_byte_count(value: float | None, text: str) -> None:
    assert byte_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (600, "600 B"),
        (1000, "0.98 KiB"),
        (1023 << 10, "1.00 MiB"),
        (1010 << 20, "0.99 GiB"),
        (4.6 * (1 << 20), "4.60 MiB"),
        (64 << 10, "64.0 KiB"),
    ],
)
def test_findings_tell_bytes_as_the_rest_of_the_page_does(value: float, text: str) -> None:
    assert size(value) == byte_count(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "not measured"), (0.0, "0 %"), (0.0004, "< 1 %"), (0.005, "< 1 %"), (0.814, "81 %")],
)
def test_percent(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_counts() -> None:
    assert count(12345) == "12,345"
    assert counted(1, "step") == "1 step"
    assert counted(0, "pass", "passes") == "0 passes"
