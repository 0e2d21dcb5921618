"""What our text may use where it is going: width, colour, characters; and messages of one line."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from trainprof.record.masking import masked_text

if TYPE_CHECKING:
    from trainprof.report.text.layout import Page

_DEFAULT_WIDTH: Final = 80


def page_of(stream: TextIO | None, *, verbose: bool = False) -> Page:
    """Returns a page as the stream can show it: colour only on a terminal that allows it."""
    from trainprof.report.text.layout import Page

    encoding = (getattr(stream, "encoding", None) or "").lower()
    return Page(width_of(stream), _has_color(stream), "utf" in encoding, verbose)


def json_text(plain: object) -> str:
    """Returns strict JSON: ASCII, without NaN or infinity, ended by a newline."""
    return json.dumps(plain, allow_nan=False, ensure_ascii=True, indent=1) + "\n"


def write(stream: TextIO | None, text: str) -> None:
    """Writes all of `text` at once, if there is a stream; what it cannot encode is escaped."""
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def write_bytes(stream: TextIO | None, data: bytes) -> None:
    """Writes all of `data` as it is, if there is a stream."""
    if stream is None:
        return
    stream.flush()
    stream.buffer.write(data)
    stream.buffer.flush()


def complain(message: str, hint: str | None = None) -> None:
    """Writes one line, and one for the hint, to stderr, if it is still there."""
    head = f"trainprof: {_one_line(masked_text(message))}"
    if _has_color(sys.stderr):
        head = f"\x1b[31m{head}\x1b[0m"
    tail = f"\nhint: {_one_line(masked_text(hint))}" if hint else ""
    with contextlib.suppress(OSError, ValueError):
        write(sys.stderr, f"{head}{tail}\n")


def _one_line(text: str) -> str:
    """Returns `text` without control characters: a path may hold anything."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def _has_color(stream: TextIO | None) -> bool:
    is_forbidden = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not is_forbidden


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person looks at what is written to the stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def width_of(stream: TextIO | None) -> int:
    """Returns the terminal's width in cells, else what COLUMNS says, or 80."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns
            if columns > 0:
                return columns
    columns_set = os.environ.get("COLUMNS", "")
    return int(columns_set) if columns_set.isdecimal() and int(columns_set) else _DEFAULT_WIDTH
