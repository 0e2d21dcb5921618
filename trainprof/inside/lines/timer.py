"""Times lines with line_profiler; imported only in runs that time lines."""

from __future__ import annotations

import functools
import opcode
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from types import CellType, CodeType, FunctionType
from typing import Any, Final, TypeVar

from line_profiler import LineProfiler
from line_profiler import profile as explicit_profiler

from trainprof.inside.patching.patcher import hide_our_frame, let_dynamo_skip, uncounted

T = TypeVar("T")
Wrapped = Callable[..., Any]
# (file, first line, name) of a function in line_profiler's statistics; (line, hits, time).
Label = tuple[str, int, str]
Rows = list[tuple[int, int, int]]

# Before Python 3.12 line_profiler uses sys.settrace: callees of timed functions are slower too.
USES_MONITORING: Final = sys.version_info >= (3, 12)
# A sys.monitoring tool id. line_profiler's default is cProfile's, which could then not start.
OUR_TOOL: Final = 4
_NOP: Final = bytes((opcode.opmap["NOP"], 0))
_CALIBRATION_LOOPS: Final = 1000
_CALIBRATION_ROUNDS: Final = 3


def label(code: CodeType) -> Label:
    return code.co_filename, code.co_firstlineno, getattr(code, "co_qualname", code.co_name)


class LineTimer(LineProfiler):
    """line_profiler's profiler, for `@profile` and for undecorated code.

    It switches itself off for good if the script, a debugger or a coverage tool traces.

    Args:
        added: Called with the code and qualified name of each function under `@profile`.
        left: Called when the outermost timed function returns.
        stood_down: Called once, with the reason.
    """

    tool_id = OUR_TOOL
    enable_count: int

    def __init__(
        self,
        *,
        added: Callable[[CodeType, str], None],
        left: Callable[[], None],
        stood_down: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._added, self._left, self._stood_down = added, left, stood_down
        self._wrappers: dict[int, Wrapped] = {}
        self._known: set[tuple[Label, bytes]] = set()
        self._tracing = _Tracing()
        self.is_off = self.has_stood_down = False
        self.unit_ns: float = super().get_stats().unit * 1e9

    def __call__(self, function: T) -> T:
        try:
            return super().__call__(function)  # type: ignore[arg-type,return-value]
        except TypeError:  # not a function: leave it unchanged
            return function

    def add_function(self, function: Any) -> None:
        """Times a function; its code is padded, so that it differs from all others."""
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if not isinstance(function, FunctionType) or code is None:
            return
        self._added(code, function.__qualname__)
        # line_profiler warns of functions with __wrapped__; this copy has none.
        twin = FunctionType(code, function.__globals__, closure=function.__closure__)
        super().add_function(twin)
        function.__code__ = twin.__code__

    def add_code(self, code: CodeType) -> bool:
        """Times all functions with this code, existing and later ones.

        Returns False if this line_profiler cannot time code without padding it.
        """
        key = (label(code), code.co_code)
        if key in self._known:
            return True
        twin = FunctionType(code, {}, closure=tuple(CellType() for _ in code.co_freevars))
        paddings: dict[bytes, int] = getattr(LineProfiler, "_all_paddings", {})
        bare = code.co_code
        while bare.endswith(_NOP):
            bare = bare[: -len(_NOP)]
        taken = paddings.get(bare, 1)
        paddings[bare] = 0
        try:
            super().add_function(twin)
        finally:
            paddings[bare] = taken
        self._known.add(key)
        return twin.__code__.co_code == code.co_code

    def timings(self) -> dict[Label, Rows]:
        """Returns lines executed so far, by function; times in units of `unit_ns`."""
        return dict(super().get_stats().timings)

    def enable_by_count(self) -> None:
        if self.is_off:
            return
        if self._tracing.is_foreign():
            self._stand_down()
            return
        self._tracing.hide()
        super().enable_by_count()

    def disable_by_count(self) -> None:
        if self.enable_count == 1 and self._tracing.is_lost():
            self.enable_count = 0
            self._stand_down()
            return
        super().disable_by_count()
        if not self.enable_count:
            self._left()

    def is_on(self) -> bool:
        return self.enable_count > 0 and not self._tracing.is_lost()

    def switch_off(self) -> None:
        """Ends line timing on this thread for good."""
        self.is_off = True
        self.leave_thread()

    def leave_thread(self) -> None:
        """Ends line timing on this thread until a function under `@profile` begins it again."""
        if self.enable_count:
            self.enable_count = 1
            self.disable_by_count()

    def check_tracer(self) -> None:
        if self.enable_count and not self.is_off and self._tracing.is_lost():
            self._stand_down()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops tracing for a while: it slows all Python code."""
        manager = self._tracing.take_out()
        try:
            yield
        finally:
            self._tracing.put_back(manager)

    def let_dynamo_skip_wrappers(self) -> None:
        for wrapper in self._wrappers.values():
            let_dynamo_skip(wrapper)

    def _stand_down(self) -> None:
        # disable() would end the other tool's tracing; without this no other profiler could start.
        manager = getattr(self, "_manager", None)
        getattr(manager, "active_instances", set()).discard(self)
        if not self.has_stood_down:
            self.is_off = self.has_stood_down = True
            self._stood_down("another tracer is active (a debugger, coverage, sys.settrace)")

    def _dressed(self, wrapper: Wrapped, function: Wrapped) -> Wrapped:
        if self._already_a_wrapper(function):  # type: ignore[no-untyped-call]
            return function
        functools.update_wrapper(uncounted(wrapper), function)
        let_dynamo_skip(wrapper)
        # Wrappers of one kind share a code object; one of them stands for all.
        self._wrappers[id(getattr(wrapper, "__code__", None))] = wrapper
        self._mark_wrapper(wrapper)  # type: ignore[no-untyped-call]
        return wrapper

    def wrap_function(self, function: Wrapped) -> Wrapped:
        enter, leave = self.enable_by_count, self.disable_by_count

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            enter()
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                leave()

        return self._dressed(wrapper, function)

    def wrap_coroutine(self, function: Wrapped) -> Wrapped:
        enter, leave = self.enable_by_count, self.disable_by_count

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            enter()
            try:
                return await function(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                leave()

        return self._dressed(wrapper, function)

    def wrap_generator(self, function: Wrapped) -> Wrapped:
        """Wraps as `yield from` (PEP 380) does; line_profiler's wrapper drops throw and return."""
        enter, leave = self.enable_by_count, self.disable_by_count

        def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            generator = function(*args, **kwargs)
            step, value = generator.send, None
            while True:
                enter()
                try:
                    item = step(value)
                except StopIteration as end:
                    return end.value
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    leave()
                try:
                    step, value = generator.send, (yield item)
                except GeneratorExit:
                    enter()
                    try:
                        generator.close()
                    finally:
                        leave()
                    raise
                except BaseException as error:
                    hide_our_frame(error)
                    step, value = generator.throw, error

        return self._dressed(wrapper, function)

    def wrap_async_generator(self, function: Wrapped) -> Wrapped:
        enter, leave = self.enable_by_count, self.disable_by_count

        async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            generator = function(*args, **kwargs)
            step, value = generator.asend, None
            while True:
                enter()
                try:
                    item = await step(value)
                except StopAsyncIteration:
                    return
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    leave()
                try:
                    step, value = generator.asend, (yield item)
                except GeneratorExit:
                    await generator.aclose()
                    raise
                except BaseException as error:
                    hide_our_frame(error)
                    step, value = generator.athrow, error

        return self._dressed(wrapper, function)


class _Tracing:
    """The interpreter's trace function, which line_profiler sets before Python 3.12.

    `sys.gettrace()` hides it: scripts use that to detect a debugger.
    """

    def __init__(self) -> None:
        self._get, self._set = sys.gettrace, sys.settrace
        self._is_hidden = False

    def is_foreign(self) -> bool:
        tracer = None if USES_MONITORING else self._get()
        return tracer is not None and not _is_line_profilers(tracer)

    def is_lost(self) -> bool:
        """Returns whether another tracer replaced the enabled line_profiler."""
        return not USES_MONITORING and not _is_line_profilers(self._get())

    def hide(self) -> None:
        if self._is_hidden or USES_MONITORING:
            return
        self._is_hidden = True
        get, set_ = self._get, self._set

        def gettrace() -> Any:
            tracer = get()
            return None if _is_line_profilers(tracer) else tracer

        def settrace(function: Any, /) -> None:
            if function is not None or not _is_line_profilers(get()):
                set_(function)

        sys.gettrace = functools.update_wrapper(gettrace, get)
        sys.settrace = functools.update_wrapper(settrace, set_)

    def take_out(self) -> Any:
        if sys.version_info >= (3, 12):
            if sys.monitoring.get_tool(OUR_TOOL) is None:
                return None
            events = sys.monitoring.get_events(OUR_TOOL)
            sys.monitoring.set_events(OUR_TOOL, sys.monitoring.events.NO_EVENTS)
            return events
        tracer = self._get()
        if not _is_line_profilers(tracer):
            return None
        self._set(None)
        return tracer

    def put_back(self, manager: Any) -> None:
        if sys.version_info >= (3, 12):
            if manager is not None and sys.monitoring.get_tool(OUR_TOOL) is not None:
                sys.monitoring.set_events(OUR_TOOL, manager)
            return
        if manager is None or self._get() is not None:
            return
        self._set(manager)
        # At the next call line_profiler puts back its C trace function, if sys.gettrace() is its
        # manager. Otherwise frames that already run are no longer traced.
        hidden, sys.gettrace = sys.gettrace, self._get
        try:
            (lambda: None)()
        finally:
            sys.gettrace = hidden


def _is_line_profilers(tracer: Any) -> bool:
    return type(tracer).__name__ == "_LineProfilerManager"


def replace_profile_decorator(timer: LineTimer) -> None:
    """Makes `from line_profiler import profile` return `timer`; its own writes files at exit."""
    explicit_profiler._kernprof_overwrite(timer)


def overhead_ns() -> float | None:
    """Returns the time that line_profiler adds to a line here, in ns; None under a tracer."""
    if not USES_MONITORING and sys.gettrace() is not None:
        return None

    def loop(count: int) -> None:
        for _ in range(count):
            pass

    def duration() -> int:
        start = perf_counter_ns()
        loop(_CALIBRATION_LOOPS)
        return perf_counter_ns() - start

    bare = min(duration() for _ in range(_CALIBRATION_ROUNDS))
    profiler = LineProfiler()
    profiler.add_function(loop)
    profiler.enable_by_count()
    try:
        timed = min(duration() for _ in range(_CALIBRATION_ROUNDS))
    finally:
        profiler.disable_by_count()
    return max(timed - bare, 0) / (2 * _CALIBRATION_LOOPS)
