from __future__ import annotations

import io
import sys

import pytest

from trainprof.cli.output import complain, style_of, write


class Terminal(io.StringIO):
    encoding = "UTF-8"  # type: ignore[assignment]

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_colour_is_for_terminals_that_do_not_forbid_it(monkeypatch):
    assert style_of(Terminal())["color"]
    assert not style_of(io.StringIO())["color"]
    assert not style_of(None)["color"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not style_of(Terminal())["color"]


def test_width_without_a_terminal(monkeypatch):
    assert style_of(io.StringIO())["width"] == 80
    monkeypatch.setenv("COLUMNS", "132")
    assert style_of(io.StringIO())["width"] == 132
    for nonsense in ("0", "-5", "wide", ""):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert style_of(None)["width"] == 80


def test_unicode_is_what_the_stream_encodes():
    assert style_of(Terminal())["unicode"]
    assert not style_of(io.TextIOWrapper(io.BytesIO(), "ascii"))["unicode"]


def test_what_a_stream_cannot_encode_is_escaped():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    write(stream, "é\n")
    assert raw.getvalue() == b"\\xe9\n"
    write(None, "nobody reads this")


def test_a_complaint_is_one_line_and_a_hint(monkeypatch, capsys):
    complain("no such script: a\nb\x1b[31m\udcff", hint="look\rthere")
    assert capsys.readouterr().err == (
        "trainprof: no such script: a\\nb\\x1b[31m\\udcff\nhint: look\\rthere\n"
    )
    monkeypatch.setattr(sys, "stderr", None)
    complain("stderr was closed")
