"""Starts the recording: defines `@profile`, and attaches probes once torch is imported."""

from __future__ import annotations

import atexit
import builtins
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns, time_ns
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainprof.inside.start.import_hook import AfterImport
from trainprof.record.files import too_few_open_files
from trainprof.record.names import ENV_DIRECTORY, ENV_OPTIONS, EVENTS

if TYPE_CHECKING:
    from trainprof.inside.lines.probe import Lines
    from trainprof.inside.session import Session
    from trainprof.inside.stacks.early import EarlyStacks
    from trainprof.record.event_log import EventLog

# A helper process that runs no user code.
HELPER_OF_MULTIPROCESSING: Final = "multiprocessing.resource_tracker"
# multiprocessing's finalizer with the lowest priority runs last.
LAST_FINALIZER: Final = -(1 << 30)

T = TypeVar("T")


class IdleProfile:
    """A stand-in for line_profiler's profiler object that times nothing."""

    def __call__(self, function: T) -> T:
        return function

    wrap_callable = __call__

    def __enter__(self) -> IdleProfile:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def _do_nothing(self, *args: object, **kwargs: object) -> None:
        return None

    add_function = enable = disable = enable_by_count = disable_by_count = _do_nothing
    dump_stats = print_stats = _do_nothing

    def _add_none(self, *args: object, **kwargs: object) -> int:
        return 0

    add_callable = add_class = add_module = _add_none

    def get_stats(self) -> SimpleNamespace:
        return SimpleNamespace(timings={}, unit=1e-6)

    def run(self, command: str) -> IdleProfile:
        names = sys.modules["__main__"].__dict__
        return self.runctx(command, names, names)

    def runctx(self, command: str, globals: Any, locals: Any) -> IdleProfile:
        exec(command, globals, locals)
        return self

    def runcall(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return function(*args, **kwargs)


class ScriptProcess:
    """This process's part in a run; created once, by `start`."""

    def __init__(self, directory: str, options: dict[str, object]) -> None:
        self._directory = directory
        self._options = options
        self._is_script = os.getppid() == options.get("supervisor_pid")
        self._has_ended = False
        try:
            self._cwd = os.getcwd()
        except OSError:  # the directory was removed
            self._cwd = os.sep
        self._log: EventLog | None = None
        # The script needs all of them; the supervisor reports that nothing is recorded.
        self._is_recording = too_few_open_files() is None
        self._watch_writes()
        self._lines = self._time_lines() if self._is_recording else None
        self.session: Session | None = None
        self._early: EarlyStacks | None = None

    def install(self) -> None:
        # As in kernprof, in builtins for all modules.
        if self._lines is None:
            if self._options.get("profile") or self._options.get("lines"):
                builtins.profile = IdleProfile()  # type: ignore[attr-defined]
            if self._is_recording:
                AfterImport({"torch": self._on_torch}).install()
                if self._is_script and self.session is None:
                    self._sample_stacks()
        else:
            self._install_lines(self._lines)
        os.register_at_fork(after_in_child=self._after_fork)
        if self._is_script or self._lines is not None:
            atexit.register(self._on_exit)

    def _sample_stacks(self) -> None:
        try:
            from trainprof.inside.stacks.early import EarlyStacks

            self._early = EarlyStacks()
            self._early.begin()
        except Exception as error:
            self._report("stacks", error)

    def _time_lines(self) -> Lines | None:
        options = self._options.get("lines")
        words = getattr(sys, "orig_argv", ())
        if not isinstance(options, dict) or any(HELPER_OF_MULTIPROCESSING in w for w in words):
            return None
        try:
            from trainprof.inside.lines.probe import Lines

            return Lines(options, self._open_log(), directory=self._directory, cwd=self._cwd)
        except ImportError as error:
            reason = f"your Python cannot import line_profiler: {error}"
            self._note("PROBE_UNAVAILABLE", {"probe": "lines", "reason": reason})
        except Exception as error:
            self._report("lines", error)
        return None

    def _install_lines(self, lines: Lines) -> None:
        builtins.profile = lines.profile  # type: ignore[attr-defined]
        # For `if 'profile' not in globals()`.
        sys.modules["__main__"].__dict__.setdefault("profile", lines.profile)
        callbacks: dict[str, Callable[[ModuleType, int, int], None]] = {
            "torch": self._on_torch,
            "multiprocessing.util": lambda *_: self._watch_multiprocessing(),
            "runpy": lambda runpy, *_: lines.define_in_children(runpy),
        }
        AfterImport(callbacks, lines.around_import).install()
        lines.install()

    def _watch_writes(self) -> None:
        """Records what a trial without a sandbox writes outside of its scratch directory."""
        trial = self._options.get("trial")
        scratch = trial.get("scratch") if isinstance(trial, dict) else None
        if scratch is None:
            return
        try:
            from trainprof.inside.trial.written_files import WrittenFiles
            from trainprof.record.schema import Kind

            def record(path: str, was_there: bool) -> None:
                """Records it at once, even if the process records nothing else."""
                self._note("TRIAL", {"written": [path], "was_there": was_there})
                log = self._open_log()
                if not log.is_open:
                    log.emit(Kind.CLOCK, perf_counter_ns(), time_ns())

            WrittenFiles(record, (str(scratch), self._directory)).watch()
        except Exception as error:
            self._report("written files", error)

    def _open_log(self) -> EventLog:
        if self._log is None:
            from trainprof.record.event_log import EventLog

            role = "script" if self._is_script else "child"
            self._log = EventLog(os.path.join(self._directory, EVENTS), role=role)
        return self._log

    def _on_torch(self, torch: ModuleType, start_ns: int, end_ns: int) -> None:
        try:
            from trainprof.inside.catalogue import default_probes
            from trainprof.inside.session import Session
            from trainprof.record.schema import Kind

            log = self._open_log()
            if self._is_script:  # opens the log now: that takes ms, too long within a step
                log.emit(Kind.TORCH_IMPORT, start_ns, end_ns)
            else:
                log.remember(Kind.TORCH_IMPORT, start_ns, end_ns)
                atexit.register(self._on_exit)
            self._watch_multiprocessing()
            self.session = Session(log, cwd=self._cwd, options=self._options)
            if self._early is not None and self._is_script:
                self.session.early_stacks = self._early.end()
            trial = self._options.get("trial")
            probes = default_probes(trial if isinstance(trial, dict) else None)
            if self._lines is not None:  # last: its wrappers are the outermost
                from trainprof.inside.lines.probe import LinesProbe

                probes.append(LinesProbe(self._lines))
            self.session.attach(torch, probes)
        except Exception as error:
            self._report("attach", error)

    def _note(self, topic: str, value: object) -> None:
        from trainprof.record.schema import Topic

        self._open_log().note(Topic[topic], value)

    def _report(self, where: str, error: BaseException) -> None:
        with suppress(Exception):
            fault = {"probe": where, "error": f"{type(error).__name__}: {error}"}
            self._note("PROBE_FAILED", fault)

    def _after_fork(self) -> None:
        self._is_script = self._has_ended = False
        if self._log is not None:
            self._log.reopen_in_child()
        if self._lines is not None:
            self._lines.after_fork()

    def _watch_multiprocessing(self) -> None:
        """Records the end of multiprocessing's children, which end by `os._exit`."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, ScriptProcess._await_end_of_child)

    def _await_end_of_child(self) -> None:
        util = sys.modules["multiprocessing.util"]
        util.Finalize(None, self._on_end_of_child, exitpriority=LAST_FINALIZER)

    def _on_end_of_child(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):  # torch.multiprocessing turns a rank's error into one
            error = error.__context__ if error.code else None
        self._note_end(type(error).__name__ if error is not None else None)

    def _on_exit(self) -> None:
        raised = getattr(sys, "last_type", None)
        self._note_end(raised.__name__ if raised is not None else None)

    def _note_end(self, exception: str | None) -> None:
        """Records how the process ended; for a child only if it recorded anything."""
        if self._has_ended:
            return
        if self._early is not None:
            self._early.end()
        if self._log is not None:
            self._log.begin_end()
        if self._lines is not None:
            self._lines.finish()
        if self.session is not None:
            self.session.on_end()
        if not (self._is_script or (self._log and self._log.is_open)):
            return
        self._has_ended = True
        with suppress(Exception):
            from trainprof.record.schema import Kind, Topic

            log = self._open_log()
            name = log.define(Topic.EXCEPTION, exception) if exception is not None else 0
            now = perf_counter_ns()
            log.emit(Kind.PROCESS_END, now, now, 0, name)
            log.trim()


def start() -> None:
    """Installs the hooks once per process; a second call (two site directories) does nothing."""
    directory = os.environ.get(ENV_DIRECTORY)
    if not directory or hasattr(start, "process"):
        return
    process = ScriptProcess(directory, _options())
    start.process = process  # type: ignore[attr-defined]
    process.install()


def _options() -> dict[str, object]:
    text = os.environ.get(ENV_OPTIONS)
    if not text:
        return {}
    import json

    options = json.loads(text)
    return options if isinstance(options, dict) else {}
