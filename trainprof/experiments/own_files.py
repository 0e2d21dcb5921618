"""What the script of a `tune` run is made of: trials of other texts are not alike."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from trainprof.experiments.own_modules import Own, own_of, shown
from trainprof.experiments.programs import runs_only_python
from trainprof.experiments.syntax import last_name
from trainprof.launch.masking import masked_text
from trainprof.launch.sources import LARGEST_SETTINGS_BYTES, SETTINGS, digest_of, own_sources
from trainprof.launch.target import Target
from trainprof.record.plain_file import contents_of

_NAMED: Final = (*SETTINGS, ".sh")
# What a module calls that imports, or runs, what its text does not name.
_DYNAMIC: Final = frozenset(
    (
        *("import_module", "__import__", "exec", "run_path", "run_module"),
        *("spec_from_file_location", "instantiate", "locate", "LightningCLI"),
    )
)


def digests_of(target: Target, cwd: Path, own: Own | None = None) -> dict[str, str]:
    """Returns the first characters of the SHA-256 of each file, by its path as seen from `cwd`.

    These are the script or module, what it imports of the user's own, and settings that the command
    names or that Hydra makes of them; where a text imports what it does not name, all Python files
    beside it. Nothing is run.

    Args:
        target: What is run.
        cwd: Where.
        own: As `own_of` finds them, None: they are looked for.
    """
    found: dict[str, str] = {}
    first: Path | None = None
    is_dynamic = False
    own = own or own_of(target, cwd)
    for path, tree in own.modules:
        first = first or path
        is_dynamic = is_dynamic or _imports_what_it_does_not_name(tree)
        _add(found, path, cwd)
    for path in (*_named(target, cwd), *(one.path for one in own.settings)):
        _add(found, path, cwd)
    if first is not None and is_dynamic:
        for name in own_sources(first):
            _add(found, first.parent / name, cwd)
    return found


def edited(before: Mapping[str, str], cwd: Path) -> list[str]:
    """Returns the files of a beginning that are others now, or gone; what came later is none."""
    return [name for name, digest in before.items() if _digest(cwd / name) != digest]


def _add(found: dict[str, str], path: Path, cwd: Path) -> None:
    digest, name = _digest(path), shown(path, cwd)
    # What holds a secret is not written down.
    if digest is not None and masked_text(name) == name:
        found[name] = digest


def _digest(path: Path) -> str | None:
    text = contents_of(path, LARGEST_SETTINGS_BYTES)
    return None if text is None else digest_of(text)


def _named(target: Target, cwd: Path) -> Iterator[Path]:
    """Yields files of text that the command names, by themselves or behind `--option=`."""
    if os.sep in target.words[0] and not runs_only_python(target, cwd):
        yield Path(os.path.normpath(cwd / target.words[0]))
    for word in target.words:
        name = word.rpartition("=")[2]
        if name.lower().endswith(_NAMED) and "\0" not in name:
            yield Path(os.path.normpath(cwd / name))


def _imports_what_it_does_not_name(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Call) and last_name(node.func) in _DYNAMIC for node in ast.walk(tree)
    )
