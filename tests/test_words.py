"""Strings, docstrings, comments, names and docs use no word that a reader stumbles at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.banned_words import in_source, words_in

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "trainprof"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_plain_words(room):
    banned = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for line, word in in_source(path)
    ]
    assert not banned, "\n".join(banned)


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_a_page_of_the_docs_uses_plain_words(page):
    assert not words_in((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ("the rule is told so", ["told"]),
        ("it is read\nonce\nmore", ["once more"]),
        ("a forward pass and a backward pass", []),
        ("each pass over it starts anew", ["each pass", "anew"]),
        ("is no longer there", []),
        ("Mind: more workers", ["Mind:"]),
    ],
)
def test_banned_words_are_detected(text, banned):
    assert words_in(text) == banned
