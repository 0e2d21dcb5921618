"""The option of the script's command line that sets a loader's argument: `--workers 2`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.summary.finding import Finding
from trainprof.record.files import contents_of

_LARGEST_BYTES: Final = 1 << 21
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
        cwd, entry = Path(str(manifest.get("cwd") or ".")), str(manifest.get("entry") or "")
        names = (entry, f"{entry.replace('.', '/')}.py")  # the latter of `python -m`
        script = next((cwd / name for name in names if (cwd / name).is_file()), None)
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
        option = None if holder is None else _option(nodes, holder[1])
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


def _option(nodes: Sequence[ast.AST], attribute: str) -> str | None:
    """Returns the one option of argparse that sets an attribute which nothing else sets."""
    options = []
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            into, name = _held_by(node) or ("", "")
            if name == attribute and into not in _OWN:
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


def _destination(strings: list[str], given: Mapping[str | None, ast.expr]) -> Any:
    """Returns the attribute that an option sets, by argparse's rules; None of a positional."""
    if not strings or not strings[0].startswith("-"):
        return None
    if "dest" in given:
        return getattr(given["dest"], "value", None)
    return _long(strings).lstrip("-").replace("-", "_")


def _long(strings: list[str]) -> str:
    return next((x for x in strings if x.startswith("--")), strings[0])
