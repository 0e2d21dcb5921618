"""Finds what a loader's workers cannot share, or cannot be sent."""

from __future__ import annotations

import copyreg
import functools
import io
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.static_lookup import of_class, stored

# Limits of the walk: attributes of an object, and items of a list or dict.
_MAX_ATTRIBUTES: Final = 64
_MAX_ITEMS: Final = 8
# Nesting depth that reaches a dataset's parts: a transform in a list of transforms.
_MAX_DEPTH: Final = 4
# Depth at which a reader, or a wrapped dataset, holds a file.
_FILE_DEPTH: Final = 2
_MAX_OBJECTS: Final = 512
_MOST_NAMED: Final = 4
# Classes with a file offset or connection that forked processes would share.
_OPEN: Final = {
    "_io": ("BufferedReader", "BufferedRandom", "FileIO", "TextIOWrapper"),
    "zipfile": ("ZipFile",),
    "tarfile": ("TarFile",),
    "numpy": ("NpzFile",),
    "h5py": ("File", "Group", "Dataset"),
    "netCDF4": ("Dataset", "Group", "Variable"),
    "tables": ("File",),
    "rasterio": ("DatasetReader",),
    "cv2": ("VideoCapture",),
    "decord": ("VideoReader", "AudioReader"),
    "av": ("InputContainer",),
    "lmdb": ("Environment",),
    "sqlite3": ("Connection", "Cursor"),
    "psycopg": ("Connection", "Cursor"),
    "psycopg2": ("connection", "cursor"),
    "pymysql": ("Connection", "Cursor"),
}
_HOLDERS: Final = frozenset(map(id, (list, tuple, dict, set, frozenset, deque)))
_MANY_OBJECTS: Final = 10_000
# Random generators, whose state each worker gets a copy of.
_GENERATORS: Final = {
    "numpy": ("Generator", "RandomState"),
    "random": ("Random",),
    "torch": ("Generator",),
}
# A loader's attributes that are sent to workers.
_SENT: Final = ("dataset", "collate_fn", "worker_init_fn")
_LOCKS: Final = ("lock", "RLock")
# Methods by which a dataset uses its parts: another dataset, a transform, a module.
_CALLED: Final = ("__getitem__", "__iter__", "__call__", "forward")
_PICKLING_METHODS: Final = ("__reduce__", "__reduce_ex__", "__getstate__")


def open_files(dataset: Any) -> list[str]:
    """Returns names of a dataset's open files and connections, which processes cannot share."""
    held = _walk("", dataset, _FILE_DEPTH, lambda thing: not _is_open(type(thing)))
    names = (
        f"{name} ({type(thing).__name__})"
        for name, thing in held
        if _is_open(type(thing))
        # Not text files opened for writing, such as logs.
        and not (type(thing) is io.TextIOWrapper and type(thing.buffer) is io.BufferedWriter)
    )
    return list(itertools.islice(names, _MOST_NAMED))


def python_objects(dataset: Any) -> list[str]:
    """Returns a dataset's attributes with many Python objects, and their number.

    Reading an object changes its reference count, so forked workers copy its memory page.
    """
    held = _walk("", dataset, _FILE_DEPTH, lambda thing: not _is_open(type(thing)))
    names = (
        f"{name} ({type(thing).__name__} of {len(thing):,})".lstrip()
        for name, thing in held
        if id(type(thing)) in _HOLDERS and len(thing) >= _MANY_OBJECTS
    )
    return list(itertools.islice(names, _MOST_NAMED))


def generators(dataset: Any, is_own: Callable[[type], bool]) -> list[str]:
    """Returns attributes of a dataset's objects that are random generators, equal in all workers.

    Only of the user's classes: libraries seed them per worker.
    """
    held = _walk("", dataset, _MAX_DEPTH, lambda thing: not _is_open(type(thing)))
    names = (
        f"{name}.{attribute}".lstrip(".")
        for name, thing in held
        if is_own(type(thing))
        for attribute, value in attributes_of(thing)
        if type(value).__name__ in _GENERATORS.get(type(value).__module__.partition(".")[0], ())
    )
    return list(itertools.islice(names, _MOST_NAMED))


def holds_code(dataset: Any, is_user_code: Callable[[CodeType], bool]) -> bool:
    """Returns whether a dataset holds a function of the user, or an object that calls one."""
    held = _walk("", dataset, _MAX_DEPTH, lambda thing: not _is_open(type(thing)))
    calls = (
        thing if type(thing) is FunctionType else of_class(type(thing), name)
        for _, thing in held
        if thing is not dataset
        for name in _CALLED
    )
    return any(type(call) is FunctionType and is_user_code(call.__code__) for call in calls)


def is_on_device(batch: Any, tensor: Any) -> bool:
    """Returns whether one of a batch's first plain tensors is on a device."""
    held = _walk("", batch, _MAX_DEPTH, lambda thing: type(thing) is not tensor)
    return any(type(thing) is tensor and not thing.is_cpu for _, thing in held)


def unpicklable(loader: Any) -> list[str]:
    """Returns the parts of a loader that cannot be pickled for a worker that is not forked."""

    def enters(thing: Any) -> bool:
        return _unpicklable_kind(thing) is None and not _has_own_pickling(type(thing))

    names = (
        f"{name} ({why})"
        for root in _SENT
        for name, thing in _walk(root, getattr(loader, root, None), _MAX_DEPTH, enters)
        if (why := _unpicklable_kind(thing)) is not None
    )
    return list(itertools.islice(names, _MOST_NAMED))


def _walk(
    name: str, thing: Any, depth: int, enters: Callable[[Any], bool]
) -> Iterator[tuple[str, Any]]:
    """Yields (name, object) for an object and its parts, each once, breadth first."""
    seen: set[int] = set()
    waiting = deque([(name, thing, depth)])
    while waiting and len(seen) < _MAX_OBJECTS:
        name, thing, depth = waiting.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield name, thing
        if depth > 0 and enters(thing):
            waiting += [(part, inner, depth - 1) for part, inner in parts_of(name, thing)]


def _unpicklable_kind(thing: Any) -> str | None:
    """Returns what an object is if it cannot be pickled, else None."""
    kind = type(thing)
    if kind is FunctionType:
        return _unpicklable_by_name(thing.__qualname__, "function")
    if _is_open(kind):
        return f"an open {kind.__name__}"
    if kind is GeneratorType or kind is ModuleType:
        return f"a {kind.__name__}"
    if kind.__module__ == "_thread" and kind.__name__ in _LOCKS:
        return "a lock"
    if issubclass(kind, type):
        return _unpicklable_by_name(thing.__qualname__, "class")
    return None if _has_own_pickling(kind) else _unpicklable_by_name(kind.__qualname__, "class")


def _unpicklable_by_name(name: str, what: str) -> str | None:
    if name.rpartition(".")[2] == "<lambda>":
        return "a lambda"
    return f"a local {what}" if "<locals>" in name else None


def parts_of(name: str, thing: Any) -> list[tuple[str, Any]]:
    """Returns the named parts of an object; [] for a class or function."""
    kind = type(thing)
    if kind is MethodType:
        return [(f"{name}.__self__", thing.__self__)]
    if kind is functools.partial:
        inner = (thing.func, *thing.args, *thing.keywords.values())
        return [(name, part) for part in inner]
    items = _items(thing)
    if items:
        return [(f"{name}[{place}]", item) for place, item in enumerate(items)]
    return [(f"{name}.{held}".lstrip("."), value) for held, value in attributes_of(thing)]


def _has_own_pickling(kind: type) -> bool:
    """Returns whether a class defines how its objects are pickled."""
    if kind is functools.partial:  # pickled with its parts
        return False
    if kind in copyreg.dispatch_table:
        return True
    return any(
        name in vars(base)
        for base in kind.__mro__
        if base is not object
        for name in _PICKLING_METHODS
    )


def attributes_of(thing: Any) -> list[tuple[str, Any]]:
    """Returns an object's first stored attributes, [] for a class, function or module."""
    # Not `isinstance`, which reads the object's `__class__`.
    if issubclass(type(thing), (type, FunctionType, ModuleType)):
        return []
    return list(itertools.islice(stored(thing).items(), _MAX_ATTRIBUTES))


def _items(thing: Any) -> list[Any]:
    """Returns the first items of a list, tuple or dict, [] for other objects."""
    kind = type(thing)
    if kind is dict:
        return list(itertools.islice(thing.values(), _MAX_ITEMS))
    # Not `in`: a metaclass of the script may define `==`.
    return list(thing[:_MAX_ITEMS]) if kind is list or kind is tuple else []


def _is_open(kind: type) -> bool:
    return kind.__name__ in _OPEN.get(kind.__module__.partition(".")[0], ())


def start_method(context: Any) -> str:
    """Returns how a loader's workers are or would be started; `context` is the loader's."""
    if context is not None and hasattr(context, "get_start_method"):
        return str(context.get_start_method())
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return "fork"
    method = multiprocessing.get_start_method(allow_none=True)
    # The first is the default.
    return str(method or multiprocessing.get_all_start_methods()[0])
