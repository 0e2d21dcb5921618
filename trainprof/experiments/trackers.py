"""Trackers that a library logs to because a script names them, or because they are installed.

Hugging Face's Trainer takes them as `report_to`, accelerate as `log_with`; of the Trainer's
arguments that say nothing, transformers before 5 makes all that are installed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from typing import Final

from trainprof.experiments.syntax import constant, last_name

SENDS: Final = "sends what it logs to a service or a directory of its own, in every trial again"
MAY_SEND: Final = f"may be what {{argument}} names: it {SENDS}"
UNASKED: Final = f'is used wherever it is installed, unless report_to="none" is said: it {SENDS}'

TRACKERS: Final = frozenset(
    ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "dvclive", "aim", "swanlab", "trackio")
)
# The arguments, and trackers that what takes them does not know.
_UNKNOWN_TO: Final = {"report_to": frozenset({"aim"}), "log_with": frozenset({"neptune"})}
REPORT_TO: Final = "report_to"
_ALL: Final = "all"
# Of transformers: from then on its Trainer logs to none that is not named.
_FIRST_THAT_ASKS: Final = 5
_PARSERS: Final = frozenset({"HfArgumentParser", "TrlParser"})
_OF_TRL: Final = frozenset(
    f"{method}Config"
    for method in ("SFT", "DPO", "GRPO", "KTO", "ORPO", "CPO", "RLOO", "Reward", "OnlineDPO")
)
# Environment variables that keep a tracker out where nobody named it, with what they then hold.
_SWITCHES: Final = {
    "wandb": (("WANDB_DISABLED", ("1", "ON", "YES", "TRUE")), ("WANDB_MODE", ("DISABLED",))),
    "mlflow": (("DISABLE_MLFLOW_INTEGRATION", ("TRUE",)),),
    "comet_ml": (("COMET_MODE", ("DISABLED",)),),
}
# Those, and others that say whether a tracker sends what it logs, and where to.
SWITCHES: Final = frozenset(
    (
        *(variable for switches in _SWITCHES.values() for variable, _ in switches),
        *("MLFLOW_TRACKING_URI", "NEPTUNE_MODE", "CLEARML_OFFLINE_MODE", "SWANLAB_MODE"),
    )
)


def logged_to(
    tree: ast.Module, words: Sequence[str], *, are_set: bool = False
) -> Iterator[tuple[str, int, str]]:
    """Yields trackers that a module's text leads to: the name, the line, what it does.

    Args:
        tree: Of the module.
        words: The command, which may name trackers for the Trainer's own parser.
        are_set: A file of settings names them, or that there are none.
    """
    yield from _Reports(tree, words, are_set=are_set).found()


def installed(argument: str) -> list[str]:
    """Returns the trackers that "all" stands for; none of them is imported."""
    return [name for name in sorted(TRACKERS - _UNKNOWN_TO[argument]) if _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        found = util.find_spec(name)
    except (ImportError, ValueError):
        return False
    # A directory of that name, as trackers leave one where they log to, has no origin.
    return found is not None and found.origin is not None


def _reports_unasked() -> bool:
    """Whether the installed transformers log to all trackers where nothing is said."""
    try:
        major = metadata.version("transformers").partition(".")[0]
    except metadata.PackageNotFoundError:
        return False
    return major.isdecimal() and int(major) < _FIRST_THAT_ASKS


class _Reports:
    def __init__(self, tree: ast.Module, words: Sequence[str], *, are_set: bool) -> None:
        self._nodes = list(ast.walk(tree))
        self._words = words
        self._are_set = are_set
        self._names = {
            one.asname: one.name
            for node in self._nodes
            if isinstance(node, ast.ImportFrom)
            for one in node.names
            if one.asname
        }
        self._has_trl = any(_is_import_of("trl", node) for node in self._nodes)
        self._set_in_script = dict(_variables_set(self._nodes))
        self._is_told_by_name = any(_mentions(node, REPORT_TO) for node in self._nodes)
        self._is_told_by_keyword = any(
            isinstance(node, ast.keyword) and node.arg == REPORT_TO for node in self._nodes
        )

    def found(self) -> Iterator[tuple[str, int, str]]:
        for node in self._nodes:
            for argument, value, line in _given(node):
                for name, does in self._named_by(argument, value):
                    yield name, line, does
            if isinstance(node, ast.Call):
                for name, does in self._of_trainer(node):
                    yield name, node.lineno, does

    def _named_by(self, argument: str, value: ast.expr) -> Iterator[tuple[str, str]]:
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            for one in value.elts:
                yield from self._named_by(argument, one)
        elif isinstance(value, ast.IfExp):
            yield from self._named_by(argument, value.body)
            yield from self._named_by(argument, value.orelse)
        elif isinstance(value, ast.Attribute) and last_name(value.value) == "LoggerType":
            yield from told(argument, value.attr.lower())
        elif not isinstance(value, ast.Constant):
            for name in installed(argument):
                yield name, MAY_SEND.format(argument=argument)
        elif value.value is None and argument == REPORT_TO:
            yield from self._unasked()
        else:
            yield from told(argument, value.value)

    def _of_trainer(self, call: ast.Call) -> Iterator[tuple[str, str]]:
        """Yields what the Trainer's arguments lead to where the text does not name it."""
        is_parser = self._name(call.func) in _PARSERS
        if is_parser:
            classes = [one for word in call.args for one in _elements(word)]
            if not any(map(self._is_arguments, classes)):
                return
            asked = _words_behind(f"--{REPORT_TO}", self._words)
            if asked is not None:
                for word in asked:
                    yield from told(REPORT_TO, word)
                return
        elif not self._is_arguments(call.func) or any(x.arg == REPORT_TO for x in call.keywords):
            return
        is_open = is_parser or any(word.arg is None for word in call.keywords)
        if is_open and self._are_set:
            return
        if self._is_told_by_name or (is_open and self._is_told_by_keyword):
            return
        yield from self._unasked()

    def _is_arguments(self, node: ast.expr) -> bool:
        name = self._name(node)
        return name.endswith("TrainingArguments") or (self._has_trl and name in _OF_TRL)

    def _name(self, node: ast.expr) -> str:
        name = last_name(node) or ""
        return self._names.get(name, name)

    def _unasked(self) -> Iterator[tuple[str, str]]:
        if not _reports_unasked():
            return
        for name in installed(REPORT_TO):
            if not any(self._holds(*switch) for switch in _SWITCHES.get(name, ())):
                yield name, UNASKED

    def _holds(self, variable: str, values: Sequence[str]) -> bool:
        held = self._set_in_script.get(variable, os.environ.get(variable, ""))
        return held.upper() in values


def told(argument: str, value: object) -> Iterator[tuple[str, str]]:
    """Yields the trackers that a value of `report_to` or `log_with` names, and what they do."""
    if value == _ALL:
        yield from ((name, SENDS) for name in installed(argument))
    elif value in TRACKERS:
        yield str(value), SENDS


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr, int]]:
    """Yields the arguments that name trackers, their values and lines: of calls and of mappings."""
    if isinstance(node, ast.Call):
        for word in node.keywords:
            if word.arg in _UNKNOWN_TO:
                yield word.arg, word.value, node.lineno
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            name = constant(key) if key is not None else None
            if isinstance(name, str) and name in _UNKNOWN_TO:
                yield name, value, value.lineno
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            name = constant(target.slice) if isinstance(target, ast.Subscript) else None
            if isinstance(name, str) and name in _UNKNOWN_TO:
                yield name, node.value, node.lineno


def _mentions(node: ast.AST, name: str) -> bool:
    """Whether something else than a call's keyword has that name: it may be set there."""
    if isinstance(node, ast.Attribute):
        return node.attr == name
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.arg):
        return node.arg == name
    return isinstance(node, ast.Constant) and node.value in (name, f"--{name}")


def _variables_set(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields what a script sets in its environment to a text of its own."""
    for node in nodes:
        key: ast.expr | None = None
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key, value = node.targets[0].slice, node.value
        elif (
            isinstance(node, ast.Call)
            and last_name(node.func) == "setdefault"
            and len(node.args) == 2
        ):
            key, value = node.args
        if key is not None:
            name, held = constant(key), constant(value)
            if isinstance(name, str) and isinstance(held, str):
                yield name, held


def _is_import_of(package: str, node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(one.name.partition(".")[0] == package for one in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == package and not node.level
    return False


def _elements(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, (ast.List, ast.Tuple)) else [node]


def _words_behind(option: str, words: Sequence[str]) -> list[str] | None:
    """Returns the values of a command's last option of that name, None where it has none."""
    found: list[str] | None = None
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != option:
            continue
        found = [value] if equals else []
        for behind in () if equals else words[place + 1 :]:
            if behind.startswith("-"):
                break
            found.append(behind)
    return found
