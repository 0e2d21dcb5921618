"""What a command runs, imports and is set up by, of the user's own; told from text alone."""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from trainprof.experiments.own_places import Places, files_at
from trainprof.experiments.own_settings import (
    HydraSettings,
    Settings,
    named_settings,
    read_settings,
)
from trainprof.experiments.syntax import parsed
from trainprof.launch.target import Target
from trainprof.record.plain_file import contents_of

# A project's own modules are fewer and smaller; to read so many takes some seconds.
MAX_FILES: Final = 300
MAX_BYTES: Final = 8 << 20
MAX_FILE_BYTES: Final = 2_000_000
# By which a launcher is told a module.
_OF_MODULES: Final = frozenset({"-m", "--module"})


@dataclass(frozen=True, slots=True)
class Own:
    """The files that a command is made of.

    Attributes:
        modules: The script, and what it imports, each parsed, in the order of reading.
        settings: Files that the command names, or that Hydra is told of.
    """

    modules: list[tuple[Path, ast.Module]]
    settings: list[Settings]


def own_of(target: Target, cwd: Path) -> Own:
    """Reads what a command runs and what that imports; runs nothing.

    Args:
        target: What is to be run.
        cwd: Where.
    """
    places = Places(target, cwd)
    first = _scripts(target, cwd, places)
    root = first[0][1] if first else cwd
    modules = _Modules(places)
    settings = [read_settings(path) for path in named_settings(target.words, cwd)]
    modules.read([*first, *_of_classes(settings, root, places)])
    hydra = HydraSettings(target.words, cwd)
    found = [read_settings(path) for path in hydra.of(modules.found)]
    known = {one.path for one in settings}
    settings += [one for one in found if one.path not in known]
    modules.read(_of_classes(found, root, places))
    return Own(modules.found, settings)


def shown(path: Path, cwd: Path) -> str:
    """Returns a path as seen from the working directory, if it lies beneath."""
    name = os.path.relpath(path, cwd)
    return str(path) if name.startswith(os.pardir) else name


def _scripts(target: Target, cwd: Path, places: Places) -> list[tuple[Path, Path]]:
    """Returns the files that run first, each with the directory that it imports from."""
    words, is_one_file = list(target.words), target.is_ours
    if words[:1] == ["-m"] and len(words) > 1:
        files = _of_module(words[1], cwd, places)
        if files:
            return files
        # A launcher: what it runs is among its words.
        words, is_one_file = words[2:], False
    files = []
    if not is_one_file:
        named = (name for flag, name in pairwise(words) if flag in _OF_MODULES)
        files = _of_module(next(named, ""), cwd, places)
    for path in [cwd / word for word in (words[:1] if is_one_file else words)]:
        if path.is_dir():
            path = path / "__main__.py"
        if path.is_file() and (is_one_file or path.suffix == ".py"):
            files.append((path.resolve(), path.resolve().parent))
    return files


def _of_module(name: str, cwd: Path, places: Places) -> list[tuple[Path, Path]]:
    """Returns the files that `python -m` runs, of a module that is no installed package's."""
    names = name.split(".")
    if not all(names):
        return []
    return [(path, cwd) for path in places.files_of(names, cwd, runs=True)]


def _of_classes(
    settings: Iterable[Settings], root: Path, places: Places
) -> list[tuple[Path, Path]]:
    """Returns the files of the classes and functions that settings name."""
    names = [entry.value.split(".") for one in settings for entry in one.classes]
    return [(path, root) for parts in names for path in places.files_of(parts, root)]


class _Modules:
    """Follows imports, nearest first, until there are no more or too many."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: set[Path] = set()
        self._left = MAX_BYTES
        self.found: list[tuple[Path, ast.Module]] = []

    def read(self, first: Iterable[tuple[Path, Path]]) -> None:
        """Reads files, each with the directory that it imports from, and what they import."""
        waiting = deque(one for one in first if self._is_new(one[0]))
        while waiting and len(self.found) < MAX_FILES:
            path, root = waiting.popleft()
            text = contents_of(path, min(self._left, MAX_FILE_BYTES))
            tree = parsed(text)
            if text is None or tree is None:
                continue
            self._left -= len(text)
            self.found.append((path, tree))
            for file in self._imported(tree, path, root):
                if self._is_new(file):
                    waiting.append((file, root))

    def _is_new(self, path: Path) -> bool:
        is_new = path not in self._known
        self._known.add(path)
        return is_new

    def _imported(self, tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
        """Yields the files that a module's imports read."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._places.files_of(alias.name.split("."), root)
            elif isinstance(node, ast.ImportFrom):
                names = node.module.split(".") if node.module else []
                for alias in node.names:
                    parts = [*names, alias.name]
                    if node.level:
                        base = path.parents[min(node.level - 1, len(path.parents) - 1)]
                        yield from files_at(base / parts[0], parts[1:])
                    else:
                        yield from self._places.files_of(parts, root)
