"""Which paths a trial has changed, as all its processes know it: the index only ever grows."""

from __future__ import annotations

import mmap
import posix
from typing import Final

FIRST_RECORD: Final = mmap.PAGESIZE
RECORD_END: Final = b"\0"

TOUCHED: Final = "+"
REMOVED: Final = "-"
FREE: Final = "f"
CONTAINED: Final = "c"
# Says nothing but that names may mean something else than before.
CHANGED: Final = "~"


class SharedIndex:
    """A file of records that any process appends to; its first word is the size that it has.

    The size is mapped, so that asking for news costs no system call.

    Attributes:
        touched: Directories in which something was made or removed.
        removed: Real paths that are gone; so is all that lies below them.
        roots: Of zones: True for those left alone, False for those contained.
    """

    def __init__(self, path: str) -> None:
        """
        Raises:
            OSError: If there is none, and none can be made.
        """
        self._path = path
        self.touched: set[str] = set()
        self.removed: set[str] = set()
        self.roots: dict[str, bool] = {}
        self.is_new = self._create()
        descriptor = posix.open(path, posix.O_RDWR | posix.O_CLOEXEC)
        try:
            # Never unmapped: Python keeps a descriptor for it that the script may have closed.
            self._size = memoryview(mmap.mmap(descriptor, FIRST_RECORD)).cast("Q")
        finally:
            posix.close(descriptor)
        self._read = FIRST_RECORD
        self._seen = -1
        self.has_news()

    def _create(self) -> bool:
        """Makes the file, whole at once; False where another process has made it."""
        own = f"{self._path}.{posix.getpid()}"
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
        descriptor = posix.open(own, flags, 0o600)
        try:
            posix.write(descriptor, bytes(FIRST_RECORD))
        finally:
            posix.close(descriptor)
        try:
            posix.link(own, self._path)
        except FileExistsError:
            return False
        finally:
            posix.unlink(own)
        return True

    def has_news(self) -> bool:
        """Takes over what was added since it was last asked; True if anything was."""
        size = self._size[0]
        if size == self._seen:
            return False
        self._load()
        self._seen = size
        return True

    def touch(self, directory: str) -> None:
        if directory not in self.touched:
            self._append(TOUCHED, directory)

    def remove(self, path: str) -> None:
        if path not in self.removed:
            self._append(REMOVED, path)

    def changed(self) -> None:
        """To be called once a name means something else: a directory or a link came or went."""
        self._append(CHANGED, "")

    def add_root(self, path: str, *, is_free: bool) -> None:
        self._append(FREE if is_free else CONTAINED, path)

    def _append(self, tag: str, path: str) -> None:
        record = tag.encode() + path.encode("utf-8", "surrogateescape") + RECORD_END
        flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC
        # Opened each time, as a descriptor kept may be the script's by now.
        descriptor = posix.open(self._path, flags)
        try:
            posix.write(descriptor, record)
            # Another process may have added to it, and its size may be overwritten by ours.
            while (size := posix.fstat(descriptor).st_size) != self._size[0]:
                self._size[0] = size
        finally:
            posix.close(descriptor)
        self._seen = -1
        self._load()

    def _load(self) -> None:
        descriptor = posix.open(self._path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            new, start = b"", self._read
            while part := posix.pread(descriptor, 1 << 20, start + len(new)):
                new += part
        finally:
            posix.close(descriptor)
        whole = new[: new.rfind(RECORD_END) + 1]
        # Threads may load at the same time, and then take the same records over twice.
        self._read = start + len(whole)
        for record in whole.split(RECORD_END)[:-1]:
            tag, path = chr(record[0]), record[1:].decode("utf-8", "surrogateescape")
            if tag == TOUCHED:
                self.touched.add(path)
            elif tag == REMOVED:
                self.removed.add(path)
            elif tag in (FREE, CONTAINED):
                self.roots[path] = tag == FREE
