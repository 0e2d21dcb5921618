"""`trainprof clean`: removes old and failed runs from trainprof-runs."""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from typing import Annotated, ClassVar, Final

import typer

from trainprof.cli import options
from trainprof.cli.list_runs import rows_of
from trainprof.cli.output import complain, is_terminal, write
from trainprof.cli.saved_runs import RUNS, SavedRun, saved_runs
from trainprof.launch.placement import LATEST, point_latest
from trainprof.record.errors import TrainprofError

_OLD_DAYS: Final = 30
_DAY_S: Final = 86_400


class NotConfirmed(TrainprofError):
    slug: ClassVar[str] = "not-confirmed"


choosing = partial(typer.Option, rich_help_panel="Which runs")
_AGE: Final = "Remove runs that started longer ago than this, such as 7d."
_KEEP: Final = "Keep the N newest runs; without other options remove all others."
_DRY_RUN: Final = "Show what would be removed, and remove nothing."
OlderThan = Annotated[
    float | None,
    choosing(parser=options.seconds_between(0), metavar="DURATION", help=_AGE),
]
Keep = Annotated[int | None, choosing(parser=options.at_least(0), metavar="N", help=_KEEP)]


def clean(
    failed: Annotated[bool, choosing("--failed", help="Remove runs that failed.")] = False,
    older_than: OlderThan = None,
    keep: Keep = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Remove without asking.")] = False,
    debug: options.Debug = False,
) -> int:
    """Remove saved runs: by default failed ones and those older than 30 days.

    Only runs under trainprof-runs are removed, and none that is still running.
    """
    from trainprof.report.text.units import byte_count, counted

    runs = saved_runs()
    if not (failed or older_than is not None or keep is not None):
        failed, older_than = True, float(_OLD_DAYS * _DAY_S)
    removable = _chosen(runs, failed=failed, older_than_s=older_than, keep=keep)
    if not removable:
        write(sys.stdout, f"Nothing to remove: {counted(len(runs), 'run')} in {RUNS}.\n")
        return 0
    write(sys.stdout, rows_of(removable))
    if dry_run:
        write(sys.stdout, "Nothing was removed: --dry-run.\n")
        return 0
    if not yes and not _is_confirmed(counted(len(removable), "run")):
        write(sys.stdout, "Nothing was removed.\n")
        return 0
    freed = [_removed_bytes(run) for run in removable]
    _mend_latest()
    sizes = [size for size in freed if size is not None]
    words = f"Removed {counted(len(sizes), 'run')}, freed {byte_count(sum(sizes))}; "
    write(sys.stdout, f"{words}{counted(len(runs) - len(sizes), 'run')} left.\n")
    return 0 if len(sizes) == len(freed) else 2


def _chosen(
    runs: list[SavedRun], *, failed: bool, older_than_s: float | None, keep: int | None
) -> list[SavedRun]:
    oldest_kept_ns = -1 if older_than_s is None else time.time_ns() - int(older_than_s * 1e9)
    takes_all = not failed and older_than_s is None
    return [
        run
        for run in runs[: max(len(runs) - (keep or 0), 0)]
        if (takes_all or (failed and run.has_failed) or run.started_ns < oldest_kept_ns)
        and run.manifest
        and not run.is_running
    ]


def _is_confirmed(what: str) -> bool:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise NotConfirmed(
            f"{what} would be removed: confirm with --yes",
            hint="--dry-run shows them and removes nothing",
        )
    write(sys.stdout, f"Remove {what}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _removed_bytes(run: SavedRun) -> int | None:
    """Removes a run and returns its size, or None where that failed."""
    from trainprof.tune.sandbox.sandbox import remove_tree

    size, path = run.size_bytes(), run.directory.path
    remove_tree(path)
    if path.exists():
        complain(f"{path} cannot be removed", hint="check its permissions")
        return None
    return size


def _mend_latest() -> None:
    """Points the `latest` link to the newest run that is left."""
    link = RUNS / LATEST
    if link.is_symlink() and not link.exists():
        with contextlib.suppress(OSError):
            runs = saved_runs()
            if runs:
                point_latest(runs[-1].directory.path)
            else:
                link.unlink()
