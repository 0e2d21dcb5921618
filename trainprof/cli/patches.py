"""`report --suggest-patch`: what can be changed mechanically, as a diff of the user's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_file

if TYPE_CHECKING:
    from trainprof.analysis.finding import Finding
    from trainprof.analysis.loader_figures import Loader
    from trainprof.analysis.patching import Changes
    from trainprof.analysis.source_text import Edit, SourceText
    from trainprof.analysis.summary import RunSummary

LARGEST_SOURCE_BYTES: Final = 1 << 22
_OF_WORKERS: Final = ("num_workers", "persistent_workers", "prefetch_factor")
_TAKEN: Final = "no patch: one above changes the same call; run it again with that"


@dataclass(frozen=True, slots=True)
class Patches:
    """What is told of findings, and their changes.

    Attributes:
        remarks: Lines, without their ends.
        diffs: One for each file.
    """

    remarks: list[str]
    diffs: bytes

    def written(self) -> bytes:
        """Returns both; `git apply` and `patch -p1` pass over the lines ahead of the diffs."""
        told = "".join(
            f"# {remark}\n" for remark in self.remarks or ["nothing to change was found"]
        )
        return told.encode() + self.diffs


@dataclass(slots=True)
class _File:
    """A file of the user's, and what is to be changed in it."""

    name: str
    source: SourceText
    edits: list[Edit] = field(default_factory=list)


@dataclass(slots=True)
class _Files:
    """Those that findings want to change: each gets one diff, so that all of them apply."""

    root: Path
    began_ns: int | None
    known: dict[Path, _File] = field(default_factory=dict)
    other_workers: list[Loader] = field(default_factory=list)

    def source_of(self, path: str) -> str:
        """Returns a file's text.

        Raises:
            NotMechanical: If it cannot be read, or is not the one that ran, or no diff can name it.
        """
        return self._file(path).source.text

    def add(self, changes: Changes) -> bool:
        """Takes up all of a finding's changes; False, and none, where one is another's place."""
        for path, edits in changes.edits.items():
            taken = self._file(path).edits
            if any(one.clashes_with(other) for one in edits for other in taken):
                return False
        for path, edits in changes.edits.items():
            self._file(path).edits += edits
        return True

    def diffs(self) -> Iterator[bytes]:
        from trainprof.analysis.source_text import diff

        return (diff(one.name, one.source, one.edits) for one in self.known.values() if one.edits)

    def _file(self, path: str) -> _File:
        from trainprof.analysis.source_text import NotMechanical, SourceText

        try:
            # A diff changes no file through a link: it names the one that the link leads to.
            real, root = (self.root / path).resolve(), self.root.resolve()
            if real not in self.known:
                data = _unchanged(real, self.began_ns)
                self.known[real] = _File(_name_below(root, real), SourceText.of(data))
            return self.known[real]
        except (OSError, ValueError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise NotMechanical(f"{path or 'its file'} cannot be read: {why}") from None


def patches(directory: RunDirectory, summary: RunSummary) -> Patches:
    """Returns what findings change, with what is to be minded of each.

    Of findings without a change of their own it says why. Paths are as seen from where the run
    began.
    """
    from trainprof.analysis.finding import WITHOUT_LINE
    from trainprof.analysis.recording import manifest_of_first
    from trainprof.report.gain_words import speedup_words, whole_of
    from trainprof.report.safe_text import one_line

    manifest = manifest_of_first(directory)
    cwd = manifest.get("cwd")
    files = _Files(Path(cwd) if isinstance(cwd, str) else Path(), _began_ns(manifest))
    told: list[str] = []
    for finding in summary.findings:
        at = f" at {finding.site}" if finding.site else ""
        told.append(f"{finding.id}{at}: {finding.advice}")
        gives = speedup_words(finding, whole_of(summary))
        # Why a line stands ahead of workers the gain tells, though that is done by hand.
        if gives and (finding.change or WITHOUT_LINE in finding.evidence):
            told.append(f"gives: {gives}")
        told += [f"mind: {caution}" for caution in finding.cautions]
        told += _taken_up(finding, files, summary)
    return Patches([one_line(remark) for remark in told], b"".join(files.diffs()))


def _taken_up(finding: Finding, files: _Files, summary: RunSummary) -> list[str]:
    """Adds a finding's change to those of its files; returns what has to be said of it."""
    from trainprof.analysis.patching import changes_of
    from trainprof.analysis.source_text import NotMechanical

    if not finding.change:
        return ["no patch: to be changed by hand"]
    loader = _loader(finding, summary)
    is_of_workers = loader is not None and any(name in finding.change for name in _OF_WORKERS)
    # Each may be right by itself, and both together be refused by torch.
    if is_of_workers and any(_same_call(loader, other) for other in files.other_workers):
        return [_TAKEN]
    try:
        changes = changes_of(finding, loader, files.source_of)
        if not files.add(changes):
            return [_TAKEN]
    except NotMechanical as error:
        return [f"no patch: {error}"]
    if is_of_workers and loader is not None:
        files.other_workers.append(loader)
    told = [f"mind: {one}" for one in (*changes.minds, *_built_there(loader, summary))]
    return [*told, *_of_others(finding, files, summary)]


def _of_others(finding: Finding, files: _Files, summary: RunSummary) -> list[str]:
    """Adds what a finding changes of other loaders; returns what has to be said of that."""
    from trainprof.analysis.finding import BESIDE, LOADER_ID

    told, others = [], finding.evidence.get(BESIDE)
    for other in others if isinstance(others, list) else ():
        site, number, change = (other.get(name) for name in ("site", LOADER_ID, "change"))
        its = replace(finding, site=site, change=change, evidence={LOADER_ID: number}, cautions=[])
        told += [f"{site}: {one}" for one in _taken_up(its, files, summary)]
    return told


def _built_there(loader: Loader | None, summary: RunSummary) -> list[str]:
    """Says so where one call builds several loaders."""
    alike = [one for one in summary.loaders if _same_call(loader, one)]
    count = sum(one.taking_turns for one in alike)
    if count < 2:
        return []
    roles = ", ".join(dict.fromkeys(one.role for one in alike))
    return [f"its line builds {count} loaders ({roles}): it counts for all of them"]


def _same_call(loader: Loader | None, other: Loader) -> bool:
    return loader is not None and (loader.site, loader.call) == (other.site, other.call)


def _loader(finding: Finding, summary: RunSummary) -> Loader | None:
    """Returns the loader that a finding is about: by its number, else by its line."""
    from trainprof.analysis.finding import LOADER_ID

    number = finding.evidence.get(LOADER_ID)
    at_site = [loader for loader in summary.loaders if loader.site == finding.site]
    by_number = (one for one in [*at_site, *summary.loaders] if one.id == number)
    return next(by_number, at_site[0] if at_site else None)


def _unchanged(path: Path, began_ns: int | None) -> bytes:
    """Returns what a file holds.

    Raises:
        NotMechanical: If it has changed since the run, so that its lines are others.
        OSError, ValueError: If it cannot be read.
    """
    from trainprof.analysis.source_text import NotMechanical

    data = read_run_file(path, LARGEST_SOURCE_BYTES)
    if began_ns is not None and path.stat().st_mtime_ns > began_ns:
        raise NotMechanical(f"{path.name} has changed since the run")
    return data


def _name_below(root: Path, path: Path) -> str:
    """Returns how a diff names a file.

    Raises:
        NotMechanical: If it lies elsewhere: neither `git apply` nor `patch` would change it.
    """
    from trainprof.analysis.source_text import NotMechanical

    if not path.is_relative_to(root):
        raise NotMechanical(f"{path} is not below {root}, where the run began: change it by hand")
    return path.relative_to(root).as_posix()


def _began_ns(manifest: dict[str, Any]) -> int | None:
    times = manifest.get("times")
    began = times.get("spawned_time_ns") if isinstance(times, dict) else None
    return began if isinstance(began, int) else None
