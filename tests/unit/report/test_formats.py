"""Markdown: a comment that shows what it was given and does nothing; JSON: strict, and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from support import summaries

from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.report import json_text, markdown

BUILDERS = [
    summaries.slow_loader,
    summaries.healthy,
    summaries.killed_for_memory,
    summaries.accelerator,
    summaries.cut_off,
    summaries.sparse,
    summaries.hostile,
]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def table_under(text: str, title: str) -> list[list[str]]:
    """A table's rows without its two heading rows."""
    block = next(block for block in text.split("\n\n") if block.startswith(f"| {title}"))
    return [cells(row) for row in block.strip().split("\n")[2:]]


@pytest.mark.parametrize("build", [summaries.slow_loader, summaries.killed_for_memory])
def test_the_comment_is_the_golden_one(build, golden):
    golden(f"{build.__name__}.md", markdown.render(build()))


def test_the_ledger_adds_up():
    *rows, total = table_under(markdown.render(summaries.slow_loader()), "where")
    for column, ending in ((1, ""), (2, " %"), (3, "")):
        tenths = [int(row[column].removesuffix(ending).replace(".", "") or 0) for row in rows]
        assert sum(tenths) == int(total[column].removesuffix(ending).replace(".", ""))


@pytest.mark.parametrize("summary", [summaries.cut_off(), summaries.sparse()])
def test_what_is_missing_is_not_measured(summary):
    text = markdown.render(summary)
    assert "not measured" in text
    assert "None" not in text


def test_hostile_strings_are_shown_not_obeyed():
    text = markdown.render(summaries.hostile())
    assert "<" not in text
    assert "`" not in text
    assert "@team" not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "\\[red\\]evil\\[/red\\]" in text
    for rows in (table_under(text, "where"), table_under(text, "loader")):
        assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a|b", "a&#124;b"),
        ("`x`", "&#96;x&#96;"),
        ("<b>", "&lt;b&gt;"),
        ("a & b", "a &amp; b"),
        ("train_*.py", "train\\_\\*.py"),
        ("[x](http://y)", "\\[x\\](http:&#47;&#47;y)"),
        ("#12 ~~x~~", "\\#12 \\~\\~x\\~\\~"),
        ("a\\|b", "a&#92;&#124;b"),
        ("@team", "@\u200bteam"),
        ("  a\r\n\r\n# b", "a \\# b"),
    ],
)
def test_escaping(text, safe):
    assert markdown.escaped(text) == safe


@pytest.mark.parametrize("build", BUILDERS)
def test_the_way_there_and_back(build):
    summary = build()  # type: ignore[operator]
    assert from_jsonable(to_jsonable(summary)) == summary
    assert from_jsonable(json.loads(json_text.render(summary))) == summary


def test_it_is_ascii_with_the_version_first_and_a_newline_last():
    text = json_text.render(summaries.hostile())
    assert text.isascii()
    assert text.startswith('{\n "schema_version": 1,')
    assert text.endswith("}\n")


def test_infinity_and_nan_become_null():
    summary = summaries.slow_loader()
    odd = replace(summary, wait_threshold_s=float("inf"))
    text = json_text.render(odd)
    assert "Infinity" not in text
    assert json.loads(text)["wait_threshold_s"] is None
