"""What a trial's script wrote before its first batch and found nowhere: each trial does so anew.

A trial's writes are kept from the user's files and removed with it, so that a data set that the
script prepares in its own folder is never there when the next one begins. Libraries that open files
past Python do not find it even in the same trial.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Final

from trainprof.analysis.diagnosis.wording import size
from trainprof.experiments.last_words import end_of_errors
from trainprof.experiments.trial import Measured, Prepared
from trainprof.record.names import SCRATCH_FILES

# Imports and a model are there sooner, and settings and first lines of logs are smaller.
_LEAST_STARTUP_S: Final = 10.0
_LEAST_BYTES: Final = 1 << 20
_QUOTED: Final = re.compile(r"""['"]([^'"\n]+)['"]""")


def prepared_files(scratch: Path, cwd: Path, *, until_ns: int) -> Prepared | None:
    """Returns the files that a trial wrote and that are not among the user's; None without any.

    Args:
        scratch: Of the trial that has ended.
        cwd: Where its script ran.
        until_ns: Files that were written to later do not count, in ns since the epoch.
    """
    root = scratch / SCRATCH_FILES
    files = 0
    bytes_in: Counter[str] = Counter()
    for within, _, names in os.walk(root):
        place = within.removeprefix(str(root)) or os.sep
        is_new = not os.path.isdir(place)
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(within, name))
                # Unpacked files may keep an old time of their content.
                is_early = stat.S_ISREG(found.st_mode) and found.st_ctime_ns <= until_ns
                if is_early and (is_new or not os.path.lexists(os.path.join(place, name))):
                    files += 1
                    bytes_in[_shown(place, cwd)] += found.st_size
    if not files:
        return None
    return Prepared(files, bytes_in.total(), bytes_in.most_common(1)[0][0])


def notes_of_preparing(base: Measured) -> list[str]:
    """Returns what is to be said where that takes long.

    Args:
        base: The script as it is.
    """
    told = base.prepared
    if told is None or told.total_bytes < _LEAST_BYTES or base.startup_s < _LEAST_STARTUP_S:
        return []
    is_one = told.files == 1
    files, are = ("a file", "is") if is_one else (f"{told.files:,} files", "are")
    return [
        f"{base.startup_s:,.0f} s pass before the script's first batch, and meanwhile it writes "
        f"{files} ({size(told.total_bytes)}, most in {told.place}) that {are} not there: each "
        "trial does so anew, as what it writes is not kept. If the script looks for them first, "
        "run it once without tune, and then tune it again"
    ]


def hint_of_missing_file(console: Path, scratch: Path, cwd: Path) -> str | None:
    """Returns what to do where a script misses a file that it has written itself.

    Args:
        console: What it wrote.
        scratch: Of the trial that has ended.
        cwd: Where it ran.
    """
    for path in reversed(_QUOTED.findall(end_of_errors(console))):
        real = os.path.normpath(os.path.join(cwd, path))
        is_kept = os.path.isfile(f"{scratch / SCRATCH_FILES}{real}")
        if is_kept and not os.path.lexists(real):
            return (
                "it had written that file in this trial, where libraries that open files past "
                "Python do not find it: run the script once without tune first"
            )
    return None


def _shown(place: str, cwd: Path) -> str:
    """Returns the directory of the working directory's that a place lies in, or the place."""
    within = os.path.relpath(place, cwd)
    if within == os.curdir:
        return "the working directory"
    first = within.partition(os.sep)[0]
    return place if first == os.pardir else f"{first}{os.sep}"
