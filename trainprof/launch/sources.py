"""The files of a script's project: Python files next to it, and settings that its command names."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Final

from trainprof.launch.placement import RUNS
from trainprof.launch.target import Target
from trainprof.record.files import contents_of

# Most projects have fewer and smaller files; what lies deeper, or behind more, is left out.
_MOST_FILES: Final = 100
_MOST_ENTRIES: Final = 2_000
_MOST_BYTES: Final = 8 << 20
_DEPTH: Final = 3
_DIGEST_CHARACTERS: Final = 16
_NOT_OWN: Final = frozenset({"site-packages", "node_modules", "__pycache__", RUNS})
_CODE: Final = (".py",)
SETTINGS: Final = (".py", ".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")
# Where Hydra and its like keep settings that no command names.
_FOLDERS_OF_SETTINGS: Final = ("conf", "config", "configs")
_IN_FOLDERS: Final = (".yaml", ".yml")
_MOST_SETTINGS: Final = 20
LARGEST_SETTINGS_BYTES: Final = 2_000_000
# Behind such options stand files that the script writes.
_WRITTEN: Final = re.compile(
    r"(?:^|[-_.])(?:out|output|save|log|dump|result|metric|report|checkpoint|ckpt)", re.IGNORECASE
)


def digest_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_DIGEST_CHARACTERS]


def own_sources(script: Path) -> dict[str, str]:
    """Returns digests of the Python files next to a script, by path from the script's directory."""
    script = Path(os.path.abspath(script))
    return _digests(script.parent, _files(script.parent, _CODE), but_for=script)


def own_texts(script: Path) -> Iterator[bytes]:
    """Yields the text of a script, if it can be read, and of the Python files next to it."""
    script = Path(os.path.abspath(script))
    yield contents_of(script, _MOST_BYTES) or b""
    beside = _files(script.parent, _CODE) if script.name.endswith(_CODE) else iter(())
    yield from (text for _, text in _texts(beside, but_for=script))


def settings_next_to(script: Path) -> dict[str, str]:
    """Returns digests of YAML files in folders next to it, such as `configs`."""
    root = Path(os.path.abspath(script)).parent
    folders = [root / name for name in _FOLDERS_OF_SETTINGS]
    files = (path for folder in folders for path in _files(folder, _IN_FOLDERS))
    return _digests(root, files)


def named_settings(words: Sequence[str]) -> dict[str, str]:
    """Returns digests of the files of settings that a command names, by the name as typed.

    A name may stand alone, behind `--option=` or as `@file`. Files behind options such as
    `--output` are left out: the script writes them.
    """
    digests: dict[str, str] = {}
    for before, word in zip(("", *words), words, strict=False):
        option, _, name = word.rpartition("=")
        if _WRITTEN.search(option or (before if before.startswith("-") else "")):
            continue
        is_listed = name.startswith("@") and len(name) > 1
        if not is_listed and not name.lower().endswith(SETTINGS):
            continue
        text = contents_of(name.removeprefix("@"), LARGEST_SETTINGS_BYTES)
        if text is not None and len(digests) < _MOST_SETTINGS:
            digests[name.removeprefix("@")] = digest_of(text)
    return digests


def _digests(root: Path, files: Iterator[Path], but_for: Path | None = None) -> dict[str, str]:
    texts = _texts(files, but_for)
    return {str(path.relative_to(root)): digest_of(text) for path, text in texts}


def _texts(files: Iterator[Path], but_for: Path | None) -> Iterator[tuple[Path, bytes]]:
    """Yields the files' texts, up to _MOST_FILES and _MOST_BYTES in all."""
    count, left = 0, _MOST_BYTES
    for path in files:
        if count >= _MOST_FILES:
            break
        text = None if path == but_for else contents_of(path, left)
        if text is None:
            continue
        count, left = count + 1, left - len(text)
        yield path, text


def _files(
    root: Path, endings: tuple[str, ...], left_out: list[Path] | None = None
) -> Iterator[Path]:
    """Yields files by their endings, those nearest to the root first, in order of name.

    Directories and links that are not searched, and may hold such files, go to `left_out`.
    """
    left_out = [] if left_out is None else left_out
    entries, level = 0, [root]
    for _ in range(_DEPTH):
        deeper: list[Path] = []
        for directory in level:
            try:
                listed = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError:
                left_out.append(directory)
                continue
            if directory != root and any(entry.name == "pyvenv.cfg" for entry in listed):
                continue
            for entry in listed:
                entries += 1
                if entries > _MOST_ENTRIES:
                    left_out.append(directory)
                    return
                is_own = not entry.name.startswith(".") and entry.name not in _NOT_OWN
                if entry.is_dir(follow_symlinks=False):
                    if is_own:
                        deeper.append(Path(entry.path))
                elif entry.name.endswith(endings) and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)
                elif is_own and entry.is_symlink():
                    left_out.append(Path(entry.path))
        level = deeper
    left_out += level


_UNPARSED: Final = (SyntaxError, ValueError, RecursionError)
_LIBRARIES: Final = ("site-packages", "dist-packages")
_MODULES: Final = ("", ".py", ".so", ".pyd")
_IMPORTS_BY_NAME: Final = re.compile(rb"\b(?:import_module|__import__|run_path|run_module)\b")


def function_names(script: Path) -> set[str]:
    """Returns the qualified names of functions in a script and its project's Python files.

    Those are below its directory and below the working directory. Where others of the user's
    files may be imported, or a file was not read, nothing is returned.
    """
    script, cwd = Path(os.path.abspath(script)), Path.cwd()
    left_out: list[Path] = []
    roots = dict.fromkeys((script.parent, cwd))
    below = [path for root in roots for path in _files(root, _CODE, left_out)]
    files = dict.fromkeys([script, *below])
    texts = dict(_texts(iter(files), but_for=None))
    if left_out or len(texts) < len(files):
        return set()
    own = [path.relative_to(x) for path in files for x in roots if path.is_relative_to(x)]
    known = _installed() | {part.removesuffix(".py") for path in own for part in path.parts}
    names: set[str] = set()
    for path, text in texts.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a text that is not ours
                tree = ast.parse(text)
            names.update(_names(tree, ""))
        except _UNPARSED:
            return set()
        if _IMPORTS_BY_NAME.search(text) or not known.issuperset(_imported(tree, path, roots)):
            return set()
    return names


def _installed() -> set[str]:
    """Returns the modules of the standard library and of the library folders."""
    names = set(sys.stdlib_module_names)
    for folder in sys.path:
        if folder.endswith(_LIBRARIES):
            with contextlib.suppress(OSError):
                entries = map(Path, os.listdir(folder))
                names.update(x.name.partition(".")[0] for x in entries if x.suffix in _MODULES)
    return names


def _imported(tree: ast.AST, path: Path, roots: Iterable[Path]) -> Iterator[str]:
    """Yields the first names of imported modules; "" of one that is relative and not searched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[min(node.level, len(path.parents)) - 1]
            if not any(folder.is_relative_to(root) for root in roots):
                yield ""


def _names(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            yield from _names(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _names(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _names(child, prefix)


_USES: Final = re.compile(rb"^[ \t]*@[ \t]*(?:builtins\.)?profile\b|(?<![\w.])profile\(", re.M)
# Such a text defines `profile` itself, or checks whether kernprof runs it.
_HAS_OR_ASKS: Final = re.compile(
    rb"\bNameError\b"
    rb"|^[^#\n]*\bimport\b[^#\n]*\bprofile\b"
    rb"|\b(?:def|class)[ \t]+profile\b"
    rb"|^[ \t]*(?:builtins\.)?profile[ \t]*(?::[^=\n]*)?=(?!=)"
    rb"|[\"']profile[\"'][ \t]+(?:not[ \t]+)?in\b"
    rb"|\b(?:get|has|set)attr\([^)\n]*[\"']profile[\"']",
    re.M,
)


def needs_profile(script: str | None) -> bool:
    """Whether a script, or a file next to it, would end in a NameError without a `profile`.

    False where it checks for one: it would run differently with ours.
    """
    if script is None:
        return False
    own, *beside = own_texts(Path(script))
    if _HAS_OR_ASKS.search(own):
        return False
    return any(_USES.search(text) and not _HAS_OR_ASKS.search(text) for text in (own, *beside))


# It has a few hundred bytes.
_LARGEST_BYTES: Final = 1 << 16
_VERSION: Final = re.compile(rb"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def installed_torch(target: Target) -> str | None:
    """Returns torch's version from its version.py; None where that cannot be read."""
    if not target.is_ours:
        return None
    try:
        spec = util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    text = contents_of(Path(spec.origin).with_name("version.py"), _LARGEST_BYTES)
    version = None if text is None else _VERSION.search(text)
    return None if version is None else version[1].decode("utf-8", "replace")
