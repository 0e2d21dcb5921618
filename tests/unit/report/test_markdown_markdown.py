"""The markdown renderer: a comment that shows what it was given and does nothing."""

from __future__ import annotations

import re

import pytest
from support import summaries

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def table_under(text: str, title: str) -> list[list[str]]:
    """A table's rows without its two heading rows."""
    block = next(block for block in text.split("\n\n") if block.startswith(f"| {title}"))
    return [cells(row) for row in block.strip().split("\n")[2:]]


def test_it_says_the_headline_first_and_how_it_ended() -> None:
    text = markdown.render(summaries.slow_loader())
    assert text.startswith("**DATA-BOUND: the loop waits for train.py:41 in 83 % of")
    assert "train.py completed after 58.4 s: 250 steps, 2 epochs" in text
    assert "Limit: batches are made between the steps" in text
    assert text.endswith("by the training process itself.\n")


def test_the_ledger_adds_up() -> None:
    *rows, total = table_under(markdown.render(summaries.slow_loader()), "where")
    for column, ending in ((1, ""), (2, " %"), (3, "")):
        tenths = [int(row[column].removesuffix(ending).replace(".", "") or 0) for row in rows]
        assert sum(tenths) == int(total[column].removesuffix(ending).replace(".", ""))


def test_a_memory_death_is_told() -> None:
    text = markdown.render(summaries.killed_for_memory())
    assert "out of memory" in text
    assert "the workers by 5.30 GiB" in text


@pytest.mark.parametrize("summary", [summaries.cut_off(), summaries.sparse()])
def test_what_is_missing_is_not_measured(summary: RunSummary) -> None:
    text = markdown.render(summary)
    assert "not measured" in text
    assert "None" not in text


def test_hostile_strings_are_shown_not_obeyed() -> None:
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
def test_escaping(text: str, safe: str) -> None:
    assert markdown.escaped(text) == safe
