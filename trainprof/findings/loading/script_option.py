"""The option of the script's command line that sets a loader's argument: `--workers 2`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.summary.finding import Finding
from trainprof.record.files import contents_of

_LARGEST_BYTES: Final = 1 << 21
# Whatever a name is bound to that holds parsed arguments: parse_args(), get_options(), vars(args).
_PARSES: Final = re.compile(r"pars|arg|opt|vars", re.IGNORECASE)

_OWN: Final = ("self", "cls")
# With these an option may take another value than the number, or none; None: **more.
_OTHER_VALUES: Final = frozenset({"action", "nargs", "choices", None})


@dataclass(frozen=True, slots=True)
class ScriptFiles:
    """The user's files as the run had them; those changed since are not read.

    Attributes:
        script: The file that was run, None where that is not a file.
    """

    cwd: Path
    script: Path | None
    started_ns: int

    @staticmethod
    def of(manifest: Mapping[str, Any]) -> ScriptFiles:
        entry, times = manifest.get("entry"), manifest.get("times")
        started_ns = times.get("spawned_time_ns") if isinstance(times, dict) else None
        cwd, started_ns = Path(str(manifest.get("cwd") or ".")), integer(started_ns) or 0
        if not isinstance(entry, str):
            return ScriptFiles(cwd, None, started_ns)
        names = (entry, f"{entry.replace('.', '/')}.py")  # the latter of `python -m`
        script = next((cwd / name for name in names if (cwd / name).is_file()), None)
        return ScriptFiles(cwd, script, started_ns)

    def tree(self, path: Path) -> ast.AST | None:
        try:
            is_unchanged = path.stat().st_mtime_ns <= self.started_ns
            text = contents_of(path, _LARGEST_BYTES) if is_unchanged else None
            return None if text is None else ast.parse(text)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None


def with_flag(finding: Finding, files: ScriptFiles) -> Finding:
    """Returns a finding with the option that sets what it changes, where that is certain."""
    wanted = {name: x for name, x in finding.change.items() if type(x) is int}
    file, _, line = (finding.site or "").rpartition(":")
    if not wanted or not file or not line.isdigit():
        return finding
    paths = {path.resolve() for path in (files.cwd / file, files.script) if path is not None}
    trees = {path: files.tree(path) for path in paths}
    known = [tree for tree in trees.values() if tree is not None]
    flags = []
    for name, value in wanted.items():
        given = _arguments(trees[(files.cwd / file).resolve()], int(line), name)
        holders = {_held_by(x) for x in given}
        holder = holders.pop() if len(holders) == 1 else None
        option = None if holder is None else _option(known, *holder)
        flags += [] if option is None else [f"{option} {value}"]
    return replace(finding, flag=" ".join(flags))


def _arguments(tree: ast.AST | None, line: int, name: str) -> Iterator[ast.expr]:
    """Yields what the calls at a line are given as one argument."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            yield from (keyword.value for keyword in node.keywords if keyword.arg == name)


def _held_by(value: ast.expr) -> tuple[str, str] | None:
    """Returns ("args", "workers") of `args.workers` or `args["workers"]`, None of all else."""
    match value:
        case ast.Attribute(value=ast.Name(id=holder), attr=name):
            return holder, name
        case ast.Subscript(value=ast.Name(id=holder), slice=ast.Constant(value=str(name))):
            return holder, name
    return None


def _option(trees: list[ast.AST], holder: str, attribute: str) -> str | None:
    """Returns the one option of argparse that sets an attribute which nothing else sets."""
    options, nodes = [], [node for tree in trees for node in ast.walk(tree)]
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            into, name = _held_by(node) or ("", "")
            if name == attribute and into not in _OWN:
                return None
        if isinstance(node, ast.Assign) and _binds(node, holder) and not _is_parsed(node.value):
            return None
        if isinstance(node, ast.Call) and _name(node.func) == "add_argument":
            options += [node] if _destination(node) == attribute else []
    if len(options) != 1:
        return None
    given = {x.arg: x.value for x in options[0].keywords}
    if _name(given.get("type")) != "int" or not _OTHER_VALUES.isdisjoint(given):
        return None
    strings = _strings(options[0])
    return next((x for x in strings if x.startswith("--")), strings[0])


def _binds(node: ast.Assign, name: str) -> bool:
    return any(isinstance(x, ast.Name) and x.id == name for y in node.targets for x in ast.walk(y))


def _is_parsed(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _PARSES.search(_name(value.func)) is not None


def _destination(call: ast.Call) -> str | None:
    """Returns the attribute that an option sets, by argparse's rules; None of a positional."""
    strings = _strings(call)
    if not strings or not strings[0].startswith("-"):
        return None
    named = next((x.value for x in call.keywords if x.arg == "dest"), None)
    if named is not None:
        return named.value if isinstance(named, ast.Constant) else None  # type: ignore[return-value]
    first = next((x for x in strings if x.startswith("--")), strings[0])
    return first.lstrip("-").replace("-", "_")


def _strings(call: ast.Call) -> list[str]:
    return [str(x.value) for x in call.args if isinstance(x, ast.Constant)]


def _name(function: ast.expr | None) -> str:
    """Returns "parse_args" of `parser.parse_args`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
