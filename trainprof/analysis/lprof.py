"""line_profiler's .lprof files: pickles, which are read and written here without unpickling.

A pickle is a program. This one runs it on a machine of its own that knows numbers, texts, tuples,
lists and dicts, and nothing that could be called: the one class that an .lprof names is compared as
text, never looked up.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import pickletools
import stat
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from trainprof.analysis.facts import MAX_NUMBER
from trainprof.record.errors import TrainprofError

# Some 400,000 timed lines. What a file of this size makes us hold stays under half a GB.
MAX_BYTES: Final = 1 << 23
MAX_OPERATIONS: Final = 1 << 21
MAX_ROWS: Final = 1 << 20
# By line_profiler 5, by 3 and 4, and by the oldest.
_CLASSES: Final = frozenset(
    f"{module} LineStats"
    for module in (
        "line_profiler.line_profiler",
        "line_profiler._line_profiler",
        "line_profiler",
        "_line_profiler",
    )
)
# Every version of line_profiler has the class here.
_WRITTEN_CLASS: Final = b"cline_profiler._line_profiler\nLineStats\n"
_PICKLE_PROTOCOL: Final = 2
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW

Place = tuple[str, int, str]
Row = tuple[int, int, float]


class ForeignLprof(TrainprofError):
    slug: ClassVar[str] = "lprof-refused"
    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class LineStats:
    """What an .lprof holds.

    Attributes:
        timings: (file, first line, function) to rows of (line, hits, time in units).
        unit_s: A unit, in seconds.
    """

    timings: Mapping[Place, list[Row]]
    unit_s: float


def read_lprof(path: Path) -> tuple[LineStats, int]:
    """Returns the times, and when the file was written, in ns since the epoch.

    Raises:
        ForeignLprof: If it holds anything but line_profiler's times, or too many.
        OSError: If it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(path, "it is no plain file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _refused(path, f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return line_stats(content), status.st_mtime_ns
    except Refused as error:
        raise _refused(path, str(error)) from None


def lprof_bytes(stats: LineStats) -> bytes:
    """Returns the times as `python -m line_profiler` reads them."""
    state = {"timings": dict(stats.timings), "unit": stats.unit_s}
    pickled = pickle.dumps(state, _PICKLE_PROTOCOL)
    opening, values = pickled[:2], pickled[2:-1]
    new_object = _WRITTEN_CLASS + pickle.EMPTY_TUPLE + pickle.NEWOBJ
    return opening + new_object + values + pickle.BUILD + pickle.STOP


def write_lprof(path: Path, stats: LineStats) -> None:
    """Writes the times, whole or not at all (temporary file, then rename).

    Raises:
        OSError: If they cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        descriptor = os.open(temporary, _NEW_FILE, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(lprof_bytes(stats))
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class Refused(ValueError):
    """The content is not what an .lprof holds; the text says why."""


def line_stats(content: bytes) -> LineStats:
    """Reads the content of an .lprof.

    Raises:
        Refused: If it is anything else.
    """
    machine = _Machine()
    try:
        # Python warns of escapes in texts that nobody wrote on purpose.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            operations = pickletools.genops(io.BytesIO(content))
            for number, (operation, argument, _) in enumerate(operations):
                if number >= MAX_OPERATIONS:
                    raise Refused("it holds too much")
                machine.do(operation.name, argument)
        value = machine.result()
    except Refused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Refused("it is damaged, or no pickle") from error
    return _checked(value)


class _Class:
    """LineStats as the pickle names it."""


class _Object:
    """An instance of it: nothing but its state."""

    def __init__(self) -> None:
        self.state: Any = None


class _Mark:
    pass


class _Machine:
    """Does a pickle's operations, as far as an .lprof needs them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._class, self._mark = _Class(), _Mark()
        push = self._stack.append
        self._operations: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _: None),
            **dict.fromkeys(("BININT", "BININT1", "BININT2", "INT"), self._number),
            **dict.fromkeys(("LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"), self._number),
            **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"), push),
            **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), lambda at: push(self._memo[int(at)])),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT"), lambda at: self._keep(int(at))),
            "MEMOIZE": lambda _: self._keep(len(self._memo)),
            "MARK": lambda _: push(self._mark),
            "EMPTY_TUPLE": lambda _: push(()),
            "EMPTY_LIST": lambda _: push([]),
            "EMPTY_DICT": lambda _: push({}),
            "TUPLE1": lambda _: push(tuple(self._taken(1))),
            "TUPLE2": lambda _: push(tuple(self._taken(2))),
            "TUPLE3": lambda _: push(tuple(self._taken(3))),
            "TUPLE": lambda _: push(tuple(self._taken_to_mark())),
            "LIST": lambda _: push(self._taken_to_mark()),
            "DICT": lambda _: push(self._filled({}, self._taken_to_mark())),
            "APPEND": lambda _: self._extend(self._taken(1)),
            "APPENDS": lambda _: self._extend(self._taken_to_mark()),
            "SETITEM": lambda _: self._set(self._taken(2)),
            "SETITEMS": lambda _: self._set(self._taken_to_mark()),
            "GLOBAL": self._name_class,
            "STACK_GLOBAL": lambda _: self._name_class(" ".join(self._taken(2))),
            "NEWOBJ": lambda _: self._make(),
            "BUILD": lambda _: self._build(),
        }

    def do(self, operation: str, argument: Any) -> None:
        known = self._operations.get(operation)
        if known is None:
            raise Refused(f"it asks for the operation {operation}")
        known(argument)

    def result(self) -> Any:
        (value,) = self._stack
        return value

    def _number(self, value: float) -> None:
        if isinstance(value, bool) or not -MAX_NUMBER < value < MAX_NUMBER:
            raise Refused("it holds a number that nothing can measure")
        self._stack.append(value)

    def _keep(self, at: int) -> None:
        self._memo[at] = self._stack[-1]

    def _taken(self, count: int) -> list[Any]:
        if len(self._stack) < count or self._mark in self._stack[-count:]:
            raise Refused("it is damaged, or no pickle")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _taken_to_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not self._mark:
            at -= 1
            if at < 0:
                raise Refused("it is damaged, or no pickle")
        taken = self._stack[at + 1 :]
        del self._stack[at:]
        return taken

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise Refused("it is damaged, or no pickle")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict:
            raise Refused("it is damaged, or no pickle")
        self._filled(target, items)

    def _filled(self, target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
        if len(items) % 2:
            raise Refused("it is damaged, or no pickle")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A tuple of tuples of tuples could take for ever to hash.
            if not (isinstance(key, str) or _is_place(key)):
                raise Refused("it is not line_profiler's")
            target[key] = value
        return target

    def _name_class(self, name: str) -> None:
        if name not in _CLASSES:
            raise Refused(f"it asks for {'.'.join(name.split())[:100]}")
        self._stack.append(self._class)

    def _make(self) -> None:
        named, arguments = self._taken(2)
        if named is not self._class or arguments != ():
            raise Refused("it is not line_profiler's")
        self._stack.append(_Object())

    def _build(self) -> None:
        target, state = self._taken(2)
        if type(target) is not _Object or target.state is not None:
            raise Refused("it is not line_profiler's")
        target.state = state
        self._stack.append(target)


def _checked(value: Any) -> LineStats:
    state = value.state if type(value) is _Object else None
    if type(state) is not dict:
        raise Refused("it is not line_profiler's")
    timings, unit_s = state.get("timings"), state.get("unit")
    if type(timings) is not dict or not isinstance(unit_s, float) or not 0 < unit_s < math.inf:
        raise Refused("it is not line_profiler's")
    count = 0
    for place, rows in timings.items():
        if not _is_place(place) or type(rows) is not list:
            raise Refused("it is not line_profiler's")
        # One list may stand under many places.
        count += len(rows)
        if count > MAX_ROWS:
            raise Refused(f"it holds more than {MAX_ROWS} lines")
        if not all(map(_is_row, rows)):
            raise Refused("it is not line_profiler's")
    return LineStats(timings, unit_s)


def _is_place(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3:
        return False
    file, line, name = value
    return type(file) is str and type(line) is int and line >= 0 and type(name) is str


def _is_row(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3:
        return False
    line, hits, time = value
    return type(line) is int and line >= 0 and type(hits) is int and hits >= 0 and _is_number(time)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _refused(path: Path, why: str) -> ForeignLprof:
    return ForeignLprof(
        f"{path} is not shown: {why}",
        hint="an .lprof file is one that kernprof -l or trainprof lines --lprof wrote",
    )
