"""`report --suggest-patch`: what can be changed mechanically, as a diff of the user's files."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainprof.analysis.run.recording import manifest_of_first
from trainprof.analysis.summary.finding import (
    LOADER_ID,
    OTHER_OPTIMIZERS,
    Finding,
)
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.suggested_patch import ByHand, UsersFile
from trainprof.record.run_directory import RunDirectory
from trainprof.report.text.gain_words import speedup_words, whole_of
from trainprof.report.text.safe_text import one_line

# Before `num_workers`, the first of those that findings change; of an optimizer `fused` comes last.
_LOADERS_BY_PLACE, _OPTIMIZERS_BY_PLACE = 5, 9


def patches(directory: RunDirectory, summary: RunSummary) -> tuple[list[str], bytes]:
    """Returns what is to be told of each finding, in lines, and what they change as a diff."""
    manifest = manifest_of_first(directory)
    cwd, times = manifest.get("cwd"), manifest.get("times")
    began = times.get("spawned_time_ns") if isinstance(times, dict) else None
    root = Path(cwd) if isinstance(cwd, str) else Path()
    suggested = _Suggested(root, began if isinstance(began, int) else None, summary)
    remarks: list[str] = []
    for finding in summary.findings:
        at = f" at {finding.site}" if finding.site else ""
        remarks.append(f"{finding.id}{at}: {finding.advice}")
        gives = speedup_words(finding, whole_of(summary))
        if gives and finding.change:
            remarks.append(f"gives: {gives}")
        remarks += [f"mind: {caution}" for caution in finding.cautions]
        remarks += suggested.add(finding)
    return [one_line(remark) for remark in remarks], suggested.diffs()


class _Suggested:
    """What findings change: each file gets one diff, so that all of them apply."""

    def __init__(self, root: Path, began_ns: int | None, summary: RunSummary) -> None:
        self._root, self._began_ns, self._loaders = root, began_ns, summary.loaders
        self._files: dict[str, UsersFile] = {}

    def add(self, finding: Finding) -> Iterator[str]:
        """Takes up a finding's changes; yields what has to be said of them."""
        evidence = finding.evidence
        if "fused" in finding.change:
            of_others, of_first = evidence.get(OTHER_OPTIMIZERS), evidence.get("optimizer", "")
            others = map(str, of_others if isinstance(of_others, list) else ())
            for optimizer in dict.fromkeys([f"{of_first} {finding.site}", *others]):
                try:
                    self._fuse(*optimizer.partition(" ")[::2])
                except ByHand as error:
                    yield f"edit by hand: {optimizer.replace(' ', ' at ', 1)}: {error}"
            return
        site, change = finding.site, finding.change
        try:
            if not change:
                raise ByHand("it is more than arguments of a call")
            yield from self._of_loader(site, self._loader(site, evidence.get(LOADER_ID)), change)
        except ByHand as error:
            yield f"edit by hand: {error}"

    def diffs(self) -> bytes:
        return b"".join(file.diff() for file in self._files.values() if file.wanted)

    def _fuse(self, optimizer: str, site: str) -> None:
        file, line = self._place(site)
        file.give(_only(file, line, (optimizer,)), {"fused": True}, _OPTIMIZERS_BY_PLACE)

    def _of_loader(
        self, site: str | None, loader: Loader | None, change: Mapping[str, Any]
    ) -> Iterator[str]:
        """Changes a line's copies, and the call that builds a loader: all of it, or none."""
        calls: list[tuple[UsersFile, ast.Call, Mapping[str, Any], int]] = []
        if "non_blocking" in change:
            file, line = self._place(site)
            copies = file.calls_at(line, ("to", "cuda"))
            arguments = {str([ast.dump(x) for x in (*c.args, *c.keywords)]) for c in copies}
            if len(arguments) != 1:
                raise ByHand(f"which copy of line {line} it is, is not known")
            calls += [(file, copy, {"non_blocking": True}, 1) for copy in copies]
        rest = {name: value for name, value in change.items() if name != "non_blocking"}
        if rest:
            calls.append((*self._constructor(loader), rest, _LOADERS_BY_PLACE))
        before = [(file, dict(file.wanted)) for file, *_ in calls]
        try:
            for file, call, given, by_place in calls:
                file.give(call, given, by_place)
        except ByHand:
            for file, wanted in before:
                file.wanted = wanted
            raise
        if rest and loader is not None:
            built = (loader.site, loader.call)
            alike = [other for other in self._loaders if (other.site, other.call) == built]
            if (count := len(alike)) > 1:
                roles = ", ".join(dict.fromkeys(other.role for other in alike))
                yield f"mind: its line builds {count} loaders ({roles}): it counts for all of them"

    def _constructor(self, loader: Loader | None) -> tuple[UsersFile, ast.Call]:
        if loader is None:
            raise ByHand("which loader it is, is not known")
        kind, call = loader.kind.rpartition(".")[2], loader.call
        if loader.built_by is not None:
            raise ByHand(f"{loader.built_by} builds this loader, by settings of its own")
        if (kind != "DataLoader" and call is None) or (call is not None and call.constructors):
            raise ByHand(f"{kind} has a constructor of its own")
        file, line = self._place(loader.site)
        return file, _only(file, line, (kind, "DataLoader"), None if call is None else call.ends_at)

    def _place(self, site: str | None) -> tuple[UsersFile, int]:
        path, _, line = (site or "").rpartition(":")
        if not line.isdigit():
            raise ByHand("the line that is to change is not known")
        file = UsersFile.read(self._root, path, self._began_ns)
        return self._files.setdefault(file.name, file), int(line)

    def _loader(self, site: str | None, number: Any) -> Loader | None:
        at_site = [loader for loader in self._loaders if loader.site == site]
        return next((x for x in [*at_site, *self._loaders] if number in (None, x.id)), None)


def _only(
    file: UsersFile, line: int, names: tuple[str, ...], ends_at: list[int] | None = None
) -> ast.Call:
    calls = file.calls_at(line, names)
    calls = [x for x in calls if [x.end_lineno, x.end_col_offset] == ends_at] or calls
    if len(calls) != 1:
        raise ByHand(f"line {line} holds {len(calls) or 'no'} calls of {names[0]} by its name")
    return calls[0]
