"""The last stack sample of each process of a run, kept however the process ends.

A sample is one JSON object in one of two slots of a small file in `events/`. The slots are written
in turn: a process killed while it writes one leaves the other. An object holds
`pid`, `ppid`, `at_ns`, `ended_ns` (or null), `rank` and `worker` (or null), and `threads`, the main
thread first: `is_main`, `since_ns` (how long the thread has stood there), `user`, the innermost
frame of the user's code, `called`, the frame that it called, and `innermost`. A frame is
`[file, line, function]`, or null. Times are `time.perf_counter_ns`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from trainprof.record.files import read_run_file
from trainprof.record.names import UNKNOWN_SITE, site_name

STACKS_SUFFIX: Final = ".stacks"
SLOT_BYTES: Final = 4096
SLOTS: Final = 2
# Some machines have pages of 64 KiB.
_MAX_FILE_BYTES: Final = 1 << 17


def stack_paths(events: Path) -> list[Path]:
    """Returns the files of a run's last stack samples, oldest name first."""
    try:
        if events.is_symlink():
            return []
        return sorted(path for path in events.iterdir() if path.suffix == STACKS_SUFFIX)
    except OSError:
        return []


def read_last_stacks(events: Path) -> list[dict[str, Any]]:
    """Returns the last sample of each process, without unreadable ones."""
    samples = (_newest(path) for path in stack_paths(events))
    return [sample for sample in samples if sample is not None]


def main_place(sample: dict[str, Any], cwd: str | None) -> str | None:
    """Returns the main thread's line in the user's code, such as `train.py:41`."""
    threads = sample.get("threads")
    for thread in threads if isinstance(threads, list) else []:
        if isinstance(thread, dict) and thread.get("is_main"):
            name = site_name(thread.get("user"), cwd)
            return None if name == UNKNOWN_SITE else name
    return None


def _newest(path: Path) -> dict[str, Any] | None:
    try:
        content = read_run_file(path, _MAX_FILE_BYTES)
    except (OSError, ValueError):
        return None
    slots = (content[at : at + SLOT_BYTES] for at in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES))
    samples = [sample for sample in map(_sample, slots) if sample is not None]
    return max(samples, key=lambda sample: int(sample["at_ns"]), default=None)


def _sample(slot: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(slot.rstrip(b"\0 "))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or type(value.get("at_ns")) is not int:
        return None
    return value
