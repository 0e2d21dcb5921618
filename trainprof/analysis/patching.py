"""Changes of arguments written into source text, where that is mechanical."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.finding import Finding
from trainprof.analysis.loader_builder import settings_of

# Arguments of a loader; `non_blocking` is one of the copying call instead.
LOADER_ARGUMENTS: Final = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")
_COPYING: Final = ("to", "cuda")
_KEPT: Final = "persistent_workers"
# What torch refuses where there are no workers, and what it takes instead.
_WITHOUT_WORKERS: Final = {
    _KEPT: False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
}


class NotMechanical(Exception):
    """The change cannot be written into the text without a decision; says why."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes [start, end) of a text are to be `new`."""

    start: int
    end: int
    new: str

    def clashes_with(self, other: Edit) -> bool:
        """Whether both change the same place."""
        return self.start == other.start or (self.start < other.end and other.start < self.end)


def edits_of(
    finding: Finding,
    source: str,
    *,
    loader_class: str = "DataLoader",
    built_by: str | None = None,
    loader_line: int | None = None,
) -> list[Edit]:
    """Returns a finding's change.

    Args:
        finding: With arguments to change at its site.
        source: Text of the file.
        loader_class: What builds the loader.
        built_by: The package that calls it, and has to be told its arguments.
        loader_line: Where the loader is built; None: at the finding's site.

    Raises:
        NotMechanical: If the change is more than setting arguments, or the call is not found.
    """
    line = _line_of(finding)
    optimizer = str(finding.evidence.get("optimizer", ""))
    builder = _Builder(loader_class, built_by)
    of_loader = line if loader_line is None else loader_line
    edits = list(_edits(source, line, finding.change, builder, optimizer, of_loader))
    ast.parse(_applied(source, edits))
    return edits


def diff(path: str, source: str, edits: Iterable[Edit]) -> str:
    """Returns edits as a unified diff.

    Args:
        path: Of the file, as the diff is to name it.
        source: Its text.
        edits: No two of which clash.
    """
    changed = _applied(source, edits)
    lines = difflib.unified_diff(
        source.splitlines(keepends=True),
        changed.splitlines(keepends=True),
        f"a/{path}",
        f"b/{path}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _line_of(finding: Finding) -> int:
    _, _, line = (finding.site or "").rpartition(":")
    if not finding.change or not line.isdigit():
        raise NotMechanical(f"{finding.id} is no matter of arguments: {finding.advice}")
    return int(line)


@dataclass(frozen=True, slots=True)
class _Builder:
    """What builds a loader: a class, in the user's own code or in a package's."""

    loader_class: str
    package: str | None

    def edits(
        self, source: str, tree: ast.AST, line: int, change: Mapping[str, Any]
    ) -> Iterator[Edit]:
        """Yields the edits that give the loader arguments.

        Raises:
            NotMechanical: If it is not known where the package is told them.
        """
        if self.package is None:
            yield from _set(source, _call(tree, line, (self.loader_class, "DataLoader")), change)
            return
        settings = settings_of(self.package)
        named = None if settings is None else settings.named(change)
        if settings is None or named is None:
            raise NotMechanical(f"{self.package} builds this loader, by settings of its own")
        calls = _calls(tree, lambda name: name.endswith(settings.call))
        yield from _set(source, _only(calls, settings.call), named)


def _edits(
    source: str,
    line: int,
    change: Mapping[str, Any],
    builder: _Builder,
    optimizer_class: str,
    loader_line: int,
) -> Iterator[Edit]:
    """Yields the edits of a change.

    Args:
        source: Of a file.
        line: Of the call that is to change; of an optimizer's step, where it is not known where
            that was built.
        change: Arguments.
        builder: Of the loader.
        optimizer_class: Whose `fused` is to change.
        loader_line: Of the call that builds the loader.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise NotMechanical(f"the file does not parse: {error.msg}") from None
    if "fused" in change:
        yield from _set(source, _built(tree, line, optimizer_class), change)
        return
    of_copy, of_loader = copy_and_loader(change)
    if of_copy:
        yield from _set(source, _call(tree, line, _COPYING), of_copy)
    if of_loader:
        yield from builder.edits(source, tree, loader_line, of_loader)


def copy_and_loader(change: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of the call that copies, and those of the loader."""
    of_loader = {name: value for name, value in change.items() if name in LOADER_ARGUMENTS}
    return {name: value for name, value in change.items() if name not in of_loader}, of_loader


def _call(tree: ast.AST, line: int, names: tuple[str, ...]) -> ast.Call:
    """Returns the call of one of `names` that a line is part of, the innermost first."""
    found = [
        node
        for node in _calls(tree, lambda name: name in names)
        if node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not found:
        raise NotMechanical(f"line {line} holds no call of {names[0]}")
    return max(found, key=lambda node: (node.lineno, node.col_offset))


def _built(tree: ast.AST, line: int, optimizer_class: str) -> ast.Call:
    """Returns the call that builds an optimizer: on a line, else the only one there is."""
    try:
        return _call(tree, line, (optimizer_class,))
    except NotMechanical:
        calls = _calls(tree, lambda name: name == optimizer_class)
        return _only(calls, optimizer_class)


def _only(calls: Sequence[ast.Call], name: str) -> ast.Call:
    """Returns the call of `name`, which is made in one place."""
    if len(calls) != 1:
        raise NotMechanical(f"{name} is made in {len(calls) or 'no'} places of this file")
    return calls[0]


def _calls(tree: ast.AST, is_wanted: Callable[[str], bool]) -> list[ast.Call]:
    """Returns the calls of what has a wanted name."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_wanted(_name(node.func))
    ]


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _set(source: str, call: ast.Call, change: Mapping[str, Any]) -> Iterator[Edit]:
    """Yields edits that give a call arguments, others' values where it has them already."""
    if any(keyword.arg is None for keyword in call.keywords):
        raise NotMechanical(f"line {call.lineno} passes arguments on by **: set them there")
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if change.get("num_workers") == 0:
        change = {**change, **{k: v for k, v in _WITHOUT_WORKERS.items() if k in given}}
    added = []
    for name, value in change.items():
        held = given.get(name)
        if held is None:
            added.append(f"{name}={_value(source, name, value, given)}")
        elif isinstance(held, ast.Constant):
            yield Edit(*_span(source, held), repr(value))
        else:
            told = ast.get_source_segment(source, held) or "an expression"
            raise NotMechanical(f"{name} is {told} on line {held.lineno}: make that {value!r}")
    if added:
        yield _insertion(source, call, added)


def _value(source: str, name: str, value: Any, given: Mapping[str | None, ast.expr]) -> str:
    """Returns an argument's text; workers can only be kept where there are any."""
    workers = given.get(name.replace(_KEPT, "num_workers"))
    if name.endswith(_KEPT) and workers and not isinstance(workers, ast.Constant):
        return f"{ast.get_source_segment(source, workers)} > 0"
    return repr(value)


def _insertion(source: str, call: ast.Call, added: list[str]) -> Edit:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments and _name(call.func) in _COPYING:
        _, end = _span(source, call)
        return Edit(end - 1, end - 1, ", ".join(added))
    if not arguments:
        raise NotMechanical(f"line {call.lineno} gives no arguments")
    last = max(arguments, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    _, end = _span(source, last)
    line = source.splitlines()[last.lineno - 1]
    stands_alone = last.lineno != call.lineno
    separator = f",\n{line[: len(line) - len(line.lstrip())]}" if stands_alone else ", "
    return Edit(end, end, "".join(f"{separator}{one}" for one in added))


def _span(source: str, node: ast.expr) -> tuple[int, int]:
    """Returns where a node's text begins and ends, in UTF-8 bytes."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
    return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column


def _applied(source: str, edits: Iterable[Edit]) -> str:
    data = source.encode()
    for edit in sorted(edits, key=lambda one: -one.start):
        data = data[: edit.start] + edit.new.encode() + data[edit.end :]
    return data.decode()
