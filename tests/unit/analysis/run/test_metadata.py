"""Numbers of what may hold anything."""

from __future__ import annotations

import pytest

from trainprof.analysis.run.metadata import number_at


@pytest.mark.parametrize("value", [None, "7", True, {}, [], float("nan")])
def test_number_at_takes_numbers_only(value: object) -> None:
    assert number_at({"a": {"b": value}}, "a", "b") is None
    assert number_at({"a": {"b": 7}}, "a", "b") == 7
    assert number_at({"a": 7}, "a", "b") is None
    assert number_at(None, "a") is None
