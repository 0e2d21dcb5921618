"""Strings that came from the run, made safe to print: one line, no controls, no escapes."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from typing import Any, Final, cast

from rich.cells import cell_len

from trainprof.analysis.summary.run_summary import RunSummary

# Whole terminal sequences, so that no "[31m" is left of them. One that is not terminated loses only
# its first character: what follows stays visible rather than being swallowed.
_TERMINAL_SEQUENCE: Final = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c)"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]"
)
_AS_SPACE: Final = frozenset("\t\n\v\f\r\x85\u2028\u2029")
# Control, format (bidirectional overrides, zero widths); surrogates are escaped instead.
_DROPPED: Final = frozenset({"Cc", "Cf"})

# One character for one, so that a line keeps its width.
_ASCII_STAND_INS: Final = {
    ord(character): stand_in
    for characters, stand_in in (
        ("µμ", "u"),
        ("…", "~"),
        ("–—−‐‑", "-"),
        ("×", "x"),
        ("·•", "|"),
        ("‘’", "'"),
        ("“”", '"'),
        ("█▉▊▋▌", "#"),
        ("▍▎▏\u00a0", " "),
    )
    for character in characters
}


def one_line(text: str, *, unicode: bool = True) -> str:
    """Returns `text` as printable characters of one line; `unicode=False`: in ASCII escapes."""
    kept = map(_printable, _TERMINAL_SEQUENCE.sub("", text))
    line = "".join(kept).encode("utf-8", "backslashreplace").decode("utf-8")
    return line if unicode else in_ascii(line)


def in_ascii(text: str) -> str:
    """Returns `text` with a stand-in for each known sign and a backslash escape for the others."""
    return text.translate(_ASCII_STAND_INS).encode("ascii", "backslashreplace").decode("ascii")


def with_safe_text(summary: RunSummary) -> RunSummary:
    """Returns the summary with every string in it made `one_line`.

    Renderers start with this: no string can take the words behind it into an escape of its own.
    """
    return cast(RunSummary, _made_safe(summary))


def clip_end(text: str, cells: int) -> str:
    """Returns the start of `text`, at most `cells` wide; "…" stands for what was cut."""
    if cell_len(text) <= cells:
        return text
    while text and cell_len(text) > cells - 1:
        text = text[: -max(1, (cell_len(text) - cells) // 2)]
    return text + "…" if cells > 0 else ""


def clip_start(text: str, cells: int) -> str:
    """Returns the end of `text`, at most `cells` wide: of a path, the file and the line matter."""
    return clip_end(text[::-1], cells)[::-1]


def _made_safe(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [_made_safe(item) for item in value]
    if isinstance(value, dict):
        return {_made_safe(key): _made_safe(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        safe = {field.name: _made_safe(getattr(value, field.name)) for field in fields}
        return dataclasses.replace(value, **safe)
    return value


def _printable(character: str) -> str:
    if character in _AS_SPACE:
        return " "
    return "" if unicodedata.category(character) in _DROPPED else character
