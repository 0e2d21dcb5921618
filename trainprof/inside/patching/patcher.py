"""Patches torch in the script's process: installs, guards and undoes wrappers.

Our errors never reach the script, and its tracebacks contain no frame of ours.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from _thread import get_ident
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, cast

from trainprof.inside.patching.wrapper_code import weave
from trainprof.record.signal_handlers import comes_from_signal_handler, traceback_of

Wrapped = Callable[..., Any]
# Makes the wrapper in C of an original, with its twin in Python for what is rare.
InC = Callable[[Wrapped, Wrapped], Wrapped]
_ABSENT: Final = object()
# By the base class: an exception's class may override attribute access, as a frozen dataclass.
set_traceback: Final = BaseException.with_traceback
# Checked before `is_compiling`, which is slower.
COMPILER: Final = "torch._dynamo"
_PROFILER: Final = "torch.autograd.profiler"
_ANY_ARGUMENTS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

# `warnings.warn(stacklevel=n)` skips frames of files with such a name, so that a warning below a
# wrapper is shown at the script's line.
UNCOUNTED_FILE: Final = "<trainprof; not counted by warnings, like importlib._bootstrap>"


class HookPointMissing(Exception):
    """This torch lacks a function that a probe hooks; the probe is reported as unavailable."""


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def loaded(name: str) -> Any:
    """Returns a loaded module; HookPointMissing if `import torch` did not load it."""
    module = sys.modules.get(name)
    if module is None:
        raise HookPointMissing(f"{name} is not loaded")
    return module


def recorded_after(
    now: Callable[[], int],
    record: Callable[[int, int, FrameType | None, Arguments], None],
    is_compiling: Callable[[], bool] = lambda: False,
) -> Callable[[Wrapped], Wrapped]:
    """Returns a decorator that records each call of a function after it returns.

    `record` is guarded and gets start, end, the caller's frame (None if Python itself called, as at
    exit), and the arguments. It is not called while torch.compile traces.
    """

    def make(original: Wrapped) -> Wrapped:
        def call(*args: Any, **kwargs: Any) -> Any:
            if COMPILER in sys.modules and is_compiling():
                return original(*args, **kwargs)
            start = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                record(start, now(), sys._getframe().f_back, (args, kwargs))

        return call

    return make


def recorded_outermost(
    now: Callable[[], int],
    record: Callable[[int, FrameType | None, Arguments], None],
    inside: set[int],
    is_compiling: Callable[[], bool] = lambda: False,
) -> Callable[[Wrapped], Wrapped]:
    """Returns a decorator that records each thread's outermost call of a function.

    `record` is guarded, and called after the call, before the clock is read. Functions may share
    `inside`, the threads in such a call.
    """

    def make(original: Wrapped) -> Wrapped:
        def call(*args: Any, **kwargs: Any) -> Any:
            if COMPILER in sys.modules and is_compiling():
                return original(*args, **kwargs)
            thread = get_ident()
            if thread in inside:
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
            start = now()
            # The script's signal handlers may raise wherever a clock is read.
            try:
                inside.add(thread)
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                inside.discard(thread)
                record(start, sys._getframe().f_back, (args, kwargs))

        return call

    return make


def called_around(
    before: Callable[..., None] | None = None, after: Callable[[], None] | None = None
) -> Callable[[Wrapped], Wrapped]:
    """Returns a decorator that calls ours around a function; not for the hot path.

    `before` gets its arguments; `after` is guarded, and called however the call ended.
    """

    def make(original: Wrapped) -> Wrapped:
        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                if after is not None:
                    after()

        return call

    return make


def beyond_ours(frame: FrameType | None) -> FrameType | None:
    """Returns the first frame from `frame` up that is not one of our wrappers, else None."""
    while frame is not None and frame.f_code.co_filename == UNCOUNTED_FILE:
        frame = frame.f_back
    return frame


def hide_our_frame(error: BaseException) -> None:
    """Removes the calling wrapper's frame from the traceback; call it first in an `except`.

    Re-raise with a bare `raise` then: `raise error` would add the frame again.
    """
    traceback = traceback_of(error)
    if traceback is None:
        return
    set_traceback(error, traceback.tb_next)
    if sys.version_info < (3, 11):
        _handle_without_our_frame(error)


def _handle_without_our_frame(error: BaseException) -> None:
    """Before Python 3.11 a bare `raise` uses the caught traceback, not the error's."""
    import ctypes

    handled = (type(error), error, traceback_of(error))
    for part in handled:  # the call steals these references
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    ctypes.pythonapi.PyErr_SetExcInfo(*(ctypes.py_object(part) for part in handled))


def is_profiling() -> bool:
    """Returns whether torch's profiler runs: it would record what we compute."""
    return bool(getattr(sys.modules.get(_PROFILER), "_is_profiler_enabled", False))


class Patcher:
    """Replaces attributes for one probe; after its first error the probe `is_silent`."""

    def __init__(
        self,
        probe: str,
        report_fault: Callable[[str, BaseException], None],
        report_missing: Callable[[str, str], None],
    ) -> None:
        self._probe = probe
        self._report_fault = report_fault
        self._report_missing = report_missing
        self._undo: list[Callable[[], None]] = []
        self._restores: list[tuple[tuple[int, str], Callable[[], None]]] = []
        self._wrappers: list[Any] = []
        self._at_fault: list[Callable[[], None]] = []
        self.is_silent = False

    def around(
        self,
        make: Callable[[Wrapped], Wrapped],
        *places: tuple[Any, str],
        inherited: bool = False,
        woven: bool = False,
        in_c: InC | None = None,
    ) -> None:
        """Replaces one function, known in several places, by `make(original)`.

        Args:
            make: Returns the wrapper of an original, which must call it exactly once.
            places: (owner, attribute) pairs that hold the same function; others are left alone.
            inherited: Allow an attribute that the owner inherits (torch.Tensor's C methods);
                otherwise patching base and subclass would count a call twice. An inherited wrapper
                of ours is left alone.
            woven: Put the original's body into the wrapper, if possible.
            in_c: Makes the wrapper that is used in place of the one in Python.

        Raises:
            HookPointMissing: If the first place has no function, or one with parameters that the
                wrapper does not take.
        """
        owner, name = places[0]
        original = self._lookup(owner, name, inherited)
        if inherited and name not in vars(owner) and any(original is w for w in self._wrappers):
            return
        wrapper: Any = make(original)
        if not _accepts_calls_of(original, wrapper):
            raise HookPointMissing(f"{_name(owner)}.{name} has other parameters")
        try:
            wrapper = weave(wrapper, original) if woven else uncounted(wrapper)
        except Exception:  # NotWoven, or an unknown version of torch
            wrapper = uncounted(wrapper)
        let_dynamo_skip(wrapper)
        wrapper_in_c = None
        if in_c is not None:
            with contextlib.suppress(Exception):  # the twin does the same
                wrapper_in_c = in_c(original, wrapper)
        if wrapper_in_c is None:
            functools.update_wrapper(wrapper, original)
            _show_parameters(wrapper, original)
            if not hasattr(original, "__annotations__"):  # hide the wrapper's
                wrapper.__annotations__ = {}
        else:
            wrapper = wrapper_in_c
            show_original(wrapper, original, is_method=isinstance(owner, type))
        if inherited:  # where pickle finds the method now
            wrapper.__module__, wrapper.__qualname__ = owner.__module__, f"{owner.__name__}.{name}"
        self._let_jit_find(original, wrapper)
        for place_owner, place_name in places:
            held = getattr(place_owner, "__dict__", {}).get(place_name, _ABSENT)
            if isinstance(held, staticmethod) and held.__func__ is original:
                self._set(place_owner, place_name, staticmethod(wrapper), held)
            elif held is original or (inherited and held is _ABSENT):
                self._set(place_owner, place_name, wrapper, held)

    def around_if_there(
        self,
        make: Callable[[Wrapped], Wrapped],
        *places: tuple[Any, str],
        inherited: bool = False,
        in_c: InC | None = None,
    ) -> None:
        """Like `around`, but a missing function is reported and the rest of the probe works."""
        try:
            self.around(make, *places, inherited=inherited, in_c=in_c)
        except HookPointMissing as missing:
            self._report_missing(self._probe, str(missing))

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Adds an attribute that `owner` does not have itself."""
        if name in vars(owner):
            raise HookPointMissing(f"{owner.__name__}.{name} is taken")
        self._set(owner, name, value, _ABSENT)

    def on_undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Returns `callback` guarded: its first error is reported and silences this probe."""

        def call(*args: Any) -> None:
            if self.is_silent:
                return
            try:
                callback(*args)
            except Exception as error:
                self.fail(error)

        let_dynamo_skip(call, and_all_below=True)
        return call

    def clock(self, now: Callable[[], int], at_reading: Callable[[int], None]) -> Callable[[], int]:
        """Returns a clock that calls `at_reading`, guarded, with each reading."""

        def read() -> int:
            at = now()
            if not self.is_silent:
                try:
                    at_reading(at)
                except Exception as error:
                    self.fail(error)
            return at

        let_dynamo_skip(read, and_all_below=True)
        return read

    def fail(self, error: BaseException) -> None:
        """Reports an error of ours once; the probe's guarded callbacks then do nothing.

        An error raised by a signal handler of the script is raised again.
        """
        if comes_from_signal_handler(error):
            raise error
        if not self.is_silent:
            self.is_silent = True
            self._report_fault(self._probe, error)
            for action in self._at_fault:
                with contextlib.suppress(Exception):
                    action()

    def at_fault(self, action: Callable[[], None]) -> None:
        """Calls `action` if the probe fails, to end work that others do for it."""
        self._at_fault.append(action)

    def restore(self, owner: Any, name: str) -> None:
        """Undoes the patch of one attribute, unless other code has wrapped it since."""
        for place, action in self._restores:
            if place == (id(owner), name):
                action()

    def undo(self) -> None:
        """Undoes all patches, the last one first, except where other code has wrapped ours."""
        while self._undo:
            self._undo.pop()()

    def _lookup(self, owner: Any, name: str, inherited: bool) -> Callable[..., Any]:
        if owner is None:
            raise HookPointMissing(f"the owner of {name} does not exist")
        if not hasattr(owner, "__dict__"):
            raise HookPointMissing(f"{_name(owner)} has no {name}")
        value: Any = getattr(owner, name, _ABSENT) if inherited else vars(owner).get(name, _ABSENT)
        if isinstance(value, staticmethod):
            value = value.__func__
        if not callable(value):
            raise HookPointMissing(f"{_name(owner)}.{name} does not exist")
        return cast(Callable[..., Any], value)

    def _let_jit_find(self, original: Callable[..., Any], wrapper: Any) -> None:
        """Makes TorchScript compile `original` in place of its wrapper."""
        if type(original) is FunctionType:  # update_wrapper copied it from a wrapper of ours
            vars(wrapper).setdefault("__prepare_scriptable__", lambda: original)
        builtins = sys.modules.get("torch.jit._builtins")
        # None until torch builds the table, which will then contain the wrapper.
        table = getattr(builtins, "_builtin_table", None)
        operator = table.get(id(original)) if isinstance(table, dict) else None
        if table is not None and operator is not None:
            table[id(wrapper)] = operator
            self._undo.append(lambda: table.pop(id(wrapper), None))

    def _set(self, owner: Any, name: str, wrapper: Any, before: Any) -> None:
        setattr(owner, name, wrapper)
        self._wrappers.append(wrapper)

        def restore() -> None:
            if vars(owner).get(name) is not wrapper:
                return
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(restore)
        self._restores.append(((id(owner), name), restore))


def _name(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", getattr(owner, "__name__", repr(owner))))


def _accepts_calls_of(original: Callable[..., Any], wrapper: Callable[..., Any]) -> bool:
    """Returns False if torch may call `original` in ways that the wrapper does not accept."""
    theirs, ours = getattr(original, "__code__", None), wrapper.__code__
    if theirs is None or ours.co_flags & _ANY_ARGUMENTS == _ANY_ARGUMENTS:
        return True
    if theirs.co_kwonlyargcount != ours.co_kwonlyargcount:
        return False
    if theirs.co_flags & inspect.CO_VARARGS:  # probably a wrapper of other code
        return bool(theirs.co_argcount <= ours.co_argcount)
    return bool(theirs.co_argcount == ours.co_argcount)


def _show_parameters(wrapper: Callable[..., Any], original: Callable[..., Any]) -> None:
    """Makes a wrapper show the original's parameters to `inspect.getfullargspec`.

    `inspect.signature` finds them by `__wrapped__`.
    """
    if type(original) is not FunctionType or hasattr(original, "__wrapped__"):
        return
    if _parameters(wrapper.__code__) == _parameters(original.__code__):
        return
    with contextlib.suppress(Exception):  # unavailable annotations, from Python 3.14 on
        wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    if not wrapper.__code__.co_argcount:  # else they would belong to its own parameters
        wrapper.__defaults__ = original.__defaults__
        wrapper.__kwdefaults__ = original.__kwdefaults__


def show_original(wrapper: Any, original: Callable[..., Any], *, is_method: bool) -> None:
    """Gives a wrapper in C the names of its original, which torch.compile traces in its place.

    It cannot guard a method's defaults and closure then: no wrapper in C for those it traces.
    """
    functools.update_wrapper(wrapper, original)
    if not is_method:
        wrapper._torchdynamo_inline = original


def _parameters(code: CodeType) -> tuple[object, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    flags = code.co_flags & _ANY_ARGUMENTS
    names = code.co_varnames[: count + flags.bit_count()]
    return code.co_posonlyargcount, code.co_argcount, flags, names


def subclasses(cls: type) -> list[type]:
    """Returns all subclasses of `cls`, each before its own subclasses."""
    children: list[type] = cls.__subclasses__()
    return [below for child in children for below in (child, *subclasses(child))]


def uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes warnings below `function` point to the line they would without it."""
    function.__code__ = _uncounted_code(function.__code__)
    return function


@functools.cache  # the wrappers of one function share their code
def _uncounted_code(code: CodeType) -> CodeType:
    return code.replace(co_filename=UNCOUNTED_FILE)


def let_dynamo_skip(function: Callable[..., Any], *, and_all_below: bool = False) -> None:
    """Makes torch.compile skip a function of ours: no added graph, no graph break.

    It does not import `torch._dynamo`, which takes seconds and has side effects.
    """
    eval_frame = sys.modules.get("torch._C._dynamo.eval_frame")
    code = getattr(function, "__code__", None)
    if eval_frame is None or code is None:
        return
    try:
        if hasattr(eval_frame, "set_code_exec_strategy"):
            action = eval_frame._FrameAction
            below = action.SKIP if and_all_below else action.DEFAULT
            strategy = eval_frame._FrameExecStrategy(action.SKIP, below)
            eval_frame.set_code_exec_strategy(code, strategy)
        else:  # torch < 2.7
            eval_frame.skip_code(code)
    except Exception:
        return  # harmless: torch.compile traces a few more frames
