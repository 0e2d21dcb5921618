"""What of ours failed or is missing, in sentences for the report."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

from trainprof.analysis.run.recording import Recording
from trainprof.analysis.timeline.events import ProcessLog
from trainprof.record.schema import MAX_WRITTEN_BYTES, Stop, Topic

RECORDING_STOPPED: Final = "recording stopped"
_STOPS: Final[dict[int, str]] = {
    Stop.LARGE: f"its log had {MAX_WRITTEN_BYTES >> 30} GiB, the most that is kept of a process",
    Stop.LITTLE_ROOM: "its disk was nearly full, and what was left is the script's",
}


def faults_of(recording: Recording, origin_ns: int) -> list[str]:
    """Returns one sentence each for faults of the supervisor, the files and the probes.

    Args:
        recording: The run.
        origin_ns: Start of the run.
    """
    told = recording.manifest.get("faults")
    faults = [str(fault) for fault in told] if isinstance(told, list) else []
    faults += recording.damage
    for log in recording.logs:
        faults += _of_probes(log)
    for log in recording.logs:
        if log.stopped_ns is not None:
            after_s = (log.stopped_ns - origin_ns) / 1e9
            why = _reason(log.stopped_errno or 0)
            faults.append(f"{RECORDING_STOPPED} after {after_s:.1f} s (process {log.pid}): {why}")
    return list(dict.fromkeys(faults))


def _reason(number: int) -> str:
    if number in _STOPS:
        return _STOPS[number]
    # A damaged log may hold any number.
    return "unknown reason" if number not in errno.errorcode else os.strerror(number)


def _of_probes(log: ProcessLog) -> Iterator[str]:
    for topic, say in ((Topic.PROBE_FAILED, "failed"), (Topic.PROBE_UNAVAILABLE, "is missing")):
        for told in log.texts_of(topic).values():
            if isinstance(told, dict):
                why = told.get("error") or told.get("reason")
                yield f"probe {told.get('probe')} {say}: {why}"
