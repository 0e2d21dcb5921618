"""Files of settings that a command names, or that Hydra is told of: what they name in turn.

They are read line by line, as YAML is mostly written: to read all of YAML takes a package.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainprof.experiments.syntax import constant, last_name
from trainprof.record.plain_file import contents_of

MAX_FILES: Final = 100
MAX_BYTES: Final = 1 << 20
TYPES: Final = (".yaml", ".yml", ".json")
# Keys whose value is a class or a function, as Hydra and Lightning's command line have them.
_CLASSES: Final = ("_target_", "class_path")
# Keys whose value is a tracker or several.
_TRACKERS: Final = ("report_to", "log_with")
_NONE: Final = "none"
_UNSAID: Final = "null"
_KEY: Final = re.compile(rf"""(?<![\w.])({"|".join((*_CLASSES, *_TRACKERS))})["']?[ \t]*:[ \t]*""")
_DOTTED: Final = re.compile(r"""["']?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)""")
_FLOW: Final = re.compile(r"\[([^\]]*)\]")
_BLOCK: Final = re.compile(r"""(?:[ \t]*\n[ \t]*-[ \t]+["']?\w+["']?)+""")
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_DEFAULTS: Final = re.compile(r"^defaults:[ \t]*\n((?:[ \t]*(?:-.*)?\n)*)", re.MULTILINE)
_ITEM: Final = re.compile(r"^([ \t]*)-[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_OVERRIDE: Final = re.compile(r"\+{0,2}([\w/]+)(?:@[\w.]*)?=(.*)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One value in a file of settings.

    Attributes:
        key: One of those that are looked for.
        value: As it is written, without quotes.
        line: From 1 on.
    """

    key: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Settings:
    """A file of settings.

    Attributes:
        classes: What `_target_` and `class_path` name.
        trackers: What `report_to` and `log_with` name, one by one.
    """

    path: Path
    classes: list[Entry]
    trackers: list[Entry]


def named_settings(words: Sequence[str], cwd: Path) -> list[Path]:
    """Returns the files of settings that a command names, by themselves or behind `--option=`."""
    named = (word.rpartition("=")[2] for word in words)
    files = [
        Path(os.path.normpath(cwd / name))
        for name in named
        if name.lower().endswith(TYPES) and "\0" not in name
    ]
    return [path for path in dict.fromkeys(files) if path.is_file()][:MAX_FILES]


def read_settings(path: Path) -> Settings:
    """Reads what a file names; one that cannot be read names nothing."""
    text = _COMMENT.sub("", _text_of(path))
    entries: list[Entry] = []
    for match in _KEY.finditer(text):
        key, line = match[1], text.count("\n", 0, match.start()) + 1
        values = _names_at(text, match.end()) if key in _TRACKERS else _class_at(text, match.end())
        entries += [Entry(key, value, line) for value in values]
    return Settings(
        path,
        [one for one in entries if one.key in _CLASSES],
        [one for one in entries if one.key in _TRACKERS],
    )


def _text_of(path: Path) -> str:
    return (contents_of(path, MAX_BYTES) or b"").decode(errors="replace").replace("\r\n", "\n")


def _class_at(text: str, start: int) -> list[str]:
    found = _DOTTED.match(text, start)
    return [found[1]] if found is not None else []


def _names_at(text: str, start: int) -> list[str]:
    """Returns the words of a list in brackets or of one with dashes, or the only word."""
    several = _FLOW.match(text, start)
    if several is not None:
        return re.findall(r"\w+", several[1]) or [_NONE]
    several = _BLOCK.match(text, start)
    if several is not None:
        return re.findall(r"\w+", several[0])
    return [name for name in _class_at(text, start) if name != _UNSAID]


class HydraSettings:
    """The files that Hydra makes its configuration of, by the defaults in each of them."""

    def __init__(self, words: Sequence[str], cwd: Path) -> None:
        """
        Args:
            words: The command, which may choose other files than the defaults name.
            cwd: Where it is run.
        """
        self._cwd = cwd
        self._directory = _option(words, "--config-path", "-cp")
        self._more = _option(words, "--config-dir", "-cd")
        self._name = _option(words, "--config-name", "-cn")
        self._chosen: dict[str, list[str]] = {}
        for word in words:
            match = _OVERRIDE.fullmatch(word)
            if match is not None:
                self._chosen[match[1].strip("/")] = _options(match[2])
        self._places: list[Path] = []
        self._found: dict[Path, None] = {}

    def of(self, modules: Sequence[tuple[Path, ast.Module]]) -> list[Path]:
        """Returns the files that modules have Hydra read, in the order of reading."""
        for path, tree in modules:
            if not _imports_hydra(tree):
                continue
            directories, names = _told_to_hydra(tree)
            directories = [self._directory] if self._directory is not None else directories
            self._places = [
                Path(os.path.normpath(base / directory))
                for directory in directories or ["."]
                for base in (path.parent, self._cwd)
            ]
            if self._more is not None:
                self._places.append(Path(os.path.normpath(self._cwd / self._more)))
            for name in [self._name] if self._name is not None else names:
                self._follow("", name)
            for group, options in self._chosen.items():
                for option in options:
                    self._follow(group, option)
        return list(self._found)

    def _follow(self, group: str, option: str) -> None:
        """Takes the file of an option of a group, and those that its defaults name."""
        name = os.path.normpath(os.path.join("/", group, option))[1:]
        path = self._file_of(name)
        if path is None or path in self._found or len(self._found) >= MAX_FILES:
            return
        self._found[path] = None
        here = os.path.dirname(name)
        for inner, options in _defaults(_COMMENT.sub("", _text_of(path))):
            below = os.path.normpath(os.path.join("/", here, inner))[1:]
            for one in self._chosen.get(below, options) if inner else options:
                self._follow(below, one)

    def _file_of(self, name: str) -> Path | None:
        name = name if name.endswith(TYPES) else f"{name}.yaml"
        return next((path for place in self._places if (path := place / name).is_file()), None)


def _imports_hydra(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        if any(name.partition(".")[0] == "hydra" for name in names):
            return True
    return False


def _told_to_hydra(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Returns the directories and the names of configurations that a module's text has."""
    directories: list[object] = []
    names: list[object] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for word in node.keywords:
            if word.arg in ("config_path", "config_dir"):
                directories.append(constant(word.value))
            elif word.arg == "config_name":
                names.append(constant(word.value))
        if last_name(node.func) == "main":
            directories += [constant(one) for one in node.args[:1]]
            names += [constant(one) for one in node.args[1:2]]
    return _texts(directories), _texts(names)


def _texts(values: Sequence[object]) -> list[str]:
    return [value for value in values if isinstance(value, str) and "\0" not in value]


def _defaults(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields what a file's list of defaults names: the group, "" for none, and its options."""
    found = _DEFAULTS.search(f"{text}\n")
    items = [(len(item[1]), item[2]) for item in _ITEM.finditer(found[1])] if found else []
    outermost = min((indent for indent, _ in items), default=0)
    for place, (indent, item) in enumerate(items):
        if indent > outermost:
            continue
        if ":" not in item:
            yield "", _options(item)
            continue
        group, _, value = item.partition(":")
        words = group.strip(" \"'").removeprefix("optional ").removeprefix("override ").strip()
        options = _options(value)
        for deeper, one in items[place + 1 :] if not value.strip() else ():
            if deeper <= outermost:
                break
            options += _options(one)
        yield words.partition("@")[0], options


def _options(text: str) -> list[str]:
    """Returns the names in `a`, `[a, b]` or `a,b`; none in null."""
    words = [word.strip(" \t\"'") for word in text.strip().strip("[]").split(",")]
    return [
        word for word in words if word and word not in (_UNSAID, "~", "_self_") and "\0" not in word
    ]


def _option(words: Sequence[str], *names: str) -> str | None:
    """Returns the value of a command's last option of one of these names."""
    found = None
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in names:
            continue
        if equals:
            found = value
        elif place + 1 < len(words):
            found = words[place + 1]
    return None if found is None or "\0" in found else found
