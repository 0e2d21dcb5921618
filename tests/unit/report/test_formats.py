"""Markdown: a comment that shows what it was given and does nothing; JSON: strict, and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from support import summaries

from trainprof.analysis.summary.json_text import from_jsonable, to_jsonable
from trainprof.cli.output import json_text
from trainprof.report import markdown

BUILDERS = [
    summaries.slow_loader,
    summaries.healthy,
    summaries.killed_for_memory,
    summaries.accelerator,
    summaries.starved,
    summaries.mixed_gpus,
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


def test_the_step_adds_up():
    text = markdown.render(summaries.slow_loader())
    rows = table_under(text, "One training step")
    assert 99 <= sum(int(share.removesuffix(" %")) for *_, share in rows) <= 100


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize("build", BUILDERS)
def test_odd_and_missing_numbers_do_not_stop_the_comment(build, value):
    odd = summaries.with_every_float(build(), value)
    markdown.render(odd)
    each = (markdown.render_loader(odd, index) for index in range(len(odd.loaders)))
    for text in (markdown.render(build()), *each):
        assert not re.search(r"\b(None|nan|inf)\b", text)


def test_hostile_strings_are_shown_not_obeyed():
    text = markdown.render(summaries.hostile())
    assert not re.search("<|`|@team", text + markdown.render_loader(summaries.hostile(), 0))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "\\[red\\]evil\\[/red\\]" in text
    rows = table_under(text, "One training step")
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
    text = json_text(to_jsonable(summary))
    assert from_jsonable(json.loads(text)) == summary
    assert text.isascii()
    assert text.startswith('{\n "schema_version": 1,')
    assert text.endswith("}\n")
    odd = replace(summary, wait_threshold_s=float("inf"))
    assert json.loads(json_text(to_jsonable(odd)))["wait_threshold_s"] is None
