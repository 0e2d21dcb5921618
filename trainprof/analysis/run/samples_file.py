"""Reading a samples file, whatever state it is in."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from trainprof.analysis.run.metadata import MAX_NUMBER
from trainprof.analysis.statistics.time_weighted import Line
from trainprof.record.files import open_run_file

# A file above this is thinned while it is read: every n-th line, and always the last. As objects
# the sampler's lines take about five times their size, the worst that a file can hold about twenty.
MAX_READ_BYTES: Final = 32 << 20
# No line that the sampler writes comes near; a damaged file may be one line, ...
MAX_LINE_BYTES: Final = 1 << 20
# ... or a hole of any size: behind so many bytes without a line's end nothing more is looked for.
MAX_HOLE_BYTES: Final = 64 << 20


def read_samples(path: Path, max_bytes: int = MAX_READ_BYTES) -> list[Line]:
    """Returns a samples file's lines in time order, whatever state the file is in.

    Lines that are cut off, damaged, no JSON object or without a time are left out; NaN and
    infinity become None. No file is no lines, and so is what is no plain file of the run.

    Args:
        path: A file of `samples/`.
        max_bytes: A larger file is thinned evenly to about this size.
    """
    try:
        with os.fdopen(open_run_file(path), "rb") as file:
            stride = max(1, math.ceil(os.fstat(file.fileno()).st_size / max_bytes))
            parsed = [_parse(line) for line in _every(file, stride)]
    except OSError:
        return []
    lines = [line for line in parsed if line is not None]
    lines.sort(key=lambda line: line["t_ns"])
    return lines


def _every(file: BinaryIO, stride: int) -> Iterator[bytes]:
    """Yields every `stride`-th whole line and the last one; a line cut off at the end is none."""
    skipped: bytes | None = None
    is_middle = False
    count = hole_bytes = 0
    while hole_bytes < MAX_HOLE_BYTES and (part := file.readline(MAX_LINE_BYTES)):
        is_whole = part.endswith(b"\n")
        if is_whole and not is_middle:
            if count % stride == 0:
                yield part
                skipped = None
            else:
                skipped = part
            count += 1
        is_middle = not is_whole
        hole_bytes = 0 if is_whole else hole_bytes + len(part)
    if skipped is not None:
        yield skipped


def _parse(text: bytes) -> Line | None:
    try:
        line = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    t_ns = line.get("t_ns")
    is_time = isinstance(t_ns, int) and not isinstance(t_ns, bool) and 0 <= t_ns < MAX_NUMBER
    return line if is_time else None
