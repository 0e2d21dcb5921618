"""Chunks of an event log: allocated and mapped for writing, with limits on their size."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from typing import Final

from trainprof.record.schema import CHUNK_BYTES, MAX_WRITTEN_BYTES, Stop

_PAGE_BYTES: Final = mmap.ALLOCATIONGRANULARITY
# A worker of a short epoch writes 7 to 9 KiB, and a run may start thousands of workers.
FIRST_CHUNK_BYTES: Final = max(16 << 10, _PAGE_BYTES)
# Room for a process's last records when its log had reached its limit.
END_BYTES: Final = 1 << 20
# Disk space left free, so that a recording never makes the script's next checkpoint fail. A
# smaller share on a small file system; logs below SMALL_LOG_BYTES are not checked.
LEFT_FREE_BYTES: Final = 1 << 30
LEFT_FREE_SHARE: Final = 0.05
SMALL_LOG_BYTES: Final = 16 << 20
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)


class Chunk:
    """One mapped part of the log file, and the descriptor that Python's mmap keeps open."""

    def __init__(self, path: str, offset: int, size: int) -> None:
        """Maps `size` bytes at `offset` (both multiples of a page); offset 0 creates the file."""
        self.offset, self.size = offset, size
        flags = os.O_RDWR | os.O_CLOEXEC | _NO_LINK
        if offset == 0:
            flags |= os.O_CREAT | os.O_EXCL
        descriptor = os.open(path, flags, 0o600)
        try:
            allocate(descriptor, offset, size)
            self._kept = -1
            if sys.version_info >= (3, 13):
                self.buffer = mmap.mmap(descriptor, size, offset=offset, trackfd=False)
                return
            # mmap will duplicate the descriptor to the lowest free number: this one.
            self._kept = os.dup(descriptor)
            os.close(self._kept)
            self.buffer = mmap.mmap(descriptor, size, offset=offset)
            status = os.fstat(descriptor)
            self._file = (status.st_dev, status.st_ino)
        finally:
            os.close(descriptor)

    def may_be_released(self) -> bool:
        """Returns False if the script closed our descriptor: unmapping would close its file."""
        if self._kept < 0:
            return True
        try:
            status = os.fstat(self._kept)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def is_cut(self, path: str, used: int) -> bool:
        """Truncates the log's last chunk to its first `used` bytes; returns whether it could."""
        kept = -(-used // _PAGE_BYTES) * _PAGE_BYTES
        if kept >= self.size:
            return False
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | _NO_LINK)
            try:
                if os.fstat(descriptor).st_size != self.offset + self.size:
                    return False
                os.ftruncate(descriptor, self.offset + kept)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        self.size = kept
        return True


def next_chunk_bytes(written: int, *, is_script: bool) -> int:
    """Returns the size of the chunk after `written` bytes, which doubles a child's log.

    The script's process gets large chunks at once: it trains, and growing a log takes time.
    """
    return CHUNK_BYTES if is_script else min(max(written, FIRST_CHUNK_BYTES), CHUNK_BYTES)


def check_room(directory: str, written: int) -> None:
    """Raises OSError with a `Stop` if a log of `written` bytes may not grow further."""
    if written >= MAX_WRITTEN_BYTES:
        raise OSError(Stop.LARGE, "the log reached its size limit")
    if written < SMALL_LOG_BYTES:
        return
    status = os.statvfs(directory)
    # Some FUSE file systems report 0 for all of these.
    wanted = min(LEFT_FREE_BYTES, LEFT_FREE_SHARE * status.f_blocks * status.f_frsize)
    if status.f_bavail * status.f_frsize < wanted:
        raise OSError(Stop.LITTLE_ROOM, "the rest of the disk is left to the script")


def allocate(descriptor: int, offset: int, size: int) -> None:
    """Allocates disk space or raises OSError: writing to a mapping without it is SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, offset, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
        else:
            return
    written = 0
    while written < size:
        written += os.pwrite(descriptor, bytes(size - written), offset + written)
