"""Numbers of what may hold anything."""

from __future__ import annotations

import pytest

from trainprof.analysis.facts import Facts, number_at
from trainprof.record.schema import Topic


@pytest.mark.parametrize("found", [None, "7", True, {}, [], float("nan")])
def test_number_at_takes_numbers_only(found: object) -> None:
    assert number_at({"a": {"b": found}}, "a", "b") is None


def test_number_at_survives_any_shape() -> None:
    assert number_at({"a": {"b": 7}}, "a", "b") == 7
    assert number_at({"a": 7}, "a", "b") is None
    assert number_at(None, "a") is None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([], None),
        ([3000, 2400], 2400),  # nobody knows whose are kept
        ([0, -4, "8", None, True, 1 << 70], None),
    ],
)
def test_of_all_logits_that_were_seen_the_smallest_count(
    told: list[object], expected: int | None
) -> None:
    notes = {number: {"logits_bytes": one} for number, one in enumerate(told)}
    assert Facts({Topic.ENVIRONMENT: notes}).logits_bytes() == expected
