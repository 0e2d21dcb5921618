"""Where the packages lie that are the user's own: beside the script, or put on Python's path.

Told from files alone: nothing is imported, since that would run what is the user's.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from trainprof.experiments.programs import interpreter_of
from trainprof.experiments.syntax import constant, parsed
from trainprof.launch.target import Target
from trainprof.record.plain_file import contents_of

# Where pip puts what is not the user's own.
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
# Libraries that people also have in place, or on the path: too large to be read, and what they
# can send away they do where a script says so.
LIBRARIES: Final = frozenset(
    (
        *("accelerate", "datasets", "deepspeed", "diffusers", "fairseq", "hydra", "lightning"),
        *("lightning_fabric", "megatron", "mmcv", "mmengine", "numpy", "peft", "pytorch_lightning"),
        *("tensorflow", "timm", "tokenizers", "torch", "torch_geometric", "torchaudio"),
        *("torchdata", "torchmetrics", "torchvision", "trainprof", "transformers", "trl"),
    )
)
_MOST_ENTRIES: Final = 100
_MOST_PATH_FILES: Final = 200
_MOST_PATH_BYTES: Final = 1 << 16
_MOST_FINDER_BYTES: Final = 2_000_000
_PYTHON_PATH: Final = "PYTHONPATH"
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_IMPORTED: Final = re.compile(r"\bimport\s+([A-Za-z_]\w*)")


class Places:
    """Finds the files of what is imported, of packages that are the user's own."""

    def __init__(self, target: Target, cwd: Path) -> None:
        """
        Args:
            target: The command that imports.
            cwd: Where it is run.
        """
        self._cwd = cwd
        self._site = _site_packages(interpreter_of(target, cwd))
        self._roots = list(_on_path(cwd))
        self._finders: dict[str, Path] = {}
        for directory in self._site:
            for file in sorted(directory.glob("*.pth"))[:_MOST_PATH_FILES]:
                self._read_path_file(file)
        self._known: dict[tuple[str, Path], Path | None] = {}

    def files_of(self, names: Sequence[str], root: Path, *, runs: bool = False) -> list[Path]:
        """Returns the files that importing a dotted name reads, [] where it is none of the user's.

        Args:
            names: Its parts.
            root: The directory that the script imports from first.
            runs: It is run as `python -m` does.
        """
        for end in range(len(names), 0, -1):
            place = self._finders.get(".".join(names[:end]))
            if place is not None and not _is_module(root / names[0]):
                return files_at(place, names[end:], runs=runs)
        if (names[0], root) not in self._known:
            self._known[names[0], root] = self._place_of(names[0], root)
        place = self._known[names[0], root]
        return [] if place is None else files_at(place, names[1:], runs=runs)

    def _place_of(self, name: str, root: Path) -> Path | None:
        """Returns what a first name stands for, as a path without a suffix."""
        places = [root / name]
        if name not in LIBRARIES and name not in sys.stdlib_module_names:
            places += [directory / name for directory in self._roots]
            # Scripts put the working directory on the path themselves; behind what is there.
            if not any(_is_module(directory / name) for directory in self._site):
                places.append(self._cwd / name)
        found = next(filter(_is_module, places), None)
        # A directory without an __init__.py is a package only where there is no other.
        return found or next((place for place in places if place.is_dir()), None)

    def _read_path_file(self, file: Path) -> None:
        """Takes from a `.pth` file which directories are on the path, and which finders there are.

        A package that is installed in place (`pip install -e`) is one or the other.
        """
        text = os.fsdecode(contents_of(file, _MOST_PATH_BYTES) or b"")
        for line in map(str.strip, text.splitlines()):
            if line.startswith(("import ", "import\t")):
                for name in _IMPORTED.findall(line):
                    self._finders.update(_mapped_by(file.with_name(f"{name}.py")))
            elif line and not line.startswith("#") and "\0" not in line:
                directory = Path(os.path.normpath(file.parent / line))
                if _is_users(directory) and directory not in self._roots:
                    self._roots.append(directory)


def files_at(place: Path, names: Sequence[str], *, runs: bool = False) -> list[Path]:
    """Returns the files that importing a dotted name reads.

    Args:
        place: Of its first part, as a path without a suffix.
        names: The parts behind that; the last may be no module.
        runs: It is run as `python -m` does.
    """
    files: list[Path] = []
    for name in ("", *names):
        place = place / name
        if (place / "__init__.py").is_file():
            files.append(place / "__init__.py")
        elif place.with_name(f"{place.name}.py").is_file():
            return [*files, place.with_name(f"{place.name}.py")]
        elif not place.is_dir():
            return files
    if runs and (place / "__main__.py").is_file():
        files.append(place / "__main__.py")
    return files


def _is_module(place: Path) -> bool:
    return (place / "__init__.py").is_file() or place.with_name(f"{place.name}.py").is_file()


def _site_packages(interpreter: str) -> list[Path]:
    """Returns where an interpreter has what is installed."""
    prefix = Path(os.path.abspath(interpreter)).parent.parent
    if prefix != Path(sys.prefix):
        found = [path for path in sorted(prefix.glob("lib/python3*/*")) if path.name in INSTALLED]
        if found:
            return found
    return [Path(entry) for entry in sys.path if Path(entry).name in INSTALLED]


def _on_path(cwd: Path) -> Iterator[Path]:
    """Yields what PYTHONPATH names of the user's; an empty entry is the working directory."""
    text = os.environ.get(_PYTHON_PATH, "")
    for entry in text.split(os.pathsep)[:_MOST_ENTRIES] if text else ():
        directory = Path(os.path.normpath(cwd / entry))
        if _is_users(directory) and not any(directory.glob("*.dist-info")):
            yield directory


def _is_users(directory: Path) -> bool:
    return not INSTALLED.intersection(directory.parts) and directory.is_dir()


def _mapped_by(finder: Path) -> dict[str, Path]:
    """Returns where a finder of packages installed in place has them, by their dotted names.

    setuptools and scikit-build write them in a mapping, `editables` as arguments of a call.
    """
    tree = parsed(contents_of(finder, _MOST_FINDER_BYTES))
    found: dict[str, Path] = {}
    for node in ast.walk(tree) if tree is not None else ():
        pairs: Iterator[tuple[ast.expr | None, ast.expr]] = iter(())
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Call) and len(node.args) == 2:
            pairs = iter([(node.args[0], node.args[1])])
        for key, value in pairs:
            name, path = constant(key) if key is not None else None, constant(value)
            if isinstance(name, str) and isinstance(path, str) and _NAME.fullmatch(name):
                place = _place_named(path)
                if place is not None and name.partition(".")[0] not in LIBRARIES:
                    found[name] = place
    return found


def _place_named(path: str) -> Path | None:
    """Returns a path without a suffix, None where it is none of a module of the user's."""
    if not os.path.isabs(path) or "\0" in path:
        return None
    place = Path(path)
    if place.name == "__init__.py":
        place = place.parent
    elif place.suffix == ".py":
        place = place.with_suffix("")
    is_users = place.name and not INSTALLED.intersection(place.parts)
    if not is_users or not (_is_module(place) or place.is_dir()):
        return None
    return place
