"""Values of options: durations and whole numbers."""

from __future__ import annotations

import pytest
import typer

from trainprof.cli.options import at_least, seconds, seconds_between


def test_durations():
    durations = {"0.5": 0.5, ".5s": 0.5, "500ms": 0.5, "90s": 90, "10m": 600, "1h": 3600, "2": 2}
    assert {text: seconds(text) for text in durations} == durations


def test_what_is_none():
    for text in ("", "s", "-1", "1d", "1e3", "nan", "inf", "1 2", "1:30", "٣"):
        with pytest.raises(typer.BadParameter):
            seconds(text)


def test_limits_belong_to_the_range():
    parse = seconds_between(0.1, 60)
    assert (parse("100ms"), parse("1m"), parse(0.5)) == (0.1, 60, 0.5)
    for text in ("0", "99ms", "61s"):
        with pytest.raises(typer.BadParameter, match=r"at least 0\.1 s and at most 60 s"):
            parse(text)


def test_whole_numbers():
    parse = at_least(0, at_most=1000)
    assert (parse("0"), parse("1000"), parse(7)) == (0, 1000, 7)
    for text in ("-1", "1001", "ten", "1.5", "9" * 5000):
        with pytest.raises(typer.BadParameter):
            parse(text)
