"""Paths and files of a run directory; the two worlds meet here and nowhere else.

The layout is a contract: manifest.json, summary.json, events/, samples/, and later ranks/, trials/,
sources/. Directories are 0700, files 0600.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainprof.record.names import EVENTS

MANIFEST_SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run directory's paths; nothing is created by asking for them."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    def create(self) -> None:
        """Makes the directory and its rooms, 0700, or accepts an empty one.

        Raises:
            FileExistsError: If it exists and is not an empty directory, or is a symbolic link.
            OSError: If it cannot be made.
        """
        if self.path.is_symlink():
            raise FileExistsError(f"{self.path} is a symbolic link")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            if not self.path.is_dir() or any(self.path.iterdir()):
                raise
            self.path.chmod(0o700)
        self.events.mkdir(mode=0o700)
        self.samples.mkdir(mode=0o700)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as strict JSON, whole or not at all (temporary file, then rename)."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, indent=1)
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.write("\n")
    os.replace(temporary, path)
