"""What a trial's script wrote, kept without its secrets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainprof.record.masking import masked_text

# Of more than that the end is kept: it tells how the script ended.
MOST_BYTES: Final = 8 << 20
_LEFT_OUT: Final = "[trainprof kept the end]\n"


def mask_console(console: Path, known: Sequence[str]) -> None:
    """Masks secrets in the files of a console, once nothing writes them any longer.

    Args:
        console: The directory with `stdout` and `stderr`.
        known: As masked_text takes them.

    Raises:
        OSError: If a file cannot be read or written.
    """
    for name in ("stdout", "stderr"):
        with (console / name).open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - MOST_BYTES, 0))
            text = file.read(MOST_BYTES).decode("utf-8", "surrogateescape")
            masked = masked_text(text, known)
            if size > MOST_BYTES:  # a secret may be cut where the end begins
                masked = _LEFT_OUT + masked.partition("\n")[2]
            if masked != text:
                file.seek(0)
                file.write(masked.encode("utf-8", "surrogateescape"))
                file.truncate()
