"""`report --suggest-patch`: changes of keyword arguments, as a diff of the user's files."""

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

from trainprof.analysis.run.recording import manifest_of_first
from trainprof.analysis.summary.finding import LOADER_ID, OTHER_OPTIMIZERS, Finding
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.record.files import read_run_file
from trainprof.record.run_directory import RunDirectory
from trainprof.report.page.findings import speedup_words, whole_of
from trainprof.report.text.safe_text import one_line

_LARGEST_SOURCE_BYTES: Final = 1 << 22
_LINE: Final = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_NO_LINE_END: Final = b"\n\\ No newline at end of file\n"
_FOR_WORKERS: Final = {
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "multiprocessing_context",
}
_OF_WORKERS: Final = {"num_workers", *_FOR_WORKERS}
# Before `num_workers`, the first of those that findings change; of an optimizer `fused` comes last.
_LOADERS_BY_PLACE, _OPTIMIZERS_BY_PLACE = 5, 9


def patches(directory: RunDirectory, summary: RunSummary) -> tuple[list[str], bytes]:
    """Returns lines about each finding, and all changes as one diff."""
    manifest = manifest_of_first(directory)
    cwd, times = manifest.get("cwd"), manifest.get("times")
    began = times.get("spawned_time_ns") if isinstance(times, dict) else None
    root = Path(cwd) if isinstance(cwd, str) else Path()
    suggested = _Suggested(root, began if isinstance(began, int) else None, summary)
    remarks: list[str] = []
    for finding in summary.findings:
        at = f" at {finding.site}" if finding.site else ""
        remarks.append(f"{finding.id}{at}: {finding.advice}")
        gain = speedup_words(finding, whole_of(summary))
        if gain and finding.change:
            remarks.append(f"Expected: {gain}")
        remarks += [f"Note: {caution}" for caution in finding.cautions]
        remarks += suggested.add(finding)
    return [one_line(remark) for remark in remarks], suggested.diffs()


class _Suggested:
    """The changes of all findings, one diff a file, so that all of them apply."""

    def __init__(self, root: Path, began_ns: int | None, summary: RunSummary) -> None:
        self._root, self._began_ns, self._loaders = root, began_ns, summary.loaders
        self._files: dict[str, _UsersFile] = {}

    def add(self, finding: Finding) -> Iterator[str]:
        """Adds a finding's changes; yields what the user must do by hand."""
        evidence = finding.evidence
        if "fused" in finding.change:
            others, first = evidence.get(OTHER_OPTIMIZERS), evidence.get("optimizer", "")
            others = map(str, others if isinstance(others, list) else ())
            for optimizer in dict.fromkeys([f"{first} {finding.site}", *others]):
                try:
                    self._fuse(*optimizer.partition(" ")[::2])
                except _ByHand as error:
                    yield f"Edit by hand: {optimizer.replace(' ', ' at ', 1)}: {error}"
            return
        site, change = finding.site, finding.change
        try:
            if not change:
                raise _ByHand("the change is not a keyword argument of one call")
            yield from self._of_loader(site, self._loader(site, evidence.get(LOADER_ID)), change)
        except _ByHand as error:
            yield f"Edit by hand: {error}"

    def diffs(self) -> bytes:
        return b"".join(file.diff() for file in self._files.values() if file.wanted)

    def _fuse(self, optimizer: str, site: str) -> None:
        file, line = self._place(site)
        file.give(_only(file, line, (optimizer,)), {"fused": True}, _OPTIMIZERS_BY_PLACE)

    def _of_loader(
        self, site: str | None, loader: Loader | None, change: Mapping[str, Any]
    ) -> Iterator[str]:
        """Changes a line's copies and the call that builds a loader, or neither."""
        calls: list[tuple[_UsersFile, ast.Call, Mapping[str, Any], int]] = []
        if "non_blocking" in change:
            file, line = self._place(site)
            copies = file.calls_at(line, ("to", "cuda"))
            arguments = {str([ast.dump(x) for x in (*c.args, *c.keywords)]) for c in copies}
            if len(arguments) != 1:
                raise _ByHand(f"line {line} has several copies to a device")
            calls += [(file, copy, {"non_blocking": True}, 1) for copy in copies]
        rest = {name: value for name, value in change.items() if name != "non_blocking"}
        if rest:
            calls.append((*self._constructor(loader), rest, _LOADERS_BY_PLACE))
        before = [(file, dict(file.wanted)) for file, *_ in calls]
        try:
            for file, call, given, by_place in calls:
                file.give(call, given, by_place)
        except _ByHand:
            for file, wanted in before:
                file.wanted = wanted
            raise
        if rest and loader is not None:
            built = (loader.site, loader.call)
            alike = [other for other in self._loaders if (other.site, other.call) == built]
            if (count := len(alike)) > 1:
                roles = ", ".join(dict.fromkeys(other.role for other in alike))
                yield f"Note: its line builds {count} loaders ({roles}): the change is for all."

    def _constructor(self, loader: Loader | None) -> tuple[_UsersFile, ast.Call]:
        if loader is None:
            raise _ByHand("the loader was not recorded")
        kind, call = loader.kind.rpartition(".")[2], loader.call
        if loader.built_by is not None:
            raise _ByHand(f"{loader.built_by} builds this loader from its settings")
        if (kind != "DataLoader" and call is None) or (call is not None and call.constructors):
            raise _ByHand(f"{kind} has its own constructor")
        file, line = self._place(loader.site)
        return file, _only(file, line, (kind, "DataLoader"), None if call is None else call.ends_at)

    def _place(self, site: str | None) -> tuple[_UsersFile, int]:
        path, _, line = (site or "").rpartition(":")
        if not line.isdigit():
            raise _ByHand("the line to change was not recorded")
        file = _UsersFile.read(self._root, path, self._began_ns)
        return self._files.setdefault(file.name, file), int(line)

    def _loader(self, site: str | None, number: Any) -> Loader | None:
        at_site = [loader for loader in self._loaders if loader.site == site]
        return next((x for x in [*at_site, *self._loaders] if number in (None, x.id)), None)


def _only(
    file: _UsersFile, line: int, names: tuple[str, ...], ends_at: list[int] | None = None
) -> ast.Call:
    calls = file.calls_at(line, names)
    calls = [x for x in calls if [x.end_lineno, x.end_col_offset] == ends_at] or calls
    if len(calls) != 1:
        raise _ByHand(f"line {line} has {len(calls) or 'no'} calls of {names[0]}, not exactly one")
    return calls[0]


class _ByHand(Exception):
    """Why the user has to make a change, in words."""


@dataclass(slots=True)
class _UsersFile:
    """A file, its tree, and the keyword arguments that its calls should have."""

    name: str
    data: bytes
    tree: ast.Module
    wanted: dict[ast.Call, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, path: str, began_ns: int | None) -> _UsersFile:
        """Reads a file below `root` as it was when the run began, else raises _ByHand."""
        try:
            # A diff names the file that a link leads to: git does not follow links.
            real, root = (root / path).resolve(), root.resolve()
            data = read_run_file(real, _LARGEST_SOURCE_BYTES)
            if began_ns is not None and real.stat().st_mtime_ns > began_ns:
                raise _ByHand(f"{real.name} was edited after the run began")
        except (OSError, ValueError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise _ByHand(f"{path or 'its file'} cannot be read: {why}") from None
        if not real.is_relative_to(root):
            raise _ByHand(f"{real} is not below {root}, where the run began")
        name = real.relative_to(root).as_posix()
        if not name.isprintable() or '"' in name or "\\" in name:
            raise _ByHand("its name has characters that not every diff tool can read")
        return cls(name, data, _parsed(data))

    def calls_at(self, line: int, names: Collection[str]) -> list[ast.Call]:
        """Returns the calls of these names that a line contains or is part of."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        here = (call for call in calls if call.lineno <= line <= (call.end_lineno or call.lineno))
        return [x for x in here if ast.unparse(x.func).rpartition(".")[2] in names]

    def give(self, call: ast.Call, change: Mapping[str, Any], by_place: int) -> None:
        """Adds keyword arguments to a call; _ByHand if the user has to decide something.

        `by_place`: up to this number of positional arguments, none of them is a changed one.
        """
        given, known = (
            {keyword.arg: keyword.value for keyword in call.keywords},
            self.wanted.get(call, {}),
        )
        # torch may refuse both changes together.
        if known.keys() & change.keys() or all(_OF_WORKERS & x.keys() for x in (known, change)):
            raise _ByHand("a change above is for the same call: apply it and profile again")
        if None in given or any(isinstance(arg, ast.Starred) for arg in call.args):
            raise _ByHand(f"line {call.lineno} passes arguments by * or **")
        if len(call.args) > by_place:
            raise _ByHand(f"line {call.lineno} may pass it by position")
        for name in change.keys() & given.keys():
            if not isinstance(given[name], ast.Constant):
                raise _ByHand(f"it has {name}={ast.unparse(given[name])} already")
        workers = change.get("num_workers", getattr(given.get("num_workers"), "value", 0))
        if change.get("num_workers") == 0 and _FOR_WORKERS & given.keys():
            raise _ByHand("without workers torch refuses other arguments of this call")
        if any(map(change.get, _FOR_WORKERS)) and not (isinstance(workers, int) and workers > 0):
            raise _ByHand("its num_workers is not a plain number")
        written = {name: getattr(given.get(name), "value", ...) for name in change}
        changed = known | {name: x for name, x in change.items() if written[name] != x}
        if changed == known:
            raise _ByHand("the call has this value already: the run got another one from elsewhere")
        self._edited({**self.wanted, call: changed})
        self.wanted[call] = changed

    def diff(self) -> bytes:
        """Returns the changes as a unified diff for `git apply` and `patch -p1`."""
        tab = b"\t" if " " in self.name else b""  # else a blank ends the name
        before, after = (os.fsencode(f"{side}/{self.name}") + tab for side in "ab")
        old, new = (io.BytesIO(x).readlines() for x in (self.data, self._edited(self.wanted)))
        lines = difflib.diff_bytes(difflib.unified_diff, old, new, before, after)
        return b"".join(line if line.endswith(b"\n") else line + _NO_LINE_END for line in lines)

    def _edited(self, wanted: Mapping[ast.Call, Mapping[str, Any]]) -> bytes:
        """Returns the changed file; _ByHand if anything else in it would change its meaning."""
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
        except (RecursionError, _ByHand):
            is_as_wanted = False
        if not is_as_wanted:
            raise _ByHand("the call is written in a way that trainprof cannot edit")
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
    """Returns the tree of a text in UTF-8, else raises _ByHand."""
    try:
        if tokenize.detect_encoding(io.BytesIO(data).readline)[0] != "utf-8":
            raise _ByHand("its encoding is not UTF-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a text that is not ours
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _ByHand(f"it does not parse: {getattr(error, 'msg', None) or error}") from None
