"""Saves the files of a `tune` run, or says in one line why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import write_json


class CannotSave(TrainprofError):
    slug: ClassVar[str] = "cannot-save"
    exit_code: ClassVar[int] = 2


def save_json(path: Path, value: Any) -> None:
    """Writes a file of a `tune` run as `write_json` does.

    Raises:
        CannotSave: If the system refuses, or something else is in the file's place.
    """
    try:
        write_json(path, value)
    except OSError as error:
        why = "a directory is in its place" if path.is_dir() else error.strerror or str(error)
        raise CannotSave(
            f"{path.name} cannot be written: {why}",
            hint=f"make room for {path}, then go on with --resume",
        ) from error
