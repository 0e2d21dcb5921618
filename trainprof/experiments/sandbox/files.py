"""What a trial wrote into its sandbox, and how a refusal of the sandbox's looks to a script."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from trainprof.analysis.diagnosis.wording import size
from trainprof.experiments.trial import Measured, Prepared

# Imports and a model are there sooner, and settings and first lines of logs are smaller.
_LEAST_STARTUP_S: Final = 10.0
_LEAST_PREPARED_BYTES: Final = 1 << 20
# The kernel copies a file of this size within a step.
_LARGE_COPY_BYTES: Final = 64 << 20
_MOST_NAMED: Final = 3
# What a script's own error says, and why the sandbox is behind it.
_REFUSALS: Final = (
    (
        r"Errno 18\]|os error 18\)|[Cc]ross-device link",
        "In the sandbox a directory that was there before cannot be renamed (EXDEV). shutil.move "
        "copies it instead",
    ),
    (
        r"Errno 75\]|os error 75\)|Value too large for defined data type",
        "In the sandbox a file of another user or group cannot be changed (EOVERFLOW)",
    ),
    (
        r"Errno 30\]|os error 30\)|Read-only file system",
        "In the sandbox this place is read-only (EROFS)",
    ),
    (
        r"Errno 28\]|os error 28\)|No space left on device",
        "What a trial writes is kept until it ends: here it takes more than there is (ENOSPC)",
    ),
)


def prepared_files(
    scratch: Path, overlays: Sequence[str], cwd: Path, *, until_ns: int
) -> Prepared | None:
    """Returns the files that a trial made ahead of its first batch; None without any.

    Args:
        scratch: Of the trial that has ended.
        overlays: As the sandbox has them.
        cwd: Where its script ran.
        until_ns: Files that were written to later do not count, in ns since the epoch.
    """
    files = 0
    bytes_in: Counter[str] = Counter()
    for path, status in _written(scratch, overlays):
        # Unpacked files may keep an old time of their content.
        if status.st_ctime_ns <= until_ns and not os.path.lexists(path):
            files += 1
            bytes_in[_shown(os.path.dirname(path), cwd)] += status.st_size
    if not files:
        return None
    return Prepared(files, bytes_in.total(), bytes_in.most_common(1)[0][0])


def large_copies(scratch: Path, overlays: Sequence[str]) -> dict[str, int]:
    """Returns the bytes of large files that were copied as the trial opened them for writing."""
    return {
        path: status.st_size
        for path, status in _written(scratch, overlays)
        if status.st_size >= _LARGE_COPY_BYTES and os.path.lexists(path)
    }


def _written(scratch: Path, overlays: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the regular files that a trial wrote: the path that it wrote to, and their status."""
    for number, overlay in enumerate(overlays):
        root = str(scratch / str(number) / "upper")
        for within, _, names in os.walk(root):
            place = os.path.join(overlay, within[len(root) + 1 :])
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(within, name))
                    if stat.S_ISREG(status.st_mode):
                        yield os.path.join(place, name), status


def notes_of_files(runs: Sequence[Measured], base: Measured) -> list[str]:
    """Returns what is to be said of files that trials write before training, or copy.

    Args:
        runs: All so far.
        base: The first baseline.
    """
    notes = []
    prepared = base.prepared
    if (
        prepared is not None
        and prepared.total_bytes >= _LEAST_PREPARED_BYTES
        and base.startup_s >= _LEAST_STARTUP_S
    ):
        notes.append(
            f"Each trial spends {base.startup_s:,.0f} s before its first batch and writes "
            f"{prepared.files:,} files again ({size(prepared.total_bytes)}, most in "
            f"{prepared.place}), because what a trial writes is discarded. If your script looks "
            "for them first, run it once without tune, then tune it again"
        )
    copied = {path: count for run in runs for path, count in run.copied.items()}
    if copied:
        names = sorted(copied, key=lambda path: -copied[path])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        named = ", ".join(map(os.path.basename, names[:_MOST_NAMED])) + more
        notes.append(
            f"Your script opens {named} for writing: each trial copies "
            f"{size(sum(copied.values()))} first, and then reads it from memory. "
            'numpy.memmap(..., mode="r") avoids that'
        )
    return notes


def refusal_in(errors: str) -> str | None:
    """Returns why the sandbox refused what a script failed at, None where it did not.

    Args:
        errors: The end of what the script wrote to stderr.
    """
    return next((why for pattern, why in _REFUSALS if re.search(pattern, errors)), None)


def _shown(place: str, cwd: Path) -> str:
    """Returns the directory of the working directory's that a place lies in, or the place."""
    within = os.path.relpath(place, cwd)
    if within == os.curdir:
        return "the working directory"
    first = within.partition(os.sep)[0]
    return place if first == os.pardir else f"{first}{os.sep}"
