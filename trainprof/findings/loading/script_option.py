"""The option of the script's command line that sets a loader's argument: `--workers 2`."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.summary.finding import Finding
from trainprof.record.files import contents_of

_LARGEST_BYTES: Final = 1 << 21
_NONE: Final = ast.Constant(None)
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
        cwd, entry = Path(str(manifest.get("cwd") or ".")), str(manifest.get("entry") or "")
        names = (entry, f"{entry.replace('.', '/')}.py")  # the latter of `python -m`
        script = next((cwd / name for name in names if os.path.isfile(cwd / name)), None)
        times = manifest.get("times")
        started_ns = integer(times.get("spawned_time_ns")) if isinstance(times, dict) else None
        return ScriptFiles(cwd, script, started_ns or 0)

    def nodes(self, path: Path | None) -> list[ast.AST]:
        """Returns the syntax tree of a file as a list; [] where it cannot be read."""
        try:
            if path is None or path.stat().st_mtime_ns > self.started_ns:
                return []
            return list(ast.walk(ast.parse(contents_of(path, _LARGEST_BYTES) or b"")))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return []


def with_flag(finding: Finding, files: ScriptFiles) -> Finding:
    """Returns a finding with the option that sets what it changes, where that is certain."""
    wanted = {name: x for name, x in finding.change.items() if type(x) is int}
    file, _, line = (finding.site or "").rpartition(":")
    if not wanted or not file or not line.isdigit():
        return finding
    here, flags = (files.cwd / file).resolve(), []
    nodes = at_site = files.nodes(here)
    if files.script is not None and files.script.resolve() != here:
        nodes = [*at_site, *files.nodes(files.script)]
    calls = [
        node
        for node in at_site
        if isinstance(node, ast.Call) and node.lineno <= int(line) <= (node.end_lineno or 0)
    ]
    for name, value in wanted.items():
        given = {_held_by(x.value) for call in calls for x in call.keywords if x.arg == name}
        holder = given.pop() if len(given) == 1 else None
        option = None if holder is None else _option(nodes, *holder)
        flags += [] if option is None else [f"{option} {value}"]
    return replace(finding, flag=" ".join(flags))


def _held_by(value: ast.expr) -> tuple[str, str] | None:
    """Returns ("args", "workers") of `args.workers` or `args["workers"]`, None of all else."""
    match value:
        case ast.Attribute(value=ast.Name(id=holder), attr=name):
            return holder, name
        case ast.Subscript(value=ast.Name(id=holder), slice=ast.Constant(value=str(name))):
            return holder, name
    return None


def _option(nodes: Sequence[ast.AST], holder: str, attribute: str) -> str | None:
    """Returns the one option of argparse that sets an attribute which nothing else sets.

    None where the name that holds it may hold anything else than parsed arguments.
    """
    if _origins(ast.Name(holder), nodes, set()) != {True}:
        return None
    options = []
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            if (_held_by(node) or ("", ""))[1] == attribute:
                return None
        elif isinstance(node, ast.Call) and _may_change(node, holder):
            return None
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            strings = [str(x.value) for x in node.args if isinstance(x, ast.Constant)]
            given = {x.arg: x.value for x in node.keywords}
            if _destination(strings, given) == attribute:
                options.append((strings, given))
    if len(options) != 1:
        return None
    strings, given = options[0]
    is_int = getattr(given.get("type"), "id", "") == "int"
    return _long(strings) if is_int and _OTHER_VALUES.isdisjoint(given) else None


def _origins(value: ast.expr, nodes: Sequence[ast.AST], seen: set[str]) -> set[bool]:
    """Returns True for each parse_args() that a value may come from, False for all else."""
    name = ""  # whose values count once: code may be recursive
    match value:
        case ast.Name(id=name):
            values = [] if name in seen else _values(name, nodes)
        case ast.Call(func=ast.Name(id="vars"), args=[inner]):
            values = [inner]
        case ast.Subscript(value=ast.Call() as inner, slice=ast.Constant(value=0)):
            values = [inner]
        case ast.Call(func=ast.Attribute(attr="parse_args" | "parse_known_args")):
            return {True}
        case ast.Call(func=ast.Name(id=name)):
            functions = [x for x in nodes if isinstance(x, ast.FunctionDef) and x.name == name]
            name, inner_nodes = f"{name}()", [x for f in functions for x in ast.walk(f)]
            returns = [x.value or _NONE for x in inner_nodes if isinstance(x, ast.Return)]
            values = [] if name in seen else returns if len(functions) == 1 else [_NONE]
        case _:
            return {False}
    seen.add(name)
    return {x for inner in values for x in _origins(inner, nodes, seen)}


def _values(name: str, nodes: Sequence[ast.AST]) -> list[ast.expr]:
    """Returns the values that a name has; for each that is not plain, None as a constant."""
    values: list[ast.expr] = []
    stored = 0
    for node in nodes:
        match node:
            case ast.Name(id=x, ctx=ast.Store()) if x == name:
                stored += 1
            case ast.alias(name=x, asname=y) if name == (y or x):
                stored += 1
            case (
                ast.Assign(targets=[ast.Name(id=x)], value=value)
                | ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=x), *_])], value=value)
                | ast.AnnAssign(target=ast.Name(id=x), value=ast.expr() as value)
            ) if x == name:
                values.append(value)
    return values + [_NONE] * (stored - len(values))


def _may_change(call: ast.Call, holder: str) -> bool:
    """Returns whether a call may set attributes: `setattr(args, ...)`, `vars(args).update(...)`."""
    match call:
        case ast.Call(func=ast.Name(id="setattr"), args=[changed, *_]):
            pass
        case ast.Call(func=ast.Attribute(attr="update", value=changed)):
            pass
        case _:
            return False
    return any(isinstance(x, ast.Name) and x.id == holder for x in ast.walk(changed))


def _destination(strings: list[str], given: Mapping[str | None, ast.expr]) -> Any:
    """Returns the attribute that an option sets, by argparse's rules; None of a positional."""
    if not strings or not strings[0].startswith("-"):
        return None
    if "dest" in given:
        return getattr(given["dest"], "value", None)
    return _long(strings).lstrip("-").replace("-", "_")


def _long(strings: list[str]) -> str:
    return next((x for x in strings if x.startswith("--")), strings[0])
