"""Writes HTML pages to files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import ClassVar

from trainprof.record.errors import TrainprofError


class PageNotWritten(TrainprofError):
    slug: ClassVar[str] = "page-not-written"


def write_page(path: Path, page: str) -> None:
    """Writes a page whole or not at all (temporary file, rename).

    A symbolic link is replaced, not followed: a run directory may be somebody else's.

    Raises:
        PageNotWritten: If it cannot be written there, or something other than a file is there.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        if path.exists() and not path.is_file():
            raise PageNotWritten(f"{path} is not a file", hint="choose another with --output FILE")
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(page.encode("utf-8", "backslashreplace"))
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        why = error.strerror or str(error)
        hint = "choose another place with --output FILE"
        raise PageNotWritten(f"cannot write {path}: {why}", hint=hint) from error
