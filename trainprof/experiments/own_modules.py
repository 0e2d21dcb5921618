"""The files that a script runs and imports from beside it, told from their text alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import util
from itertools import pairwise
from pathlib import Path
from typing import Final

from trainprof.launch.target import Target

MAX_FILES: Final = 300
MAX_BYTES: Final = 2_000_000
# By which a launcher is told a module.
_OF_MODULES: Final = frozenset({"-m", "--module"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def modules_of(target: Target, cwd: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yields what a command runs and what that imports, parsed; runs nothing.

    Args:
        target: What is to be run.
        cwd: Where.
    """
    yield from _modules(_scripts(target, cwd))


def _scripts(target: Target, cwd: Path) -> list[tuple[Path, Path]]:
    """Returns the files that run first, each with the directory that it imports from."""
    words, is_one_file = list(target.words), target.is_ours
    if words[:1] == ["-m"] and len(words) > 1:
        files = _of_module(words[1], cwd)
        if files:
            return files
        # A launcher: what it runs is among its words.
        words, is_one_file = words[2:], False
    files = []
    if not is_one_file:
        named = (name for flag, name in pairwise(words) if flag in _OF_MODULES)
        files = _of_module(next(named, ""), cwd)
    for path in [cwd / word for word in (words[:1] if is_one_file else words)]:
        if path.is_dir():
            path = path / "__main__.py"
        if path.is_file() and (is_one_file or path.suffix == ".py"):
            files.append((path.resolve(), path.resolve().parent))
    return files


def _of_module(name: str, cwd: Path) -> list[tuple[Path, Path]]:
    """Returns the files that `python -m` runs, of a module that is no installed package's."""
    names = name.split(".")
    if not all(names):
        return []
    root = cwd if _files_of(cwd, names, runs=True) else _place_of(names[0])
    return [] if root is None else [(path, root) for path in _files_of(root, names, runs=True)]


def _place_of(package: str) -> Path | None:
    """Returns where a package lies that is on the path by PYTHONPATH, or installed in place."""
    try:
        found = util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if found is None or not found.has_location or found.origin is None:
        return None
    place = Path(found.origin)
    if _INSTALLED.intersection(place.parts) or package in sys.stdlib_module_names:
        return None
    return place.parents[1] if place.name == "__init__.py" else place.parent


def _files_of(root: Path, names: list[str], *, runs: bool = False) -> list[Path]:
    """Returns the files that importing a dotted name reads beneath `root`."""
    files, place = [], root
    for name in names:
        place = place / name
        if (place / "__init__.py").is_file():
            files.append(place / "__init__.py")
        elif place.with_name(f"{name}.py").is_file():
            return [*files, place.with_name(f"{name}.py")]
        elif not place.is_dir():
            return files
    if runs and (place / "__main__.py").is_file():
        files.append(place / "__main__.py")
    return files


def _modules(first: list[tuple[Path, Path]]) -> Iterator[tuple[Path, ast.Module]]:
    """Yields the first files and what they import from beneath their directories, parsed."""
    waiting, known = list(first), {path for path, _ in first}
    count = 0
    while waiting and count < MAX_FILES:
        path, root = waiting.pop(0)
        tree = _parsed(path)
        if tree is None:
            continue
        count += 1
        yield path, tree
        for names, base in _imports(tree, path, root):
            for file in _files_of(base, names):
                if file not in known:
                    known.add(file)
                    waiting.append((file, root))


def _parsed(path: Path) -> ast.Module | None:
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports(tree: ast.Module, path: Path, root: Path) -> Iterator[tuple[list[str], Path]]:
    """Yields dotted names that are imported, and the directory that each starts from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split("."), root
        elif isinstance(node, ast.ImportFrom):
            base = root
            if node.level:
                base = path.parents[min(node.level - 1, len(path.parents) - 1)]
            names = node.module.split(".") if node.module else []
            for alias in node.names:
                yield [*names, alias.name], base
