"""What a stream can show, and messages of one line."""

from __future__ import annotations

import io
import sys

import pytest

from trainprof.cli.output import complain, page_of, width_of, write


class Terminal(io.StringIO):
    encoding = "UTF-8"  # type: ignore[assignment]

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_colour_is_for_terminals_that_do_not_forbid_it(monkeypatch):
    assert page_of(Terminal()).color
    assert not page_of(io.StringIO()).color
    assert not page_of(None).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not page_of(Terminal()).color


def test_width_without_a_terminal(monkeypatch):
    for columns, width in ((None, 80), ("132", 132), ("0", 80), ("-5", 80), ("wide", 80)):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        assert width_of(io.StringIO()) == width_of(None) == width


def test_what_a_stream_cannot_encode_is_escaped():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    assert page_of(Terminal()).unicode
    assert not page_of(stream).unicode
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
