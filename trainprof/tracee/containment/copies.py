"""Copies of files, made as cheaply as the file system can."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posix
from typing import Final

COPIED_AT_ONCE: Final = 1 << 26
# As of linux/fs.h: lets a file have another's blocks, until one of them is written to.
SHARE_BLOCKS: Final = 0x40049409
# Copying from one file system to another has no call for it.
CANNOT_COPY: Final = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM)


def take_over(status: os.stat_result, path: str, mode: int | None) -> None:
    """Gives a copy the original's owner (as far as one may), times, and `mode`, if it has one."""
    with contextlib.suppress(OSError):
        posix.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)
    if mode is not None:
        posix.chmod(path, mode)
    times = (status.st_atime_ns, status.st_mtime_ns)
    posix.utime(path, ns=times, follow_symlinks=False)


def copy(source: str, target: str, *, emptied: bool = False) -> int:
    """Returns how many bytes it took to make a copy."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
    out = posix.open(target, flags, 0o600)
    try:
        if emptied:
            return 0
        into = posix.open(source, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            return 0 if shares_blocks(into, out) else _copy_content(into, out)
        finally:
            posix.close(into)
    finally:
        posix.close(out)


def shares_blocks(source: int, target: int) -> bool:
    """Makes one file of another's blocks, where the file system can: that copies nothing."""
    try:
        fcntl.ioctl(target, SHARE_BLOCKS, source)
    except OSError:
        return False
    return True


def _copy_content(source: int, target: int) -> int:
    """Copies by the kernel where it can, and returns how many bytes."""
    copied = 0
    try:
        while part := posix.copy_file_range(source, target, COPIED_AT_ONCE):
            copied += part
    except OSError as error:
        if error.errno not in CANNOT_COPY:
            raise
    while content := posix.read(source, 1 << 20):
        copied += len(content)
        while content:
            content = content[posix.write(target, content) :]
    return copied


def can_share_blocks(source: str, target: str) -> bool:
    """Whether a file that is made, and removed again, can have those of another."""
    out = posix.open(target, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC)
    try:
        into = posix.open(source, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            return shares_blocks(into, out)
        finally:
            posix.close(into)
    finally:
        posix.close(out)
        posix.unlink(target)
