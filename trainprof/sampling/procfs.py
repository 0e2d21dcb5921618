"""Reading the kernel's text files: cheap, and a file that is gone is normal."""

from __future__ import annotations

import os
from typing import Final

_READ_BYTES: Final = 1 << 16


def read_bytes(path: str) -> bytes | None:
    """Returns the file's content, or None where it cannot be read (gone, forbidden)."""
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
    """Returns the file's text, odd bytes replaced, or None where it cannot be read."""
    content = read_bytes(path)
    return None if content is None else content.decode("utf-8", "replace")


def first_int(text: str | None) -> int | None:
    """Returns the integer that the text starts with, or None ("max", damaged, no text)."""
    try:
        return int((text or "").split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return None


def labelled_int(content: bytes, label: bytes) -> int | None:
    """Returns the integer that follows `label` at a line's start, or None where there is none."""
    at = 0 if content.startswith(label) else content.find(b"\n" + label) + 1
    if not content.startswith(label, at):
        return None
    # Long enough for "label:", blanks and 20 digits; splitting the whole file would cost more.
    words = content[at + len(label) : at + len(label) + 64].split(maxsplit=1)
    try:
        return int(words[0])
    except (IndexError, ValueError):
        return None
