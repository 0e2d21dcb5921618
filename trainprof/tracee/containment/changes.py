"""What changes the merged tree: each change is made in the scratch directory, or left alone.

Errors are those of the system call on a plain tree, and nothing has been changed then.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import posix
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

from trainprof.tracee.containment.copies import can_share_blocks, copy, take_over
from trainprof.tracee.containment.listing import names_in
from trainprof.tracee.containment.tree import Directory, MergedTree, Node

WRITING: Final = posix.O_WRONLY | posix.O_RDWR | posix.O_TRUNC | posix.O_APPEND
ANONYMOUS: Final = posix.O_TMPFILE & ~posix.O_DIRECTORY
# A disk that writes 500 MB/s takes half a second for it: less is lost in a script's start.
TOLD_FROM_BYTES: Final = 1 << 28
# Of what is free on the scratch directory's disk: the script itself writes there, and others do.
MOST_OF_ROOM: Final = 0.9
GIB: Final = 1 << 30
# Of what `stat` counts: files with holes take less than they are long.
BLOCK: Final = 512


class Changes:
    """The changes of one process; what they leave is seen by all that share the scratch."""

    def __init__(
        self,
        tree: MergedTree,
        scratch: str,
        *,
        tell_copy: Callable[[str, int], None],
        tell_move: Callable[[str, int], None],
    ) -> None:
        """
        Args:
            tree: What they are made to.
            scratch: The scratch directory, absolute and without links.
            tell_copy: Takes the path and the bytes of a large file that had to be copied.
            tell_move: The same of a directory that was moved, and had to be copied with all in it.
        """
        self._tell_copy = tell_copy
        self._tell_move = tell_move
        self._tree = tree
        self._index = tree.index
        self._partial = os.path.join(scratch, "partial")
        self._next = itertools.count().__next__

    def open(self, node: Node, flags: int, mode: int) -> int:
        """Returns a descriptor, as `os.open` does.

        Args:
            node: The file, found without following a link where `flags` say so.
            flags: As of `os.open`.
            mode: Of a file that is made.
        """
        creates, must_be_new = bool(flags & posix.O_CREAT), bool(flags & posix.O_EXCL)
        if node.is_free:
            return posix.open(node.path, flags, mode)
        if node.status is None:
            if not creates:
                _fail(errno.ENOENT, node)
            if node.must_be_directory:
                _fail(errno.EISDIR, node)
            self.prepare(node.parent)
            return posix.open(self._tree.changed_path(node.key), flags, mode)
        if creates and must_be_new:
            _fail(errno.EEXIST, node)
        if node.is_directory and flags & ANONYMOUS:
            return posix.open(self._own_directory(node), flags, mode)
        if node.is_changed or not (flags & WRITING or creates):
            return posix.open(node.path, flags, mode)
        if node.is_directory:
            _fail(errno.EISDIR, node)
        if node.is_link:  # O_NOFOLLOW
            _fail(errno.ELOOP, node)
        if not node.is_file:  # a pipe or a device is what it is
            return posix.open(node.path, flags & ~posix.O_CREAT, mode)
        if not flags & WRITING:
            return posix.open(node.path, flags & ~posix.O_CREAT, mode)
        _check_access(node, posix.W_OK)
        path = self._own_file(node, emptied=bool(flags & posix.O_TRUNC))
        return posix.open(path, flags & ~posix.O_CREAT, mode)

    def own(self, node: Node) -> str:
        """Returns the path of a copy that may be changed instead of what is there."""
        if node.is_free or node.is_changed:
            return node.path
        if node.status is None:
            _fail(errno.ENOENT, node)
        if node.is_directory:
            return self._own_directory(node)
        return self._own_file(node)

    def own_metadata(self, node: Node) -> str:
        """Does as `own`, for a change that only the owner may make."""
        if not (node.is_free or node.is_changed or node.status is None):
            user = posix.geteuid()
            if user not in (0, node.status.st_uid):
                _fail(errno.EPERM, node)
        return self.own(node)

    def own_content(self, node: Node) -> str:
        """Does as `own`, for a change that whoever may write may make."""
        if not (node.is_free or node.is_changed or node.status is None):
            _check_access(node, posix.W_OK)
        return self.own(node)

    def for_writer(self, node: Node) -> str:
        """Returns where a library may write a file anew, or change it, that opens it itself."""
        if node.is_free or node.is_changed:
            return node.path
        if node.status is None:
            self.prepare(node.parent)
            return self._tree.changed_path(node.key)
        return self.own_content(node)

    def make(self, node: Node, make: Callable[[str], Any], *, directory: bool = False) -> None:
        """Makes what is not there: `make` gets the path.

        Args:
            node: Found without following a link.
            make: Makes it, and fails if it is there.
            directory: It is one.
        """
        if node.is_free:
            make(node.path)
            return
        if node.status is not None:
            _fail(errno.EEXIST, node)
        if node.must_be_directory and not directory:
            _fail(errno.ENOENT, node)
        self.prepare(node.parent)
        make(self._tree.changed_path(node.key))

    def link(self, node: Node, target: str) -> None:
        """Makes a symbolic link; the text may lead anywhere."""
        self.make(node, lambda path: posix.symlink(target, path))
        self._index.changed()

    def hard_link(self, source: Node, node: Node) -> None:
        """Makes a second name of a file that is there."""
        if node.status is not None:
            _fail(errno.EEXIST, node)
        if source.is_directory and not node.must_be_directory:
            _fail(errno.EPERM, source)
        both_free = source.is_free and node.is_free
        path = source.path if both_free or source.is_directory else self.own(source)
        self.make(node, lambda made: posix.link(path, made, follow_symlinks=False))

    def unlink(self, node: Node) -> None:
        if node.is_free:
            posix.unlink(node.path)
        else:
            if node.status is None:
                _fail(errno.ENOENT, node)
            if node.is_directory:
                _fail(errno.EISDIR, node)
            if node.must_be_directory:
                _fail(errno.ENOTDIR, node)
            self._check_parent(node)
            self._hide(node)
            if node.is_changed:
                posix.unlink(node.path)
        if node.is_link:
            self._index.changed()

    def rmdir(self, node: Node) -> None:
        if node.is_free:
            posix.rmdir(node.path)
        else:
            if node.status is None:
                _fail(errno.ENOENT, node)
            if not node.is_directory:
                _fail(errno.ENOTDIR, node)
            if names_in(self._tree, self._tree.directory(node.key)):
                _fail(errno.ENOTEMPTY, node)
            self._check_parent(node)
            self._hide(node)
            if node.is_changed:
                posix.rmdir(node.path)
        self._index.changed()

    def rename(self, source: Node, target: Node) -> None:
        """Moves `source` to `target`, over what is there, as `os.rename` does."""
        if source.is_free and target.is_free:
            posix.rename(source.path, target.path)
            self._tell_of_move(source, target)
            return
        if source.status is None:
            _fail(errno.ENOENT, source)
        if not source.is_directory and (source.must_be_directory or target.must_be_directory):
            _fail(errno.ENOTDIR, source)
        if source.key == target.key:
            return
        if source.is_directory and target.key.startswith(source.key + os.sep):
            _fail(errno.EINVAL, source)
        if source.key.startswith(target.key + os.sep):
            _fail(errno.ENOTEMPTY, target)
        if target.status is not None:
            self._check_may_replace(source, target)
        self._check_parent(source)
        if not target.is_free:
            self.prepare(target.parent)
            self._check_parent(target)
        path = self._own_moved(source) if source.is_directory else self.own(source)
        self._give_way(source, target)
        if not source.is_free:
            self._hide(source)
        goal = target.path if target.is_free else self._tree.changed_path(target.key)
        try:
            posix.rename(path, goal)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            crosses = True
        else:
            crosses = False
        if crosses:
            if not _was_one_device(source, target):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source.path)
            self._move(path, goal)
        if source.is_directory and not target.is_free:
            self._touch_below(target.key)
        self._tell_of_move(source, target)

    def _tell_of_move(self, source: Node, target: Node) -> None:
        if not source.is_file or target.is_link or target.is_directory:
            self._index.changed()

    def prepare(self, directory: Directory) -> None:
        """Makes room in the scratch directory for new names in `directory`.

        Raises:
            PermissionError: If the script might not make any there.
        """
        path = self._tree.changed_path(directory.key)
        if not _is_there(path):
            _check_access_to(directory.key, posix.W_OK | posix.X_OK)
            self._shadow(directory)
        self._index.touch(directory.key)

    def _own_directory(self, node: Node) -> str:
        if not (node.is_free or node.is_changed):
            self._shadow(self._tree.directory(node.key))
        return node.path if node.is_free else self._tree.changed_path(node.key)

    def _shadow(self, directory: Directory) -> None:
        """Makes a directory in the scratch directory that stands for the real one."""
        path = self._tree.changed_path(directory.key)
        if _is_there(path):
            return
        if directory.key == os.sep:
            with contextlib.suppress(FileExistsError):
                posix.mkdir(path, 0o700)
            return
        parent = self._tree.directory(os.path.dirname(directory.key))
        self._shadow(parent)
        self._index.touch(parent.key)
        status = posix.lstat(directory.key)
        with contextlib.suppress(FileExistsError):
            posix.mkdir(path, 0o700)
            take_over(status, path, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)

    def _own_file(self, node: Node, *, emptied: bool = False) -> str:
        """Copies a file or link, and returns where that is."""
        copied = self._copy_file(node, emptied=emptied)
        if copied >= TOLD_FROM_BYTES:
            self._tell_copy(node.key, copied)
        return self._tree.changed_path(node.key)

    def _copy_file(self, node: Node, *, emptied: bool = False) -> int:
        """Copies a file or link, whole at once: another process may do the same.

        Returns:
            How many bytes that took.
        """
        path = self._tree.changed_path(node.key)
        assert node.status is not None
        self._shadow(node.parent)
        self._index.touch(node.parent.key)
        part = self._new_part()
        copied = 0
        try:
            if node.is_link:
                posix.symlink(posix.readlink(node.path), part)
                take_over(node.status, part, None)
            elif node.is_file:
                copied = copy(node.path, part, emptied=emptied)
                take_over(node.status, part, stat.S_IMODE(node.status.st_mode))
            else:
                _fail(errno.EROFS, node)
            with contextlib.suppress(FileExistsError):
                posix.link(part, path, follow_symlinks=False)
        finally:
            with contextlib.suppress(FileNotFoundError):
                posix.unlink(part)
        return copied

    def _new_part(self) -> str:
        """Returns where a copy may be made that is not whole yet."""
        with contextlib.suppress(FileExistsError):
            posix.mkdir(self._partial, 0o700)
        return os.path.join(self._partial, f"{posix.getpid()}-{self._next()}")

    def _own_moved(self, node: Node) -> str:
        """Returns the path of a copy of a directory with all that is in it.

        Raises:
            OSError: If there is no room for it.
        """
        if node.is_free:
            return node.path
        files = list(self._files_to_copy(node))
        self._check_room(node, files)
        copied = self._copy_tree(node)
        if copied >= TOLD_FROM_BYTES:
            self._tell_move(node.key, copied)
        return self._tree.changed_path(node.key)

    def _files_to_copy(self, node: Node) -> Iterator[Node]:
        """Yields the files in a directory, and in those below, that were not changed so far."""
        directory = self._tree.directory(node.key)
        for name in names_in(self._tree, directory):
            child = self._tree.child(directory, name)
            if child.is_directory:
                yield from self._files_to_copy(child)
            elif child.is_file and not (child.is_free or child.is_changed):
                yield child

    def _check_room(self, node: Node, files: Sequence[Node]) -> None:
        size = sum(one.status.st_blocks * BLOCK for one in files if one.status is not None)
        told = posix.statvfs(self._tree.files)
        room = int(told.f_bavail * told.f_frsize * MOST_OF_ROOM)
        if size > room and not can_share_blocks(max(files, key=_size_of).path, self._new_part()):
            why = (
                f"trainprof would have to copy {size / GIB:,.1f} GiB to keep this move from the "
                f"user's files, and has room for {room / GIB:,.1f}"
            )
            raise OSError(errno.ENOSPC, why, node.key)

    def _copy_tree(self, node: Node) -> int:
        """Copies a directory with all that is in it, links as links, and returns how many bytes."""
        if node.is_free:
            return 0
        self._own_directory(node)
        directory, copied = self._tree.directory(node.key), 0
        for name in names_in(self._tree, directory):
            child = self._tree.child(directory, name)
            if child.is_directory:
                copied += self._copy_tree(child)
            elif not child.is_changed:
                copied += self._copy_file(child)
        return copied

    def _give_way(self, source: Node, target: Node) -> None:
        """Takes away what `source` is moved over, where the system would not."""
        if target.is_free:
            return
        if source.is_directory:
            # The real one's names are not to be seen below what comes in its place.
            self._hide(target)
            if target.is_changed:
                posix.rmdir(target.path)

    def _check_may_replace(self, source: Node, target: Node) -> None:
        if not source.is_directory:
            if target.is_directory:
                _fail(errno.EISDIR, target)
            return
        if not target.is_directory:
            _fail(errno.ENOTDIR, target)
        if names_in(self._tree, self._tree.directory(target.key)):
            _fail(errno.ENOTEMPTY, target)

    def _check_parent(self, node: Node) -> None:
        """Raises what the system would where names in its directory may not be changed."""
        if node.is_free:
            return
        path = self._tree.changed_path(node.parent.key)
        _check_access_to(path if _is_there(path) else node.parent.key, posix.W_OK | posix.X_OK)

    def _hide(self, node: Node) -> None:
        """Lets nothing real be seen at its path any more."""
        if not node.is_gone and _is_there(node.key):
            self._index.touch(node.parent.key)
            self._index.remove(node.key)

    def _touch_below(self, key: str) -> None:
        path = self._tree.changed_path(key)
        self._index.touch(key)
        for name in posix.listdir(path):
            if stat.S_ISDIR(posix.lstat(f"{path}/{name}").st_mode):
                self._touch_below(f"{key}/{name}")

    def _move(self, path: str, goal: str) -> None:
        """Moves across devices what the script sees on one."""
        status = posix.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            with contextlib.suppress(FileNotFoundError):
                posix.rmdir(goal)
            posix.mkdir(goal, 0o700)
            for name in posix.listdir(path):
                self._move(f"{path}/{name}", f"{goal}/{name}")
            take_over(status, goal, stat.S_IMODE(status.st_mode))
            posix.rmdir(path)
            return
        part = f"{goal}.{posix.getpid()}-{self._next()}"
        if stat.S_ISLNK(status.st_mode):
            posix.symlink(posix.readlink(path), part)
            take_over(status, part, None)
        else:
            copy(path, part)
            take_over(status, part, stat.S_IMODE(status.st_mode))
        posix.rename(part, goal)
        posix.unlink(path)


def _fail(code: int, node: Node) -> NoReturn:
    raise OSError(code, os.strerror(code), node.key)


def _size_of(node: Node) -> int:
    return 0 if node.status is None else node.status.st_size


def _is_there(path: str) -> bool:
    try:
        posix.lstat(path)
    except OSError:
        return False
    return True


def _check_access(node: Node, mode: int) -> None:
    _check_access_to(node.path, mode)


def _check_access_to(path: str, mode: int) -> None:
    if not posix.access(path, mode, effective_ids=True) and _is_there(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _was_one_device(source: Node, target: Node) -> bool:
    """Whether both lie on one device for the script, as far as can be told: else it gets EXDEV."""
    devices = set()
    for node in (source, target):
        path = node.parent.key
        while not _is_there(path):
            path = os.path.dirname(path)
        devices.add(posix.lstat(path).st_dev)
    return len(devices) == 1
