"""A Python file's text: its encoding, places in it, changes of it, and those as a diff."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

# What ends a line for Python; for a diff "\n" does alone.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_NO_LINE_END: Final = b"\n\\ No newline at end of file\n"
_ESCAPES: Final = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x22: '\\"', 0x5C: "\\\\"}


class NotMechanical(Exception):
    """The change cannot be written into the text without a decision; says why."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes [start, end) of a text are to be `new`; counted as UTF-8."""

    start: int
    end: int
    new: str

    def clashes_with(self, other: Edit) -> bool:
        """Whether both change the same place."""
        return self.start == other.start or (self.start < other.end and other.start < self.end)


@dataclass(frozen=True, slots=True)
class SourceText:
    """What a file says, and in which encoding."""

    text: str
    encoding: str = "utf-8"

    @staticmethod
    def of(data: bytes) -> SourceText:
        """Returns a file's text, decoded as Python decodes it.

        Raises:
            NotMechanical: If Python could not read it, or it cannot be written as it was.
        """
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            source = SourceText(data.decode(encoding), encoding)
        except (SyntaxError, UnicodeError, LookupError) as error:
            raise NotMechanical(f"its encoding is not understood: {error}") from None
        if source.written(source.text) != data:
            raise NotMechanical(f"its encoding, {encoding}, does not give back what it holds")
        return source

    def written(self, text: str) -> bytes:
        """Returns a text as this file would hold it.

        Raises:
            NotMechanical: If its encoding lacks a character.
        """
        try:
            return text.encode(self.encoding)
        except UnicodeError as error:
            raise NotMechanical(f"its encoding lacks a character: {error}") from None


def parsed(text: str, what: str = "the file does not parse") -> ast.Module:
    """Returns what a text says to Python.

    Args:
        text: Of a file.
        what: It means where Python would refuse it.

    Raises:
        NotMechanical: If Python would refuse it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a text that is not ours
            compile(text, "<source>", "exec", dont_inherit=True)
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise NotMechanical(f"{what}: {why}") from None


def span(text: str, node: ast.expr) -> tuple[int, int]:
    """Returns where a node's text begins and ends, in UTF-8 bytes."""
    starts = [0]
    for line in lines_of(text):
        starts.append(starts[-1] + len(line.encode()))
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
    return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column


def segment(text: str, node: ast.expr) -> str:
    """Returns a node's text."""
    start, end = span(text, node)
    return text.encode()[start:end].decode()


def lines_of(text: str) -> list[str]:
    """Returns a text's lines as Python counts them, each with its end."""
    return list(_cut(text))


def _cut(text: str) -> Iterator[str]:
    start = 0
    for found in _LINE_END.finditer(text):
        yield text[start : found.end()]
        start = found.end()
    if start < len(text):
        yield text[start:]


def applied(text: str, edits: Iterable[Edit]) -> str:
    """Returns a text with edits, no two of which clash."""
    data = text.encode()
    for edit in sorted(edits, key=lambda one: -one.start):
        data = data[: edit.start] + edit.new.encode() + data[edit.end :]
    return data.decode()


def diff(path: str, source: SourceText, edits: Iterable[Edit]) -> bytes:
    """Returns edits as a unified diff, which `git apply` and `patch -p1` take.

    Args:
        path: Of the file, as the diff is to name it.
        source: Its text.
        edits: No two of which clash.
    """
    before, after = (source.written(x) for x in (source.text, applied(source.text, edits)))
    lines = difflib.diff_bytes(
        difflib.unified_diff,
        _data_lines(before),
        _data_lines(after),
        _named("a", path),
        _named("b", path),
    )
    return b"".join(line if line.endswith(b"\n") else line + _NO_LINE_END for line in lines)


def _data_lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), *([rest] if rest else [])]


def _named(side: str, path: str) -> bytes:
    """Returns a file's name as a diff's head has it.

    A tab ends a name with blanks, which would end at the first else; others are quoted as in C.
    """
    name = os.fsencode(f"{side}/{path}")
    if any(byte < 0x20 or byte in _ESCAPES or byte == 0x7F for byte in name):
        return b'"' + b"".join(map(_quoted, name)) + b'"'
    return name + b"\t" if b" " in name else name


def _quoted(byte: int) -> bytes:
    if byte in _ESCAPES:
        return _ESCAPES[byte].encode()
    return f"\\{byte:03o}".encode() if byte < 0x20 or byte == 0x7F else bytes([byte])
