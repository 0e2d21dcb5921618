"""What a stream can show: width, colour, characters; one-line messages; the bar of an analysis."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, TextIO

from trainprof.record.masking import masked_text

if TYPE_CHECKING:
    from trainprof.report.text.layout import Page

_DEFAULT_WIDTH: Final = 80
_ERASED: Final = "\r\x1b[K"  # the line under the cursor
_BAR_AFTER_S: Final = 1.0
_BAR_EVERY_S: Final = 0.1
_BAR_END_S: Final = 0.5
_BAR_CELLS: Final = 20
_BAR: Final = range(_BAR_CELLS)
_LINE_EVERY_S: Final = 60.0


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
    """Writes a line, and a line with the hint, to stderr, if it is still open."""
    head = f"trainprof: {_one_line(masked_text(message))}"
    if _has_color(sys.stderr):
        head = f"\x1b[31m{head}\x1b[0m"
    tail = f"\nhint: {_one_line(masked_text(hint))}" if hint else ""
    with contextlib.suppress(OSError, ValueError):
        write(sys.stderr, f"{head}{tail}\n")


def write_line(stream: TextIO | None, line: str) -> None:
    """Writes a whole line where the script may have left an unfinished one, such as tqdm's bar.

    A terminal's bar is erased first, as tqdm.write does; tqdm draws it again below. In a file the
    line begins on a new one.
    """
    before = ""
    if is_terminal(stream):
        before = _ERASED
    elif _ends_within_line(stream):
        before = "\n"
    write(stream, f"{before}{line}\n")


def _ends_within_line(stream: TextIO | None) -> bool:
    """Returns whether a file that the stream writes to ends without a line end."""
    try:
        path = f"/proc/self/fd/{stream.fileno()}" if stream is not None else ""
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except (OSError, ValueError):
        return False


class Working:
    """Shows that work goes on: after a second a moving bar, off a terminal a line each minute."""

    def __init__(self, stream: TextIO | None, what: str) -> None:
        self._stream, self._what = stream, what
        self._over = threading.Event()
        self._is_drawn = False
        self._thread = threading.Thread(target=self._show, name="trainprof-bar", daemon=True)

    def __enter__(self) -> None:
        if self._stream is not None:
            self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_BAR_END_S)
        self.clear()

    def clear(self) -> None:
        """Erases the bar."""
        self._over.set()
        if self._is_drawn:
            self._is_drawn = False
            write(self._stream, _ERASED)

    def _show(self) -> None:
        began, is_live = time.monotonic(), is_terminal(self._stream)
        every_s = _BAR_AFTER_S if is_live else _LINE_EVERY_S
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            while not self._over.wait(every_s):
                elapsed_s = time.monotonic() - began
                if is_live:
                    self._is_drawn, every_s = True, _BAR_EVERY_S
                    write(self._stream, f"{_ERASED}{self._line(elapsed_s)}")
                else:
                    minutes = f"{elapsed_s / 60:.0f} min"
                    write(self._stream, f"trainprof: {self._what}, {minutes} so far\n")

    def _line(self, elapsed_s: float) -> str:
        page = page_of(self._stream)
        on, off = "█░" if page.unicode else "#."
        place = int(elapsed_s / _BAR_EVERY_S)
        bar = "".join(off if (x - place) % _BAR_CELLS > _BAR_CELLS // 4 else on for x in _BAR)
        return f"trainprof: {self._what} {bar} {elapsed_s:.0f} s"[: page.width - 1]


def _one_line(text: str) -> str:
    """Returns `text` with control characters escaped: a path may hold any."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def _has_color(stream: TextIO | None) -> bool:
    is_forbidden = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not is_forbidden


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal."""
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
