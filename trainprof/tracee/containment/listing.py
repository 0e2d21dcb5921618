"""Listing directories of the merged tree."""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Callable, Iterator
from typing import Any

from trainprof.tracee.containment.tree import NOT_THERE, Directory, MergedTree, Node


def names_in(tree: MergedTree, directory: Directory) -> list[str]:
    """Returns the names in a directory: the real ones first.

    Raises:
        OSError: If what is really there cannot be listed.
    """
    names: list[str] = []
    if not directory.is_gone:
        try:
            names = [n for n in posix.listdir(directory.key) if _is_listed(tree, directory, n)]
        except NOT_THERE:  # made by the script
            names = []
    if not directory.is_touched:
        return names
    removed = tree.index.removed
    changed = dict.fromkeys(changed_names_in(tree, directory))
    kept = [name for name in names if name in changed or directory.path_of(name) not in removed]
    return list(dict.fromkeys((*kept, *changed)))


class Entry:
    """What `os.scandir` gives for a name of a merged directory; used as an os.DirEntry is."""

    __slots__ = ("_directory", "_name", "_node", "_real", "_tree", "name", "path")

    def __init__(
        self,
        tree: MergedTree,
        directory: Directory,
        name: str,
        path: str,
        real: os.DirEntry[str] | None,
        *,
        as_bytes: bool,
    ) -> None:
        """
        Args:
            tree: That the directory is of.
            directory: That the name is in.
            name: As it is listed.
            path: The directory's, as the script gave it, and the name.
            real: What the system says of it, where it was not changed.
            as_bytes: The script gave bytes.
        """
        self._tree = tree
        self._directory = directory
        self._name = name
        self._real = real
        self._node: Node | None = None
        self.name: Any = os.fsencode(name) if as_bytes else name
        self.path: Any = os.fsencode(path) if as_bytes else path

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        if self._real is not None:
            return self._real.inode()
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if self._real is not None and not self._real.is_symlink():
            return self._real.is_dir()
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if self._real is not None and not self._real.is_symlink():
            return self._real.is_file()
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._real.is_symlink() if self._real is not None else self._found().is_link

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if self._real is not None and not self._real.is_symlink():
            return self._real.stat()
        node = self._found()
        if follow_symlinks and node.is_link:
            try:
                node = self._tree.node(node.key)
            except OSError as error:
                error.filename = self.path
                raise
        if node.status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return node.status

    def _found(self) -> Node:
        if self._node is None:
            self._node = self._tree.child(self._directory, self._name)
        return self._node

    def _is(self, question: Callable[[int], bool], follow: bool) -> bool:
        try:
            return question(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False


class Listing:
    """The iterator that `os.scandir` returns for a merged directory."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Listing:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def entries_in(tree: MergedTree, directory: Directory, given: str, *, as_bytes: bool) -> Listing:
    """Lists a directory, as `os.scandir` does.

    Args:
        tree: That it is of.
        directory: To be listed.
        given: The path that the script gave for it.
        as_bytes: It gave bytes.
    """
    entries, known = [], set()
    changed = changed_names_in(tree, directory)
    for real in _real_entries(directory):
        name = real.name
        if not _is_listed(tree, directory, name):
            continue
        if directory.path_of(name) in tree.index.removed and name not in changed:
            continue
        known.add(name)
        path = os.path.join(given, name)
        unchanged = None if name in changed else real
        entries.append(Entry(tree, directory, name, path, unchanged, as_bytes=as_bytes))
    for name in changed:
        if name not in known:
            path = os.path.join(given, name)
            entries.append(Entry(tree, directory, name, path, None, as_bytes=as_bytes))
    return Listing(iter(entries))


def _is_listed(tree: MergedTree, directory: Directory, name: str) -> bool:
    return directory.path_of(name) != tree.scratch


def _real_entries(directory: Directory) -> list[os.DirEntry[str]]:
    if directory.is_gone:
        return []
    try:
        with posix.scandir(directory.key) as entries:
            return list(entries)
    except NOT_THERE:  # made by the script
        return []


def changed_names_in(tree: MergedTree, directory: Directory) -> list[str]:
    """Returns the names that lie in the scratch directory."""
    if not directory.is_touched:
        return []
    try:
        return posix.listdir(tree.changed_path(directory.key))
    except NOT_THERE:
        return []
