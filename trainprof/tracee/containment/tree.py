"""The merged tree: what a path stands for, with the trial's changes laid over what is there."""

from __future__ import annotations

import errno
import os
import posix
import stat
from typing import Final

from trainprof.record.names import SCRATCH_FILES
from trainprof.tracee.containment.index import SharedIndex
from trainprof.tracee.containment.zones import OF_KERNEL, SCRIPT_RUNS_IN_IT, TEMPORARY_NAMES

MAX_LINKS: Final = 40
MAX_CACHED: Final = 1 << 14
NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)


class NotAPath(Exception):
    """What was given is no path: a descriptor, or something that the original refuses."""


class Directory:
    """A directory of the merged tree.

    Attributes:
        key: Its absolute path, without links.
        is_free: It is left alone: all happens where the path says.
        is_touched: Something was made or removed in it.
        is_gone: Of the real one nothing is to be seen.
        is_kernels: Names in it are the kernel's affair.
    """

    __slots__ = ("is_free", "is_gone", "is_kernels", "is_touched", "key")

    def __init__(
        self, key: str, *, is_free: bool, is_touched: bool, is_gone: bool, is_kernels: bool
    ) -> None:
        self.key = key
        self.is_free = is_free
        self.is_touched = is_touched
        self.is_gone = is_gone
        self.is_kernels = is_kernels

    def path_of(self, name: str) -> str:
        return f"{self.key}/{name}" if self.key != os.sep else os.sep + name


class Node:
    """What a name stands for.

    Attributes:
        key: Its absolute path, without links but for itself.
        parent: The directory it is in.
        path: Where it really is, or would be if it were real.
        status: Its `lstat`; None where nothing is there.
        is_free: It is left alone.
        is_changed: It lies in the scratch directory.
        is_gone: Nothing real is to be seen at its path.
        must_be_directory: Its name was given with a slash behind it.
    """

    __slots__ = (
        "is_changed",
        "is_free",
        "is_gone",
        "key",
        "must_be_directory",
        "parent",
        "path",
        "status",
    )

    def __init__(
        self,
        key: str,
        parent: Directory,
        path: str,
        status: os.stat_result | None,
        *,
        is_free: bool,
        is_changed: bool,
        is_gone: bool,
    ) -> None:
        self.key = key
        self.parent = parent
        self.path = path
        self.status = status
        self.is_free = is_free
        self.is_changed = is_changed
        self.is_gone = is_gone
        self.must_be_directory = False

    @property
    def is_directory(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return self.status is not None and stat.S_ISLNK(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return self.status is not None and stat.S_ISREG(self.status.st_mode)


class MergedTree:
    """Finds nodes. Directories are kept until the index has news.

    Attributes:
        files: Where in the scratch directory changes lie.
        index: Of that directory.
        scratch: The directory; no listing has it, for it holds once more what it is listed beside.
    """

    def __init__(self, scratch: str, index: SharedIndex) -> None:
        """
        Args:
            scratch: The scratch directory, absolute and without links.
            index: Of that directory.
        """
        self.scratch = scratch
        self.files = os.path.join(scratch, SCRATCH_FILES)
        self.index = index
        self._by_text: dict[str, Directory] = {}
        self._by_key: dict[str, Directory] = {}

    def forget(self) -> None:
        """To be called when the working directory is another one."""
        self._by_text, self._by_key = {}, {}

    def is_plain(self) -> bool:
        """True while nothing was changed: all is as it really is."""
        if self.index.has_news():
            self.forget()
        return not self.index.touched

    def cwd(self) -> str:
        """Returns the working directory as the script knows it.

        Raises:
            FileNotFoundError: If it is gone.
        """
        path = self.virtual(posix.getcwd())
        if any(_lies_in(path, gone) for gone in self.index.removed):
            key = os.sep
            for name in path.split(os.sep)[1:]:
                node = self.child(self._directory(key, 0), name)
                if not node.is_directory:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                key = node.key
        return path

    def virtual(self, path: str) -> str:
        """Returns the path that stands for one that may lie in the scratch directory."""
        if path.startswith(self.files) and path[len(self.files) :][:1] in ("", os.sep):
            return path[len(self.files) :] or os.sep
        return path

    def is_beside_scratch(self, directory: Directory) -> bool:
        """Whether the scratch directory is one of a directory's own names."""
        return directory.key == os.path.dirname(self.scratch)

    def path_of_descriptor(self, descriptor: int) -> str:
        """Returns the path, as the script knows it, of an open directory."""
        return self.virtual(posix.readlink(f"/proc/self/fd/{descriptor}"))

    def changed_path(self, key: str) -> str:
        return self.files + key

    def node(self, path: str, dir_fd: int | None = None, *, follow: bool = True) -> Node:
        """Finds what a path stands for; a missing last name is no error.

        Args:
            path: As the script gave it.
            dir_fd: Directory that a relative path starts from, else the working directory.
            follow: A link that is the last name is followed.

        Raises:
            OSError: If a directory on the way is missing or none.
        """
        if self.index.has_news():
            self.forget()
        if dir_fd is not None and not path.startswith(os.sep):
            path = f"{self.path_of_descriptor(dir_fd)}/{path}"
        return self._node(path, follow, 0)

    def child(self, directory: Directory, name: str) -> Node:
        """Finds what a name in a directory stands for; links are not followed."""
        key = directory.path_of(name)
        is_free = self._is_free(directory, key, name)
        is_gone = False
        if not is_free:
            if directory.is_touched:
                changed = self.files + key
                try:
                    status = posix.lstat(changed)
                except NOT_THERE:
                    pass
                else:
                    is_gone = directory.is_gone or key in self.index.removed
                    return Node(
                        key,
                        directory,
                        changed,
                        status,
                        is_free=False,
                        is_changed=True,
                        is_gone=is_gone,
                    )
            is_gone = directory.is_gone or key in self.index.removed
        try:
            found = None if is_gone else posix.lstat(key)
        except NOT_THERE:
            found = None
        return Node(key, directory, key, found, is_free=is_free, is_changed=False, is_gone=is_gone)

    def directory(self, path: str) -> Directory:
        """Finds a directory by any path of it.

        Raises:
            OSError: If it is missing or none.
        """
        return self._directory(path, 0)

    def _node(self, path: str, follow: bool, links: int) -> Node:
        head, slash, name = path.rpartition(os.sep)
        if name in ("", ".", ".."):
            return self._node_of_directory(path, links)
        parent = self._directory(head or slash, links)
        node = self.child(parent, name)
        if follow and node.is_link and not parent.is_kernels:
            if links >= MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            return self._node(_target(parent, node), True, links + 1)
        return node

    def _node_of_directory(self, path: str, links: int) -> Node:
        """Finds what a path stands for that ends in a slash, `.` or `..`."""
        stripped = path.rstrip(os.sep)
        name = stripped.rpartition(os.sep)[2]
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if stripped != path and name not in ("", ".", ".."):
            node = self._node(stripped, True, links)
        else:
            key = self._directory(path, links).key
            head, slash, name = key.rpartition(os.sep)
            if not name:
                root = self._directory(os.sep, links)
                status = posix.lstat(os.sep)
                node = Node(
                    os.sep,
                    root,
                    os.sep,
                    status,
                    is_free=root.is_free,
                    is_changed=False,
                    is_gone=False,
                )
            else:
                node = self.child(self._directory(head or slash, links), name)
        node.must_be_directory = True
        if node.status is not None and not node.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _directory(self, text: str, links: int) -> Directory:
        found = self._by_text.get(text)
        if found is not None:
            return found
        if len(self._by_text) > MAX_CACHED:
            self.forget()
        here = self._root() if text.startswith(os.sep) else self._directory(self.cwd(), links)
        for name in text.split(os.sep):
            if name == "..":
                here = self._directory(os.path.dirname(here.key), links)
            elif name not in ("", "."):
                here = self._enter(here, name, links)
        self._by_text[text] = here
        return here

    def _enter(self, here: Directory, name: str, links: int) -> Directory:
        key = here.path_of(name)
        found = self._by_key.get(key)
        if found is not None:
            return found
        if here.is_kernels:
            made = self._made(here, key, name)
        else:
            node = self.child(here, name)
            if node.is_link:
                if links >= MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), key)
                made = self._directory(_target(here, node), links + 1)
            elif node.is_directory:
                made = self._made(here, key, name)
            else:
                code = errno.ENOENT if node.status is None else errno.ENOTDIR
                raise OSError(code, os.strerror(code), key)
        self._by_key[key] = made
        return made

    def _made(self, parent: Directory, key: str, name: str) -> Directory:
        is_free = self._is_free(parent, key, name)
        return Directory(
            key,
            is_free=is_free,
            is_touched=key in self.index.touched,
            is_gone=not is_free and (parent.is_gone or key in self.index.removed),
            is_kernels=parent.is_kernels or key in OF_KERNEL,
        )

    def _root(self) -> Directory:
        return Directory(
            os.sep,
            is_free=False,
            is_touched=os.sep in self.index.touched,
            is_gone=False,
            is_kernels=False,
        )

    def _is_free(self, parent: Directory, key: str, name: str) -> bool:
        roots = self.index.roots
        told = roots.get(key)
        if told is not None:
            return told
        if parent.is_free:
            return True
        return name.startswith(TEMPORARY_NAMES) and parent.key + SCRIPT_RUNS_IN_IT in roots


def _target(parent: Directory, link: Node) -> str:
    """Returns where a link leads, as a path of the merged tree."""
    target = posix.readlink(link.path)
    return target if target.startswith(os.sep) else parent.path_of(target)


def _lies_in(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)
