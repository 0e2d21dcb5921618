"""`report --suggest-patch`: what can be changed mechanically, as a diff of the user's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_file

if TYPE_CHECKING:
    from trainprof.analysis.finding import Finding
    from trainprof.analysis.patching import Edit
    from trainprof.analysis.summary import Loader, RunSummary

LARGEST_SOURCE_BYTES: Final = 1 << 22


@dataclass(slots=True)
class _File:
    """A file of the user's, and what is to be changed in it."""

    source: str
    edits: list[Edit] = field(default_factory=list)


@dataclass(slots=True)
class _Files:
    """Those that findings want to change: each gets one diff, so that all of them apply."""

    root: Path
    began_ns: int | None
    known: dict[str, _File] = field(default_factory=dict)

    def source_of(self, path: str) -> str:
        if path not in self.known:
            self.known[path] = _File(_source(self.root / path, self.began_ns))
        return self.known[path].source

    def add(self, changes: list[tuple[str, list[Edit]]]) -> bool:
        """Takes up all of a finding's changes; False, and none, where one is another's place."""
        for path, edits in changes:
            taken = self.known[path].edits
            if any(one.clashes_with(other) for one in edits for other in taken):
                return False
        for path, edits in changes:
            self.known[path].edits += edits
        return True

    def diffs(self) -> Iterator[str]:
        from trainprof.analysis.patching import diff

        return (diff(path, one.source, one.edits) for path, one in self.known.items() if one.edits)


def patches(directory: RunDirectory, summary: RunSummary) -> str:
    """Returns a diff of each file that findings change, behind a "#" line of each finding.

    Of findings without a change of their own it says why. `git apply` and `patch -p1` pass over
    such lines. Paths are as seen from where the run began.
    """
    from trainprof.analysis.patching import NotMechanical
    from trainprof.analysis.recording import manifest_of
    from trainprof.report.safe_text import one_line

    manifest = manifest_of(directory)
    cwd = manifest.get("cwd")
    files = _Files(Path(cwd) if isinstance(cwd, str) else Path(), _began_ns(manifest))
    told: list[str] = []
    for finding in summary.findings:
        path = (finding.site or "").rpartition(":")[0]
        told.append(f"# {finding.id}: {one_line(finding.advice)}\n")
        told += [f"# mind: {one_line(caution)}\n" for caution in finding.cautions]
        if not finding.change:
            told.append("# no patch: it is no change of arguments\n")
            continue
        try:
            left_out, changes = _changes(finding, path, files.source_of, summary)
        except NotMechanical as error:
            told.append(f"# no patch: {error}\n")
        except (OSError, ValueError) as error:
            told.append(f"# no patch: {path or 'no file'} cannot be read: {error}\n")
        else:
            told += left_out
            if not files.add(changes):
                told.append("# no patch: one above changes the same call; run it again with that\n")
    return "".join([*told, *files.diffs()]) or "# nothing to change was found\n"


def _changes(
    finding: Finding, path: str, source_of: Callable[[str], str], summary: RunSummary
) -> tuple[list[str], list[tuple[str, list[Edit]]]]:
    """Returns what has to be said of a finding's change, and its edits.

    Those are of two files where the loader is built in another than the one that copies.
    """
    from trainprof.analysis.patching import NotMechanical, copy_and_loader, edits_of

    loader = _loader(finding, summary)
    of_copy, of_loader = copy_and_loader(finding.change)
    if loader is None and of_copy and of_loader:
        rest = f"# not in it: {', '.join(of_loader)}, for it is not known which loader it is\n"
        return [rest], [(path, edits_of(replace(finding, change=of_copy), source_of(path)))]
    if loader is None or not of_loader:
        return [], [(path, edits_of(finding, source_of(path)))]
    loader_path, _, line = loader.site.rpartition(":")
    known: dict[str, Any] = {"loader_class": loader.kind, "built_by": loader.built_by}
    if not line.isdigit():
        raise NotMechanical("the line that builds the loader is not known")
    if loader_path == path:
        source = source_of(path)
        return [], [(path, edits_of(finding, source, loader_line=int(line), **known))]
    at_loader = replace(finding, change=of_loader, site=loader.site)
    changes = [(loader_path, edits_of(at_loader, source_of(loader_path), **known))]
    if of_copy:
        copied = replace(finding, change=of_copy)
        changes.append((path, edits_of(copied, source_of(path))))
    return [], changes


def _loader(finding: Finding, summary: RunSummary) -> Loader | None:
    """Returns the loader that a finding is about: by its number, else by its line."""
    from trainprof.analysis.finding import LOADER_ID

    number = finding.evidence.get(LOADER_ID)
    at_site = [loader for loader in summary.loaders if loader.site == finding.site]
    by_number = (one for one in [*at_site, *summary.loaders] if one.id == number)
    return next(by_number, at_site[0] if at_site else None)


def _source(path: Path, began_ns: int | None) -> str:
    """Returns the file's text.

    Raises:
        NotMechanical: If it has changed since the run, so that its lines are others.
        OSError, ValueError: If it cannot be read.
    """
    from trainprof.analysis.patching import NotMechanical

    data = read_run_file(path, LARGEST_SOURCE_BYTES)
    if began_ns is not None and path.stat().st_mtime_ns > began_ns:
        raise NotMechanical(f"{path.name} has changed since the run")
    return data.decode()


def _began_ns(manifest: dict[str, Any]) -> int | None:
    times = manifest.get("times")
    began = times.get("spawned_time_ns") if isinstance(times, dict) else None
    return began if isinstance(began, int) else None
