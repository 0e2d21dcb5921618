"""The functions of `os` and `io` as a contained script finds them."""

from __future__ import annotations

import _io
import errno
import importlib
import io
import os
import posix
import sys
from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, cast

from trainprof.tracee.containment.changes import Changes
from trainprof.tracee.containment.guard import path_text, reads, replaces
from trainprof.tracee.containment.listing import entries_in, names_in
from trainprof.tracee.containment.tree import Directory, MergedTree, Node, NotAPath

MODE_OF_NEW_FILE: Final = 0o666
WRITING_LETTERS: Final = frozenset("wax+")


class Functions:
    """One process's view of the merged tree.

    They stand in their modules as bound methods: like built-in functions, those are not bound
    again where a class has them as attributes.

    Attributes:
        tree: What is seen.
        changes: What changes it.
        report: Takes a fault of ours.
        passing: Threads that are telling of a fault: the log of it is no file of the script's.
        announced: By thread: the path that is about to be opened by a descriptor of ours.
    """

    module: ModuleType = os

    def __init__(
        self, tree: MergedTree, changes: Changes, report: Callable[[BaseException], None]
    ) -> None:
        self.tree = tree
        self.changes = changes
        self.passing: set[int] = set()
        self._report = report
        self.announced: dict[int, str | bytes] = {}

    def report(self, error: BaseException) -> None:
        thread = get_ident()
        self.passing.add(thread)
        try:
            self._report(error)
        finally:
            self.passing.discard(thread)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled function is looked up in its module, as the plain one is."""
        return importlib.import_module, (self.module.__name__,)

    def _found(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Node:
        """Finds what is read; one that is not there is an error."""
        if self.tree.is_plain():
            raise NotAPath
        node = self.tree.node(path_text(path), dir_fd, follow=follow)
        if node.status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), node.key)
        return node

    def _named(self, path: Any, dir_fd: int | None = None) -> Node:
        """Finds what a name itself stands for, which is to be made, moved or removed."""
        text = path_text(path)
        bare = text.rstrip(os.sep) or text[:1]
        node = self.tree.node(bare, dir_fd, follow=False)
        node.must_be_directory = bare != text
        return node

    def _changed(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Node:
        return self.tree.node(path_text(path), dir_fd, follow=follow)

    # what reads

    @reads(posix.stat)
    def stat(
        self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        node = self._found(path, dir_fd, follow=follow_symlinks)
        if node.parent.is_kernels:
            return posix.stat(node.path, follow_symlinks=follow_symlinks)
        return cast(os.stat_result, node.status)

    @reads(posix.lstat)
    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        node = self._found(path, dir_fd, follow=False)
        return cast(os.stat_result, node.status)

    @reads(posix.access)
    def access(
        self,
        path: Any,
        mode: int,
        *,
        dir_fd: int | None = None,
        effective_ids: bool = False,
        follow_symlinks: bool = True,
    ) -> bool:
        try:
            node = self._found(path, dir_fd, follow=follow_symlinks)
        except OSError:
            return False
        return posix.access(
            node.path, mode, effective_ids=effective_ids, follow_symlinks=follow_symlinks
        )

    @reads(posix.readlink)
    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        target = self.tree.virtual(posix.readlink(self._found(path, dir_fd, follow=False).path))
        return os.fsencode(target) if _is_bytes(path) else target

    @reads(posix.statvfs)
    def statvfs(self, path: Any) -> os.statvfs_result:
        return posix.statvfs(self._found(path).path)

    @reads(posix.listxattr)
    def listxattr(self, path: Any = None, *, follow_symlinks: bool = True) -> list[str]:
        node = self._found("." if path is None else path, follow=follow_symlinks)
        return posix.listxattr(node.path, follow_symlinks=follow_symlinks)

    @reads(posix.getxattr)
    def getxattr(self, path: Any, attribute: Any, *, follow_symlinks: bool = True) -> bytes:
        node = self._found(path, follow=follow_symlinks)
        return posix.getxattr(node.path, attribute, follow_symlinks=follow_symlinks)

    @reads(posix.listdir)
    def listdir(self, path: Any = None) -> Any:
        names = names_in(self.tree, self._listed(path)[0])
        return [os.fsencode(name) for name in names] if _is_bytes(path) else names

    @reads(posix.scandir)
    def scandir(self, path: Any = None) -> Any:
        directory, given = self._listed(path)
        return entries_in(self.tree, directory, given, as_bytes=_is_bytes(path))

    def _listed(self, path: Any) -> tuple[Directory, str]:
        """Returns the directory that is to be listed, and what its entries' paths begin with."""
        is_plain = self.tree.is_plain()
        is_descriptor = type(path) is int and path >= 0
        # Of -1 the system thinks as it does without a path.
        given = "" if is_descriptor else path_text("." if path in (None, -1) else path)
        try:
            text = self.tree.path_of_descriptor(path) if is_descriptor else given
            directory = self.tree.directory(text)
        except OSError:
            if is_plain:
                raise NotAPath from None
            raise
        is_as_it_is = is_plain or (directory.is_free and not directory.is_touched)
        if is_as_it_is and not self.tree.is_beside_scratch(directory):
            raise NotAPath
        return directory, given

    @replaces(posix.getcwd, paths=0, writes=False)
    def getcwd(self) -> str:
        return self.tree.cwd()

    @replaces(posix.getcwdb, paths=0, writes=False)
    def getcwdb(self) -> bytes:
        return os.fsencode(self.tree.cwd())

    @reads(posix.chdir)
    def chdir(self, path: Any) -> None:
        """Goes where C code finds the user's files too, if there is such a directory."""
        try:
            if type(path) is int or self.tree.is_plain():
                posix.chdir(path)
                return
            node = self._found(path)
            if not (node.is_directory or node.parent.is_kernels):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            real = node.key if not node.is_gone else node.path
            posix.chdir(real if is_directory(real) else node.path)
        finally:
            self.tree.forget()

    @reads(posix.fchdir)
    def fchdir(self, fd: Any) -> None:
        try:
            posix.fchdir(fd)
        finally:
            self.tree.forget()

    # what opens

    @replaces(posix.open)
    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return self.changes.open(self._opened(path, flags, dir_fd), flags, mode)

    def _opened(self, path: Any, flags: int, dir_fd: int | None = None) -> Node:
        """Finds what is to be opened."""
        text, both = path_text(path), posix.O_CREAT | posix.O_EXCL
        if flags & posix.O_CREAT and text.endswith(os.sep):
            self._named(path, dir_fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        follow = not (flags & posix.O_NOFOLLOW or flags & both == both)
        return self.tree.node(text, dir_fd, follow=follow)

    # what changes names

    @replaces(posix.mkdir)
    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        node = self._named(path, dir_fd)
        self.changes.make(node, lambda made: posix.mkdir(made, mode), directory=True)

    @replaces(posix.mkfifo)
    def mkfifo(self, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        node = self._named(path, dir_fd)
        self.changes.make(node, lambda made: posix.mkfifo(made, mode))

    @replaces(posix.mknod)
    def mknod(
        self, path: Any, mode: int = 0o600, device: int = 0, *, dir_fd: int | None = None
    ) -> None:
        node = self._named(path, dir_fd)
        self.changes.make(node, lambda made: posix.mknod(made, mode, device))

    @replaces(posix.unlink)
    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.changes.unlink(self._named(path, dir_fd))

    @replaces(posix.remove)
    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.changes.unlink(self._named(path, dir_fd))

    @replaces(posix.rmdir)
    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        if path_text(path).rstrip(os.sep).rpartition(os.sep)[2] == ".":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        self.changes.rmdir(self._named(path, dir_fd))

    @replaces(posix.rename, paths=2)
    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        self.changes.rename(self._named(src, src_dir_fd), self._named(dst, dst_dir_fd))

    @replaces(posix.replace, paths=2)
    def replace(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        self.changes.rename(self._named(src, src_dir_fd), self._named(dst, dst_dir_fd))

    @replaces(posix.link, paths=2)
    def link(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = False,
    ) -> None:
        source = self.tree.node(path_text(src), src_dir_fd, follow=follow_symlinks)
        if source.status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source.key)
        self.changes.hard_link(source, self._named(dst, dst_dir_fd))

    @replaces(posix.symlink, paths=2)
    def symlink(
        self,
        src: Any,
        dst: Any,
        target_is_directory: bool = False,
        *,
        dir_fd: int | None = None,
    ) -> None:
        self.changes.link(self._named(dst, dir_fd), path_text(src))

    # what changes files

    @replaces(posix.truncate)
    def truncate(self, path: Any, length: int) -> None:
        node = self._changed(path)
        if node.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        posix.truncate(self.changes.own_content(node), length)

    @replaces(posix.chmod)
    def chmod(
        self, path: Any, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> None:
        node = self._changed(path, dir_fd, follow=follow_symlinks)
        posix.chmod(self.changes.own_metadata(node), mode)

    @replaces(posix.chown)
    def chown(
        self,
        path: Any,
        uid: int,
        gid: int,
        *,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        node = self._changed(path, dir_fd, follow=follow_symlinks)
        posix.chown(self.changes.own_metadata(node), uid, gid, follow_symlinks=False)

    @replaces(posix.lchown)
    def lchown(self, path: Any, uid: int, gid: int) -> None:
        node = self._changed(path, follow=False)
        posix.chown(self.changes.own_metadata(node), uid, gid, follow_symlinks=False)

    @replaces(posix.utime, paths=1 if sys.version_info >= (3, 13) else 0)
    def utime(
        self,
        path: Any,
        times: Any = None,
        *,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
        **ns: Any,
    ) -> None:
        node = self._changed(path, dir_fd, follow=follow_symlinks)
        own = self.changes.own_content if times is None and not ns else self.changes.own_metadata
        posix.utime(own(node), times, follow_symlinks=False, **ns)

    @replaces(posix.setxattr)
    def setxattr(
        self, path: Any, attribute: Any, value: Any, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        node = self._changed(path, follow=follow_symlinks)
        posix.setxattr(
            self.changes.own_metadata(node), attribute, value, flags, follow_symlinks=False
        )

    @replaces(posix.removexattr)
    def removexattr(self, path: Any, attribute: Any, *, follow_symlinks: bool = True) -> None:
        node = self._changed(path, follow=follow_symlinks)
        posix.removexattr(self.changes.own_metadata(node), attribute, follow_symlinks=False)


class FileFunctions(Functions):
    """The one of `io`, which builtins has too."""

    module = io

    @replaces(_io.open)
    def open(  # type: ignore[override]
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        rest = (buffering, encoding, errors, newline, closefd)
        if type(file) is int or type(mode) is not str:
            raise NotAPath
        writes = not WRITING_LETTERS.isdisjoint(mode)
        if opener is not None or not closefd:
            # What it opens is for the script's opener to say, and contained there.
            if writes and opener is not None:
                path_text(file)
                self.announced[get_ident()] = file = os.fspath(file)
            return _io.open(file, mode, *rest, opener)
        if not writes and self.tree.is_plain():
            raise NotAPath
        text = path_text(file)
        if not writes and text[0] == os.sep:
            node = self.tree.node(text)
            if node.status is not None and node.path == text:
                raise NotAPath  # it is where it says
        file = os.fspath(file)
        if writes:
            self.announced[get_ident()] = file
        return _io.open(file, mode, *rest, self._descriptor)

    def _descriptor(self, path: str | bytes, flags: int) -> int:
        return self.changes.open(self._opened(path, flags), flags, MODE_OF_NEW_FILE)


def _is_bytes(path: Any) -> bool:
    return isinstance(path if type(path) is int or path is None else os.fspath(path), bytes)


def is_directory(path: str) -> bool:
    """Whether there really is such a directory."""
    try:
        posix.stat(path + os.sep)
    except OSError:
        return False
    return True
