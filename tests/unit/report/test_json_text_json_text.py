"""The JSON renderer: strict, ASCII, and the way back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import summaries

from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.report import json_text

BUILDERS = [
    summaries.slow_loader,
    summaries.healthy,
    summaries.killed_for_memory,
    summaries.accelerator,
    summaries.cut_off,
    summaries.sparse,
    summaries.hostile,
]


@pytest.mark.parametrize("build", BUILDERS)
def test_the_way_there_and_back(build: object) -> None:
    summary = build()  # type: ignore[operator]
    assert from_jsonable(to_jsonable(summary)) == summary
    assert from_jsonable(json.loads(json_text.render(summary))) == summary


def test_it_is_ascii_with_the_version_first_and_a_newline_last() -> None:
    text = json_text.render(summaries.hostile())
    assert text.isascii()
    assert text.startswith('{\n "schema_version": 1,')
    assert text.endswith("}\n")


def test_infinity_and_nan_become_null() -> None:
    summary = summaries.slow_loader()
    odd = replace(summary, wait_threshold_s=float("inf"))
    text = json_text.render(odd)
    assert "Infinity" not in text
    assert json.loads(text)["wait_threshold_s"] is None
