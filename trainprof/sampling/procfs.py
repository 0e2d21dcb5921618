"""Reads the kernel's text files fast; a missing file is normal."""

from __future__ import annotations

import os
from typing import Final

_READ_BYTES: Final = 1 << 16


def read_bytes(path: str) -> bytes | None:
    """Returns the file's content, None if it cannot be read (missing, no permission)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        # /proc/stat of a large machine needs several reads
        parts = []
        while part := os.read(descriptor, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_text(path: str) -> str | None:
    """Returns the file's text with invalid bytes replaced, None if it cannot be read."""
    content = read_bytes(path)
    return None if content is None else content.decode("utf-8", "replace")


def first_int(text: str | None) -> int | None:
    """Returns the integer at the start of the text, None without one ("max", damaged)."""
    try:
        return int((text or "").split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return None


def labelled_int(content: bytes, label: bytes) -> int | None:
    """Returns the integer after `label` at a line's start, None without one."""
    at = 0 if content.startswith(label) else content.find(b"\n" + label) + 1
    if not content.startswith(label, at):
        return None
    # Long enough for "label:", blanks and 20 digits; splitting the whole file would cost more.
    words = content[at + len(label) : at + len(label) + 64].split(maxsplit=1)
    try:
        return int(words[0])
    except (IndexError, ValueError):
        return None
