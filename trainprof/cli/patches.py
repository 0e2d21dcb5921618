"""`report --suggest-patch`: what can be changed mechanically, as a diff of the user's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_file

if TYPE_CHECKING:
    from trainprof.analysis.finding import Finding
    from trainprof.analysis.summary import Loader, RunSummary

LARGEST_SOURCE_BYTES: Final = 1 << 22


def patches(directory: RunDirectory, summary: RunSummary) -> str:
    """Returns a diff for each finding that has one; of the others why not, behind a "#".

    `git apply` and `patch -p1` pass over such lines. Paths are as seen from where the run began.
    """
    from trainprof.analysis.patching import NotMechanical
    from trainprof.analysis.recording import manifest_of

    manifest = manifest_of(directory)
    cwd = manifest.get("cwd")
    root = Path(cwd) if isinstance(cwd, str) else Path()
    began_ns = _began_ns(manifest)

    def source_of(path: str) -> str:
        return _source(root / path, began_ns)

    told: list[str] = []
    for finding in summary.findings:
        path = (finding.site or "").rpartition(":")[0]
        told.append(f"# {finding.id}: {finding.advice}\n")
        if not finding.change:
            told.append("# no patch: it is no change of arguments\n")
            continue
        try:
            told.append(_patch(finding, path, source_of, summary))
        except NotMechanical as error:
            told.append(f"# no patch: {error}\n")
        except (OSError, ValueError) as error:
            told.append(f"# no patch: {path or 'no file'} cannot be read: {error}\n")
    return "".join(told) or "# nothing to change was found\n"


def _patch(
    finding: Finding, path: str, source_of: Callable[[str], str], summary: RunSummary
) -> str:
    """Returns the diff of a finding's change: of two files where it copies in another one."""
    from trainprof.analysis.patching import NotMechanical, copy_and_loader, patch

    loader = _loader(finding, summary)
    of_copy, of_loader = copy_and_loader(finding.change)
    if loader is None and of_copy and of_loader:
        rest = f"# not in it: {', '.join(of_loader)}, for it is not known which loader it is\n"
        return rest + patch(replace(finding, change=of_copy), path, source_of(path))
    if loader is None or not of_loader:
        return patch(finding, path, source_of(path))
    loader_path, _, line = loader.site.rpartition(":")
    known: dict[str, Any] = {"loader_class": loader.kind, "built_by": loader.built_by}
    if not line.isdigit():
        raise NotMechanical("the line that builds the loader is not known")
    if loader_path == path:
        return patch(finding, path, source_of(path), loader_line=int(line), **known)
    at_loader = replace(finding, change=of_loader, site=loader.site)
    built = patch(at_loader, loader_path, source_of(loader_path), **known)
    copied = replace(finding, change=of_copy)
    return built + (patch(copied, path, source_of(path)) if of_copy else "")


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
