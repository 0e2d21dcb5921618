"""Comparisons as they are shown: golden pages, widths, hostile strings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from support import summaries
from support.compared_runs import made_up, repeated, single

from trainprof.analysis.statistics.speedup import NO_VISIBLE_DIFFERENCE, SLOWER
from trainprof.compare.comparison import Comparison, compare
from trainprof.report import comparison
from trainprof.report.text.layout import Page

SCREENS = {
    "repeated": repeated,
    "slower": lambda: single(1.12, SLOWER),
    "alike": lambda: single(1.006, NO_VISIBLE_DIFFERENCE),
}


def unlike() -> Comparison:
    """Another batch size, another torch, and too few steps to tell; with a gate."""
    base = summaries.slow_loader()
    loader = replace(base.loaders[0], batch_size=64)
    other = replace(
        base,
        run=replace(base.run, versions=base.run.versions | {"torch": "2.9.1"}),
        training=replace(base.training, steady_steps=5),
        loaders=[loader],
    )
    return compare([made_up(base, "a")], [made_up(other, "b")], limit=0.05)


def page(sides: Comparison, width: int = 80, **options: Any) -> str:
    return comparison.render_page([sides], Page(width, **options))


def test_pages_are_the_golden_ones(golden):
    for name, make in SCREENS.items():
        golden(f"compare_{name}_80.txt", page(make()))
    golden("compare_repeated_120.txt", page(repeated(), 120))
    golden("compare_unlike_80.txt", page(unlike(), verbose=True))
    golden("compare_slower.md", comparison.render_markdown([single(1.12, SLOWER)]))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_page(width):
    for make in SCREENS.values():
        lines = page(make(), width, verbose=True).split("\n")
        assert max(cell_len(line) for line in lines if "trainprof " not in line) <= width


def test_an_edited_script_is_said_to_be_one():
    base = made_up(summaries.healthy(), "healthy-1", script="a.py", script_sha256="a")
    other = made_up(summaries.healthy(), "healthy-2", script="a.py", script_sha256="b")
    text = page(compare([base], [other]))
    assert "was edited" in text
    assert "Not comparable" not in text
    # With something else besides it is one of several.
    renamed = replace(other, manifest={"script_sha256": "b", "script": "b.py"})
    text = page(compare([base], [renamed]))
    assert "Not comparable: script" in text


def test_colour_only_where_it_is_asked_for_and_several_others_are_several_pages():
    assert "\x1b" not in page(single(1.12, SLOWER))
    assert "\x1b[31mslower" in page(single(1.12, SLOWER), color=True)
    assert page(repeated(), unicode=False).isascii()
    comparisons = [single(1.12, SLOWER), single(1.006, NO_VISIBLE_DIFFERENCE)]
    assert comparison.render_page(comparisons, Page()).count("\nOTHER   ") == 2
    assert comparison.render_markdown(comparisons).count("\n---\n") == 1


def test_hostile_strings_are_shown_not_obeyed():
    evil = "\x1b]0;x\x07\x1b[31m<b>@team|`x`\n"
    base = made_up(summaries.hostile(), evil, script=evil, sources={evil: "a"})
    other = made_up(summaries.slow_loader(), "b", script="train.py", sources={evil: "b"})
    sides = compare([base], [other])
    for text in (page(sides), page(sides, verbose=True), comparison.render_markdown([sides])):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    markdown = comparison.render_markdown([sides])
    assert not re.search("<|@team", markdown)
    rows = [line for line in markdown.split("\n") if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}


def test_what_is_missing_is_a_dash_and_never_none():
    sides = compare([made_up(summaries.sparse(), "a")], [made_up(summaries.slow_loader(), "b")])
    for text in (page(sides, verbose=True), comparison.render_markdown([sides], verbose=True)):
        assert not re.search("None|nan", text)
