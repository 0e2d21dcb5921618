"""What the script's own Python files were made of: those in its directory, and below it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainprof.launch.plain_file import contents_of

# A project's own files are fewer and smaller; what lies deeper, or behind more, is left out.
_MOST_FILES: Final = 100
_MOST_ENTRIES: Final = 2_000
_MOST_BYTES: Final = 8 << 20
_DEPTH: Final = 3
_DIGEST_CHARACTERS: Final = 16
_NOT_OWN: Final = frozenset({"site-packages", "node_modules", "__pycache__"})


def own_sources(script: Path) -> dict[str, str]:
    """Returns the first characters of each file's SHA-256, by its path from the script's directory.

    The script itself is left out, as are hidden directories and virtual environments.
    """
    script = Path(os.path.abspath(script))
    found: dict[str, str] = {}
    left = _MOST_BYTES
    for path in _files(script.parent):
        if len(found) >= _MOST_FILES:
            break
        text = None if path == script else contents_of(path, left)
        if text is None:
            continue
        left -= len(text)
        digest = hashlib.sha256(text).hexdigest()[:_DIGEST_CHARACTERS]
        found[str(path.relative_to(script.parent))] = digest
    return found


def _files(root: Path) -> Iterator[Path]:
    """Yields Python files, those nearest to the root first, in order of name."""
    entries, level = 0, [root]
    for _ in range(_DEPTH):
        deeper: list[Path] = []
        for directory in level:
            try:
                listed = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError:
                continue
            if directory != root and any(entry.name == "pyvenv.cfg" for entry in listed):
                continue
            for entry in listed:
                entries += 1
                if entries > _MOST_ENTRIES:
                    return
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in _NOT_OWN:
                        deeper.append(Path(entry.path))
                elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)
        level = deeper
