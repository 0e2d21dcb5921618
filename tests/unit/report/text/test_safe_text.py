"""Strings that a script chose, made safe to print."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from trainprof.report.text.safe_text import clip_end, clip_start, one_line

# Surrogates too: undecodable file names come as such.
any_text = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain [red]x[/red]", "plain [red]x[/red]"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x1b\\after", "after"),
        ("\x1b]never ended", "never ended"),
        ("\x1b[\x1b[31m31mx", "31mx"),
        ("a\r\nb\tc", "a  b c"),
        ("a\u202eb\u200bc\x00d\x7f", "abcd"),
        ("bad\udc80name", "bad\\udc80name"),
        ("数据.py", "数据.py"),
    ],
)
def test_one_line(text, safe):
    assert one_line(text) == safe


def test_ascii_keeps_meaning_and_width():
    assert one_line("3 µs – 4 µs … 数", unicode=False) == "3 us - 4 us ~ \\u6570"


@settings(deadline=None)
@given(any_text)
def test_nothing_that_acts_is_left(text):
    safe = one_line(text)
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in safe)
    assert one_line(safe) == safe
    assert one_line(text, unicode=False).isascii()


@settings(deadline=None)
@given(st.text(), st.integers(0, 40))
def test_clipped_text_fits(text, cells):
    line = one_line(text)
    assert cell_len(clip_end(line, cells)) <= cells
    assert cell_len(clip_start(line, cells)) <= cells


def test_clipping_keeps_the_side_asked_for():
    assert clip_end("abcdef", 4) == "abc…"
    assert clip_start("dir/train.py:41", 12) == "…train.py:41"
    assert clip_end("abcd", 4) == "abcd"
