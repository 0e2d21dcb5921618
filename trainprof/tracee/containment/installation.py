"""Puts the functions of a contained script where it finds them."""

from __future__ import annotations

import _io
import builtins
import os
import posix
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from trainprof.tracee.containment.functions import FileFunctions, Functions

NAMES: Final = (
    "access",
    "chdir",
    "chmod",
    "chown",
    "fchdir",
    "getcwd",
    "getcwdb",
    "getxattr",
    "lchown",
    "link",
    "listdir",
    "listxattr",
    "lstat",
    "mkdir",
    "mkfifo",
    "mknod",
    "open",
    "readlink",
    "remove",
    "removexattr",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "setxattr",
    "stat",
    "statvfs",
    "symlink",
    "truncate",
    "unlink",
    "utime",
)
ABILITIES: Final = (
    "supports_dir_fd",
    "supports_effective_ids",
    "supports_fd",
    "supports_follow_symlinks",
)
# The import system, which stays with what is really there; and ourselves.
LEFT_ALONE: Final = ("posix", "_io", "_frozen_importlib", "importlib", "zipimport", "trainprof")


def install(functions: Functions, files: FileFunctions) -> None:
    """Replaces the functions in their modules, and where other modules hold them already."""
    opening = files.open  # one object, as the plain one is
    replaced: dict[int, Any] = {id(_io.open): opening}
    plain: list[Any] = [_io.open]
    for name in NAMES:
        original, ours = getattr(posix, name, None), getattr(functions, name)
        if original is None:
            continue
        replaced[id(original)] = ours
        plain.append(original)  # so that no other object gets its id
        for ability in ABILITIES:
            if original in getattr(os, ability):
                getattr(os, ability).add(ours)
        setattr(os, name, ours)
    builtins.open = opening
    # By the name they are known by: `_io` calls itself `io`.
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not _is_left_alone(name):
            for namespace in _namespaces(module):
                _rebind(namespace, replaced)


def _is_left_alone(name: str) -> bool:
    return name.partition(".")[0] in LEFT_ALONE


def _namespaces(module: ModuleType) -> Iterator[Any]:
    """Yields a module and the classes that it defines."""
    yield module
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value


def _rebind(owner: Any, replaced: dict[int, Any]) -> None:
    for name, value in list(vars(owner).items()):
        held = value.__func__ if isinstance(value, staticmethod) else value
        ours = replaced.get(id(held))
        if ours is not None:
            try:
                setattr(owner, name, staticmethod(ours) if held is not value else ours)
            except (AttributeError, TypeError):
                continue
        elif isinstance(held, FunctionType):
            _rebind_defaults(held, replaced)


def _rebind_defaults(function: FunctionType, replaced: dict[int, Any]) -> None:
    defaults = function.__defaults__ or ()
    if any(id(default) in replaced for default in defaults):
        function.__defaults__ = tuple(replaced.get(id(default), default) for default in defaults)
    named = function.__kwdefaults__ or {}
    for name, default in named.items():
        named[name] = replaced.get(id(default), default)
