"""Tells libraries that open files in native code where a file really is."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, Final

from trainprof.tracee.containment.changes import Changes
from trainprof.tracee.containment.functions import is_directory
from trainprof.tracee.containment.guard import path_text
from trainprof.tracee.containment.tree import MergedTree, NotAPath

# By which libraries call a path.
NAMES: Final = (
    *("f", "filename", "file_name", "path", "folder", "where", "source", "dest", "sink", "stream"),
    *("input_file", "output_file"),
)

Wrapped = Callable[..., Any]


class Paths:
    """Where files are that a library reads and writes."""

    def __init__(self, tree: MergedTree, changes: Changes) -> None:
        self._tree = tree
        self._changes = changes

    def is_plain(self) -> bool:
        """True while nothing was changed: all is as it really is."""
        return self._tree.is_plain()

    def read(self, path: Any) -> Any:
        """Returns where a file is that is to be read; what is no path is returned as it is."""
        if self._tree.is_plain():
            return path
        try:
            text = path_text(path)
            node = self._tree.node(text)
        except NotAPath:
            return path
        except OSError:
            return self._missing(text)
        if node.status is not None:
            return node.path
        return self._tree.changed_path(node.key) if node.is_gone else path

    def written(self, path: Any) -> Any:
        """Returns where a file is to be written; what is no path is returned as it is.

        Raises:
            OSError: If it may not be written.
        """
        try:
            text = path_text(path)
        except NotAPath:
            return path
        try:
            node = self._tree.node(text)
        except (FileNotFoundError, NotADirectoryError):
            return self._missing(text)
        return self._changes.for_writer(node)

    def _missing(self, text: str) -> str:
        """Returns a path in no directory: the library finds out.

        But not by one that is only gone for the script.
        """
        if not is_directory(os.path.dirname(text) or os.curdir):
            return text
        return self._tree.changed_path(os.path.abspath(text))

    def own(self, path: str) -> None:
        """Copies a file that a library changes besides the one it was told of, if there is one."""
        with contextlib.suppress(OSError):
            self._changes.own_content(self._tree.node(path))


def with_path(plain: Wrapped, place: int, find: Callable[[Any], Any]) -> Wrapped:
    """Returns `plain` with one of its arguments, a path, replaced by what `find` tells."""

    @functools.wraps(plain, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            args = (*args[:place], find(args[place]), *args[place + 1 :])
        else:
            kwargs.update((name, find(kwargs[name])) for name in NAMES if name in kwargs)
        return plain(*args, **kwargs)

    return call


def wrap(owner: Any, name: str, find: Callable[[Any], Any], *, place: int = 1) -> None:
    """Wraps what has a path among its arguments, where there is such a thing.

    Args:
        owner: A module or class.
        name: Of its function or method.
        find: Tells where the file is.
        place: The path's, of a method's arguments the first is the object.
    """
    plain = getattr(owner, name, None)
    if plain is not None:
        setattr(owner, name, with_path(plain, place, find))


def class_with_path(cls: Any, find: Callable[[Any], Any]) -> Any:
    def __init__(self: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, find(target), *args, **kwargs)

    return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})


def stand_in(
    cls: Any,
    make: Wrapped,
    *,
    is_ours: Callable[[object], bool] = lambda instance: False,
    **attributes: Any,
) -> Any:
    """Returns a class that gives instances of one that cannot be inherited from.

    Args:
        cls: That one.
        make: Makes the instance, of the arguments that the script gives.
        is_ours: Whether something of another class is one that was made.
        attributes: What it has instead of what that one has.
    """

    class Meta(type):
        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, cls) or is_ours(instance)

        def __subclasscheck__(self, subclass: type) -> bool:
            return type.__subclasscheck__(self, subclass) or issubclass(subclass, cls)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(cls, name)

    own = {"__doc__": cls.__doc__, "__module__": cls.__module__}
    return Meta(cls.__name__, (), {**own, **attributes})
