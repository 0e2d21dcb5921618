"""Keeps a second `tune` out of the directory in which one is at work: it would remove its trial."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import ClassVar, Final

from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import RunDirectory

_FILE: Final = "tune.lock"


class AlreadyTuning(TrainprofError):
    slug: ClassVar[str] = "already-tuning"
    exit_code: ClassVar[int] = 2


@contextlib.contextmanager
def alone_in(directory: RunDirectory) -> Iterator[None]:
    """Holds a `tune` run's directory; a process that is killed holds it no longer.

    Where the file system knows no locks nothing is held.

    Raises:
        AlreadyTuning: If another process holds it.
    """
    descriptor = os.open(directory.path / _FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyTuning(
                f"another `trainprof tune` is at work in {directory.path}",
                hint="wait for it, or end it with Ctrl-C",
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
