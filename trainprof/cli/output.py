"""What our text may use where it is going: width, colour, characters; and messages of one line."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final, TextIO, TypedDict

from trainprof.record.masking import masked_text

DEFAULT_WIDTH: Final = 80
RED: Final = "\x1b[31m"
PLAIN: Final = "\x1b[0m"


class Style(TypedDict):
    """What a stream can show, as renderers take it."""

    width: int
    color: bool
    unicode: bool


def style_of(stream: TextIO | None) -> Style:
    """Returns the stream's style: colour only on a terminal that does not forbid it."""
    encoding = (getattr(stream, "encoding", None) or "").lower()
    return Style(width=_width(stream), color=_has_color(stream), unicode="utf" in encoding)


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
        head = f"{RED}{head}{PLAIN}"
    tail = f"\nhint: {_one_line(masked_text(hint))}" if hint else ""
    with contextlib.suppress(OSError, ValueError):
        write(sys.stderr, f"{head}{tail}\n")


def _one_line(text: str) -> str:
    """Returns `text` without control characters: a path may hold anything."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def _has_color(stream: TextIO | None) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and _term() != "dumb"


def _term() -> str:
    return os.environ.get("TERM", "")


def is_terminal(stream: TextIO | None) -> bool:
    """Tells whether a person looks at what is written to the stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _width(stream: TextIO | None) -> int:
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns
            if columns > 0:
                return columns
    columns_set = os.environ.get("COLUMNS", "")
    return int(columns_set) if columns_set.isdecimal() and int(columns_set) else DEFAULT_WIDTH
