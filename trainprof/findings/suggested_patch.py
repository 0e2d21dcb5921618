"""Keyword arguments of the user's calls, set where a finding wants them, as a diff of the files."""

from __future__ import annotations

import ast
import copy
import difflib
import io
import os
import re
import tokenize
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from trainprof.record.files import read_run_file

LARGEST_SOURCE_BYTES: Final = 1 << 22
_LINE: Final = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_NO_LINE_END: Final = b"\n\\ No newline at end of file\n"
_FOR_WORKERS: Final = {
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "multiprocessing_context",
}
_OF_WORKERS: Final = {"num_workers", *_FOR_WORKERS}


class ByHand(Exception):
    """Why a change is none of keyword arguments of one call, in words."""


@dataclass(slots=True)
class UsersFile:
    """A file, its tree, and the keyword arguments that its calls are to have."""

    name: str
    data: bytes
    tree: ast.Module
    wanted: dict[ast.Call, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, path: str, began_ns: int | None) -> UsersFile:
        """Reads a file below `root` as it was when the run began, else raises ByHand."""
        try:
            # A diff changes no file through a link: it names the one that the link leads to.
            real, root = (root / path).resolve(), root.resolve()
            data = read_run_file(real, LARGEST_SOURCE_BYTES)
            if began_ns is not None and real.stat().st_mtime_ns > began_ns:
                raise ByHand(f"{real.name} has changed since the run")
        except (OSError, ValueError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ByHand(f"{path or 'its file'} cannot be read: {why}") from None
        if not real.is_relative_to(root):
            raise ByHand(f"{real} is not below {root}, where the run began")
        name = real.relative_to(root).as_posix()
        if not name.isprintable() or '"' in name or "\\" in name:
            raise ByHand("its name has signs that not every diff can hold")
        return cls(name, data, _parsed(data))

    def calls_at(self, line: int, names: Collection[str]) -> list[ast.Call]:
        """Returns the calls of these names that stand on a line, or go over it."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        here = (call for call in calls if call.lineno <= line <= (call.end_lineno or call.lineno))
        return [x for x in here if ast.unparse(x.func).rpartition(".")[2] in names]

    def give(self, call: ast.Call, change: Mapping[str, Any], by_place: int) -> None:
        """Takes note of what a call is to be given; ByHand if that takes a decision.

        So many as `by_place` of its arguments may stand by position: none of these is among them.
        """
        given, known = (
            {keyword.arg: keyword.value for keyword in call.keywords},
            self.wanted.get(call, {}),
        )
        # Each may be right by itself, and both together be refused by torch.
        if known.keys() & change.keys() or all(_OF_WORKERS & x.keys() for x in (known, change)):
            raise ByHand("one above changes the same call; run it again with that")
        if None in given or any(isinstance(arg, ast.Starred) for arg in call.args):
            raise ByHand(f"line {call.lineno} passes arguments on with * or **")
        if len(call.args) > by_place:
            raise ByHand(f"line {call.lineno} may give it by position")
        for name in change.keys() & given.keys():
            if not isinstance(given[name], ast.Constant):
                raise ByHand(f"{name}={ast.unparse(given[name])} stands there")
        workers = change.get("num_workers", getattr(given.get("num_workers"), "value", 0))
        if change.get("num_workers") == 0 and _FOR_WORKERS & given.keys():
            raise ByHand("without workers torch refuses other arguments that stand there")
        if any(map(change.get, _FOR_WORKERS)) and not (isinstance(workers, int) and workers > 0):
            raise ByHand("how many workers there are does not stand there")
        written = {name: getattr(given.get(name), "value", ...) for name in change}
        changed = known | {name: x for name, x in change.items() if written[name] != x}
        if changed == known:
            raise ByHand("it is written so already: what the run was given came from elsewhere")
        self._edited({**self.wanted, call: changed})
        self.wanted[call] = changed

    def diff(self) -> bytes:
        """Returns what is wanted as a unified diff, which `git apply` and `patch -p1` take."""
        tab = b"\t" if " " in self.name else b""  # else a blank ends the name
        before, after = (os.fsencode(f"{side}/{self.name}") + tab for side in "ab")
        old, new = (io.BytesIO(x).readlines() for x in (self.data, self._edited(self.wanted)))
        lines = difflib.diff_bytes(difflib.unified_diff, old, new, before, after)
        return b"".join(line if line.endswith(b"\n") else line + _NO_LINE_END for line in lines)

    def _edited(self, wanted: Mapping[ast.Call, Mapping[str, Any]]) -> bytes:
        """Returns the file with arguments; ByHand if Python would read more than these anew."""
        edits, data = (self._edits(*x) for x in wanted.items()), self.data
        for start, end, new in sorted(chain.from_iterable(edits), reverse=True):
            data = data[:start] + new.encode() + data[end:]
        try:
            tree, calls = copy.deepcopy((self.tree, wanted))
            for call, given in calls.items():
                values = {name: ast.Constant(value) for name, value in given.items()}
                for keyword in call.keywords:
                    keyword.value = values.pop(str(keyword.arg), keyword.value)
                call.keywords += [ast.keyword(name, value) for name, value in values.items()]
            is_as_wanted = ast.dump(_parsed(data)) == ast.dump(tree)
        except (RecursionError, ByHand):
            is_as_wanted = False
        if not is_as_wanted:
            raise ByHand("the call is written in a way that is not understood")
        return data

    def _edits(self, call: ast.Call, given: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
        written = {keyword.arg: keyword.value for keyword in call.keywords}
        for name, value in given.items():
            if name in written:
                yield *self._span(written[name]), repr(value)
        new = ", ".join(f"{name}={x!r}" for name, x in given.items() if name not in written)
        ends = [self._span(arg)[1] for arg in (*call.args, *written.values())]
        end = max(ends, default=self._span(call)[1] - 1)
        yield end, end, f", {new}" if ends and new else new

    def _span(self, node: ast.expr) -> tuple[int, int]:
        starts = [0, *(line.end() for line in _LINE.finditer(self.data))]
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column


def _parsed(data: bytes) -> ast.Module:
    """Returns the tree of a text in UTF-8, else raises ByHand."""
    try:
        if tokenize.detect_encoding(io.BytesIO(data).readline)[0] != "utf-8":
            raise ByHand("its encoding is not plain UTF-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a text that is not ours
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ByHand(f"it does not parse: {getattr(error, 'msg', None) or error}") from None
