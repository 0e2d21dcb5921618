"""Times lines in this process: which functions, when, and how they are recorded.

Only functions under `@profile` are wrapped. For all others line_profiler gets their code object,
compiled from the file's text before it runs: it recognizes lines by the bytes of the code.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from time import perf_counter_ns
from types import CodeType, ModuleType
from typing import Any, Final

from trainprof.inside.lines.choice import (
    PROFILE,
    SAMPLER,
    Choice,
    LoaderFunctions,
    choose,
    functions_in,
)
from trainprof.inside.lines.timer import (
    Label,
    LineTimer,
    label,
    overhead_ns,
    replace_profile_decorator,
)
from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.patching.patcher import Patcher, Wrapped, called_around, hide_our_frame
from trainprof.inside.patching.static_lookup import stored
from trainprof.inside.session import Session
from trainprof.record.event_log import EventLog
from trainprof.record.files import contents_of
from trainprof.record.names import SOURCES, is_named
from trainprof.record.schema import Topic

BY_NAME: Final = "-f"
# For spawned and forkserver children: the script that they import, and whether it has `@profile`.
ENV_SCRIPT: Final = "TRAINPROF_LINES_SCRIPT"
ENV_BY_HAND: Final = "TRAINPROF_LINES_BY_HAND"
_MP_MAIN: Final = "__mp_main__"
# Line times are recorded this often: a killed process loses what came after.
INTERVAL_NS: Final = 1_000_000_000
MAX_SOURCE_BYTES: Final = 4 << 20
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME: Final = 80


class Lines:
    """Times lines in one process; the script sees `profile` under that name."""

    def __init__(
        self, options: Mapping[str, Any], log: EventLog, *, directory: str, cwd: str
    ) -> None:
        self._log = log
        self._patterns = [_pattern(text) for text in options.get("functions") or ()]
        self._only = options.get("only")
        self._is_by_hand = bool(os.environ.get(ENV_BY_HAND))
        self._record = LineRecord(log, directory, cwd)
        self._sites = CallSites(log, cwd)
        self._wanted: dict[str, dict[str, str]] = {}
        self._main_module: str | None = None
        # Functions were chosen that the main thread runs outside of a fetch.
        self._wants_thread = False
        self._in_worker = False
        self._is_broken = False
        self.profile = LineTimer(
            added=self._decorated, left=self.write_if_due, stood_down=self._unavailable
        )
        self.profile.is_off = not self._is_wanted_here()

    def install(self) -> None:
        """Chooses functions of the script; call it before the script runs."""
        replace_profile_decorator(self.profile)
        self._guard(self._begin)

    def around_import(self, spec: ModuleSpec) -> AbstractContextManager[None] | None:
        """Chooses functions of a module about to be imported; pauses during library imports."""
        self._guard(self._choose_from, spec.name, spec.origin, spec.parent or "")
        is_library = spec.origin is not None and not self._is_users(spec.origin, spec.name)
        return self.profile.paused() if is_library and self.profile.is_on() else None

    def define_in_children(self, runpy: ModuleType) -> None:
        """Defines `profile` in the script that a spawned or forkserver child imports."""
        if not _is_child_of_multiprocessing():
            return

        def make(original: Wrapped) -> Wrapped:
            def run_path(
                path_name: Any,
                init_globals: dict[str, Any] | None = None,
                run_name: str | None = None,
            ) -> Any:
                if run_name == _MP_MAIN:
                    init_globals = {"profile": self.profile, **(init_globals or {})}
                try:
                    return original(path_name, init_globals, run_name)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return run_path

        patcher = Patcher("lines", self._failed, lambda _, reason: self._unavailable(reason))
        patcher.around_if_there(make, (runpy, "run_path"))

    def write_if_due(self) -> None:
        if self._record.is_due():
            self._guard(self._write)

    def finish(self) -> None:
        self._guard(self._finish)

    def after_fork(self) -> None:
        self._guard(self._record.after_fork, self.profile)

    def enter_worker(self) -> None:
        if self._in_worker:
            return
        self._in_worker = True
        if not self._is_wanted_here():
            self.profile.switch_off()
        elif self._only:
            self.profile.is_off = False

    def enter_fetch(self) -> None:
        """Begins timing what a loader runs, unless the user chose functions by `@profile`."""
        if not self._is_by_hand or self._patterns:
            self.profile.enable_by_count()

    def leave_fetch(self) -> None:
        if not self._is_by_hand or self._patterns:
            self.profile.disable_by_count()
        self.write_if_due()

    def choose_of_loader(self, dataset: Any, collate: Any, *samplers: Any) -> None:
        if not self._patterns and not self._is_by_hand:
            self._guard(self._choose_of_loader, dataset, collate, samplers)

    def _is_wanted_here(self) -> bool:
        return self._only is None or (self._only == "workers") == self._in_worker

    def _begin(self) -> None:
        if self._patterns:
            for name, module in list(sys.modules.items()):
                if name != "__main__":
                    self._choose_from(name, stored(module).get("__file__"))
        words = list(getattr(sys, "orig_argv", ()))
        script = sys.argv[0] if getattr(sys, "argv", None) else ""
        if script == "-m" and "-m" in words[:-1]:
            self._main_module = words[words.index("-m") + 1]
        elif script == "-c":
            if _is_child_of_multiprocessing():
                self._choose_from("__main__", os.environ.get(ENV_SCRIPT))
        elif script:
            path = os.path.abspath(script)
            os.environ[ENV_SCRIPT] = path
            self._choose_from("__main__", path)

    def _choose_from(self, module: str, path: str | None, package: str = "") -> None:
        """Chooses functions of a file and times them from now on."""
        names = {module}
        if module in ("__main__", self._main_module) and path is not None:
            names |= {"__main__", os.path.splitext(os.path.basename(path))[0]}
        is_users = path is not None and self._is_users(path, module)
        patterns = [
            function
            for holder, function in self._patterns
            if any(holder and fnmatchcase(name, holder) for name in names)
            or (not holder and is_users)
        ]
        if path is None or not (patterns or (is_users and not self._patterns)):
            return
        try:
            text = read_source(path)
            tree, code = _parsed(text, path)
        except (OSError, ValueError, SyntaxError, RecursionError):
            return
        if self._patterns:
            self._choose_by_name(code, patterns)
            return
        if not self._is_by_hand:
            called = {k: v for name in names for k, v in self._wanted.get(name, {}).items()}
            self._take(choose(tree, package=package, called=called), code)

    def _choose_by_name(self, code: CodeType, patterns: list[str]) -> None:
        for (name, _), function in functions_in(code):
            if name.rpartition(".")[2].startswith("<"):  # a comprehension: part of its function
                continue
            if any(is_named(name, pattern) for pattern in patterns):
                self._add(function, BY_NAME, name)
                self._wants_thread = True
        self._keep_on()

    def _take(self, choice: Choice, code: CodeType) -> None:
        for place, function in functions_in(code):
            why = choice.why.get(place)
            if why is not None:
                self._add(function, why, place[0])
                self._wants_thread = True
        for (module, name), why in choice.wanted.items():
            self._wanted.setdefault(module, {}).setdefault(name, why)
        self._keep_on()

    def _choose_of_loader(self, dataset: Any, collate: Any, samplers: tuple[Any, ...]) -> None:
        functions = LoaderFunctions(self._sites.is_user_code, dataset, collate, *samplers)
        for function, why in functions.all():
            self._add(function.__code__, why, function.__qualname__)
            self._wants_thread |= why is SAMPLER  # samplers run outside of fetches
        if samplers:
            self._keep_on()

    def _add(self, code: CodeType, why: str, name: str) -> None:
        if not self.profile.add_code(code):
            raise RuntimeError("this line_profiler can only time functions under @profile")
        self._record.add(code, why, name)

    def _decorated(self, code: CodeType, name: str) -> None:
        self._leave_it_to_the_user()
        self._guard(lambda: self._record.add(code, PROFILE, name))

    def _leave_it_to_the_user(self) -> None:
        """Times only functions under `@profile` from now on."""
        if self._is_by_hand:
            return
        self._is_by_hand = True
        os.environ[ENV_BY_HAND] = "1"
        if not self._patterns:
            self._wants_thread = False
            self._record.forget()
            self.profile.leave_thread()

    def _keep_on(self) -> None:
        """Times lines on the main thread from now on, if any was chosen for it."""
        if (
            self._wants_thread
            and self._is_wanted_here()
            and not self.profile.enable_count
            and threading.current_thread() is threading.main_thread()
        ):
            self.profile.enable_by_count()

    def _write(self) -> None:
        self.profile.check_tracer()
        self._record.write(self.profile)

    def _finish(self) -> None:
        self._write()
        self.profile.switch_off()
        self._record.note_compiled()
        if self._record.has_lines and not self.profile.has_stood_down:
            cost = overhead_ns()
            if cost is not None:
                self._log.note(Topic.ENVIRONMENT, {"line_overhead_ns": round(cost, 1)})

    def _is_users(self, path: str, module: str) -> bool:
        # A torch outside of site-packages is not known as a library before its import.
        return module.partition(".")[0] != "torch" and self._sites.is_user_file(path)

    def _unavailable(self, reason: str) -> None:
        self._log.note(Topic.PROBE_UNAVAILABLE, {"probe": "lines", "reason": reason})

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Runs our code; its first error is recorded and ends line timing."""
        if self._is_broken:
            return
        try:
            action(*arguments)
        except Exception as error:
            self._failed("lines", error)

    def _failed(self, probe: str, error: BaseException) -> None:
        self._is_broken = self.profile.is_off = True
        fault = {"probe": probe, "error": f"{type(error).__name__}: {error}"}
        self._log.note(Topic.PROBE_FAILED, fault)


@dataclass(slots=True)
class _Function:
    metadata: dict[str, Any]
    number: int | None = None


class LineRecord:
    """Writes line times into the event log: cumulative, the last record of a line counts."""

    def __init__(self, log: EventLog, directory: str, cwd: str) -> None:
        self._log = log
        self._sources = os.path.join(directory, SOURCES)
        self._cwd = cwd
        self._functions: dict[Label, _Function] = {}
        self._saved: dict[str, str | None] = {}
        # Times that a forked process has from its parent.
        self._inherited: dict[Label, dict[int, tuple[int, int]]] = {}
        self._written: dict[tuple[Label, int], tuple[int, int]] = {}
        self._next_ns = 0

    def add(self, code: CodeType, why: str, name: str) -> None:
        """Adds a timed function, why it was chosen, and its qualified name."""
        if label(code) not in self._functions:
            file = self._path(code.co_filename)
            metadata = {"file": file, "line": code.co_firstlineno, "name": name, "why": why}
            self._functions[label(code)] = _Function(metadata | {"source": self._save(file)})

    def forget(self) -> None:
        """Drops all functions: no more of their lines are recorded."""
        self._functions.clear()

    def after_fork(self, timer: LineTimer) -> None:
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
        """Records which functions without line times were compiled."""
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
        """Copies a file's text as it is now; returns the copy's name in the run's sources/."""
        if file not in self._saved:
            self._saved[file] = None
            with contextlib.suppress(OSError, ValueError):
                self._saved[file] = self._save_new(file)
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
        if os.path.lexists(path):  # saved by another process of the run
            return name
        temporary = f"{path}.{os.getpid()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _NO_LINK
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as saved:
            saved.write(text)
        os.replace(temporary, path)
        return name


def read_source(file: str) -> bytes:
    """Returns the text of a regular file; raises ValueError for a pipe, which can't be re-read."""
    text = contents_of(file, MAX_SOURCE_BYTES)
    if text is None:
        raise ValueError(file)
    return text


def _compiled_code() -> list[CodeType]:
    """Returns the code objects that torch.compile and torch.jit.script compiled."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    seen = getattr(getattr(compiler, "input_codes", None), "seen", ())
    codes = [reference() for reference in list(seen)]
    scripted = getattr(sys.modules.get("torch.jit._state"), "_jit_caching_layer", ())
    codes += [getattr(inspect.unwrap(function), "__code__", None) for function in list(scripted)]
    return [code for code in codes if isinstance(code, CodeType)]


class LinesProbe:
    """Hands loaders to `Lines` and lets it write its records in time."""

    name = "lines"

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._lines.profile.let_dynamo_skip_wrappers()
        created = patcher.guarded(self._loader_created)
        fetches = patcher.guarded(self._enter_fetcher)
        utils = "torch.utils.data._utils"
        fetch = sys.modules.get(f"{utils}.fetch")
        self._worker: Any = sys.modules.get(f"{utils}.worker")
        base = getattr(sys.modules.get("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
        names = ("_IterableDatasetFetcher", "_MapDatasetFetcher", "_BaseDatasetFetcher")
        stream, plain, fetcher = (getattr(fetch, name, None) for name in names)
        name = "_engine_run_backward"

        def enter(*_: Any, **__: Any) -> None:
            self._lines.enter_fetch()

        def write(*_: Any, **__: Any) -> None:
            self._lines.write_if_due()

        around, leave = patcher.around_if_there, self._lines.leave_fetch
        for place in ((plain, "fetch"), (stream, "fetch"), (stream, "__init__")):
            around(called_around(enter, leave), place)
        around(called_around(lambda *args, **kwargs: fetches(args, kwargs)), (fetcher, "__init__"))
        around(called_around(lambda *args, **kwargs: created(args, kwargs)), (base, "__init__"))
        around(called_around(write), (base, "__next__"))
        around(called_around(write), (torch.autograd, name), (torch.autograd.graph, name))

    def _loader_created(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[1] if len(args) > 1 else kwargs.get("loader")
        names = ("dataset", "collate_fn", "sampler", "batch_sampler")
        self._lines.choose_of_loader(*map(getattr(loader, "__dict__", {}).get, names))

    def _enter_fetcher(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if getattr(self._worker, "_worker_info", None) is not None:
            self._lines.enter_worker()
        dataset = args[1] if len(args) > 1 else kwargs.get("dataset")
        collate = args[3] if len(args) > 3 else kwargs.get("collate_fn")
        self._lines.choose_of_loader(dataset, collate)


def _is_child_of_multiprocessing() -> bool:
    return any("multiprocessing" in word for word in getattr(sys, "orig_argv", ()))


def _pattern(text: str) -> tuple[str, str]:
    """Returns the patterns of module and function; module "" means any user file."""
    module, colon, function = str(text).rpartition(":")
    return (module or "*", function) if colon else ("", function)


def _parsed(text: bytes, path: str) -> tuple[ast.Module, CodeType]:
    """Parses and compiles a file without warnings; Python itself issues them later.

    `warnings.simplefilter` would clear the registries, and warnings would be shown twice.
    """
    filters = warnings.filters
    warnings.filters = [("ignore", None, Warning, None, 0)]
    try:
        return ast.parse(text, path), compile(text, path, "exec", dont_inherit=True)
    finally:
        warnings.filters = filters
