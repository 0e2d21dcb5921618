"""Writes the times of lines, and the text of the files that they stand in, as the run goes on."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
import stat
import sys
from dataclasses import dataclass
from time import perf_counter_ns
from types import CodeType
from typing import Any, Final

from trainprof.inside.lines.timer import Label, LineTimer, label
from trainprof.record.event_log import EventLog
from trainprof.record.names import SOURCES
from trainprof.record.schema import Topic

# A killed process loses no more than what came after its last record.
INTERVAL_NS: Final = 1_000_000_000
MAX_SOURCE_BYTES: Final = 4 << 20
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME: Final = 80


@dataclass(slots=True)
class _Function:
    metadata: dict[str, Any]
    number: int | None = None


class LineRecord:
    """This process's line times in its event log: cumulative, the last record of a line counts."""

    def __init__(self, log: EventLog, directory: str, cwd: str) -> None:
        """
        Args:
            log: Of this process.
            directory: The run's.
            cwd: The working directory that relative names of files start from.
        """
        self._log = log
        self._sources = os.path.join(directory, SOURCES)
        self._cwd = cwd
        self._functions: dict[Label, _Function] = {}
        self._saved: dict[str, str | None] = {}
        # What a forked process has from its parent, which is not its own.
        self._inherited: dict[Label, dict[int, tuple[int, int]]] = {}
        self._written: dict[tuple[Label, int], tuple[int, int]] = {}
        self._next_ns = 0

    def add(self, code: CodeType, why: str, name: str) -> None:
        """Takes in a function that is timed.

        Args:
            code: The function's.
            why: Why it was chosen.
            name: Its qualified name, which its code tells from Python 3.11 on.
        """
        if label(code) not in self._functions:
            file = self._path(code.co_filename)
            metadata = {"file": file, "line": code.co_firstlineno, "name": name, "why": why}
            self._functions[label(code)] = _Function(metadata | {"source": self._save(file)})

    def forget(self) -> None:
        """Drops every function that was added: none of them is to be told of from now on."""
        self._functions.clear()

    def after_fork(self, timer: LineTimer) -> None:
        """Starts from zero in a forked process."""
        self._written.clear()
        self._inherited = {
            key: {line: (hits, took) for line, hits, took in rows}
            for key, rows in timer.timings().items()
        }

    @property
    def has_lines(self) -> bool:
        return bool(self._written)

    def is_due(self) -> bool:
        return perf_counter_ns() >= self._next_ns

    def write(self, timer: LineTimer) -> None:
        """Writes the lines that have been reached since the last time."""
        timings = timer.timings()
        for key, function in self._functions.items():
            number = function.number or self._name(function)
            inherited = self._inherited.get(key, {})
            for line, hits, took in timings.get(key, ()):
                hits_before, took_before = inherited.get(line, (0, 0))
                now = (hits - hits_before, took - took_before)
                if now[0] <= 0 or self._written.get((key, line)) == now:
                    continue
                self._written[key, line] = now
                self._log.emit_line(number, line, round(now[1] * timer.unit_ns), now[0])
        self._next_ns = perf_counter_ns() + INTERVAL_NS

    def note_compiled(self) -> None:
        """Says of functions none of whose lines was reached that they have been compiled."""
        reached = {key for key, _ in self._written}
        compiled = {label(code) for code in _compiled_code()}
        for key, function in self._functions.items():
            if key in compiled and key not in reached:
                function.metadata["kind"] = "compiled"
                self._name(function)

    def _name(self, function: _Function) -> int:
        text = json.dumps(function.metadata, ensure_ascii=True)
        function.number = self._log.define(Topic.LINE_FUNCTION, text)
        return function.number

    def _path(self, file: str) -> str:
        return file if file.startswith("<") else os.path.join(self._cwd, file)

    def _save(self, file: str) -> str | None:
        """Keeps the text of a file as it is now, and returns its name in the run's sources/."""
        if file not in self._saved:
            try:
                self._saved[file] = self._save_new(file)
            except (OSError, ValueError):
                self._saved[file] = None
        return self._saved[file]

    def _save_new(self, file: str) -> str:
        text = read_source(file)
        digest = hashlib.sha256(text).hexdigest()[:12]
        stem, extension = os.path.splitext(os.path.basename(file))
        name = f"{_NOT_IN_A_NAME.sub('_', stem)[:_MAX_NAME]}-{digest}"
        name += _NOT_IN_A_NAME.sub("_", extension)[:_MAX_NAME]
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._sources, 0o700)
        path = os.path.join(self._sources, name)
        if os.path.lexists(path):  # another process of the run was first
            return name
        temporary = f"{path}.{os.getpid()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _NO_LINK
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as saved:
            saved.write(text)
        os.replace(temporary, path)
        return name


def read_source(file: str) -> bytes:
    """Returns the text of a plain file; a pipe is not opened, as it can be read only once.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no file, or too large to keep.
    """
    status = os.stat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE_BYTES:
        raise ValueError(file)
    with open(file, "rb") as source:
        return source.read(MAX_SOURCE_BYTES)


def _compiled_code() -> list[CodeType]:
    """Returns the code that torch.compile and torch.jit.script have taken over."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    seen = getattr(getattr(compiler, "input_codes", None), "seen", ())
    codes = [reference() for reference in list(seen)]
    scripted = getattr(sys.modules.get("torch.jit._state"), "_jit_caching_layer", ())
    codes += [getattr(inspect.unwrap(function), "__code__", None) for function in list(scripted)]
    return [code for code in codes if isinstance(code, CodeType)]
