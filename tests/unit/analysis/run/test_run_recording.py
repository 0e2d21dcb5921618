"""What of a run directory can be read, and what is told of the rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from trainprof.analysis.run.recording import read_recording
from trainprof.record.event_log import EventLog
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind


def killed_as_it_makes_its_log(log: EventLog, *, has_allocated: bool) -> None:
    """Forks a process that begins a log of its own, and is killed before anything is written."""
    allocate = os.posix_fallocate

    def is_killed(*where: int) -> None:
        if has_allocated:
            allocate(*where)
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        os.posix_fallocate = is_killed
        log.reopen_in_child()
        log.emit(Kind.FORWARD, 1, 2)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="logs are written, not allocated")
@pytest.mark.parametrize("has_allocated", [False, True])
@pytest.mark.parametrize("script_recorded", [False, True])
def test_a_process_that_is_killed_as_it_makes_its_log(
    tmp_path: Path, has_allocated: bool, script_recorded: bool
) -> None:
    directory = RunDirectory(tmp_path)
    directory.events.mkdir()
    directory.manifest.write_text('{"schema_version": 1}')
    log = EventLog(str(directory.events), role="script")
    if script_recorded:
        log.emit(Kind.FORWARD, 1, 2)
    killed_as_it_makes_its_log(log, has_allocated=has_allocated)
    [empty] = [path for path in directory.events.iterdir() if not path.read_bytes().rstrip(b"\0")]
    recording = read_recording(directory)
    assert len(recording.logs) == script_recorded
    # It had recorded nothing; that nothing at all is there needs a reason.
    assert recording.damage == ([] if script_recorded else [f"{empty.name} is empty"])
