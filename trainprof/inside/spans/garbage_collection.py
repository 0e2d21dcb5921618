"""Records pauses of Python's garbage collector."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, set_traceback
from trainprof.inside.session import Session
from trainprof.record.schema import Kind
from trainprof.record.signal_handlers import comes_from_signal_handler, traceback_of

# Shorter ones are many and cost nothing in total: a young collection takes 5 us.
MIN_PAUSE_NS: Final = 20_000
# What a collection sends in order.
_START, _, _, _STOP_DETAILS = range(4)


class GarbageProbe:
    """Uses `gc.callbacks`.

    Python may run the script's signal handlers in a callback, and discards what a callback raises.
    So the callback is a generator: it catches such an exception at any point and raises it later.
    """

    name = "gc"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        watcher = _watch_collections(patcher, session)
        next(watcher)
        callback = _called_with_each(watcher.send)
        gc.callbacks.append(callback)
        patcher.on_undo(lambda: gc.callbacks.remove(callback))


def _called_with_each(send: Callable[[Any], int]) -> Callable[..., Any]:
    """Returns a C function that calls `send` with each of its arguments."""
    return functools.partial(max, key=send)


def _watch_collections(patcher: Patcher, session: Session) -> Generator[int, Any, None]:
    """Gets "start", details, "stop" and details of each collection.

    A caught exception is kept until the collection ends: other callbacks would lose it.
    """
    emit, now, log, kind = session.emit, session.now, session.log, int(Kind.GC)
    started, place = 0, _STOP_DETAILS
    sent: Any = None
    kept: BaseException | None = None
    while True:
        try:
            while True:
                sent = None
                sent = yield 0
                place = (place + 1) % 4 if sent != "start" else _START
                if patcher.is_silent:
                    started = 0
                elif place == _START:
                    started = now()
                elif place == _STOP_DETAILS and started:
                    if log.is_open and now() - started >= MIN_PAUSE_NS:
                        emit(kind, started, now(), 0, sent.get("generation", 0))
                    started = 0
                if place == _STOP_DETAILS and kept is not None:
                    _hand_back(kept)
                    kept = None
        except GeneratorExit:
            return
        except BaseException as error:
            if sent is None:  # raised while receiving
                place = (place + 1) % 4
            if isinstance(error, Exception) and not comes_from_signal_handler(error):
                patcher.fail(error)
                continue
            kept = error
            if place == _STOP_DETAILS:
                _hand_back(kept)
                kept = None


class _HandedBack:
    """Raises a script's exception again, in the main thread's next Python code."""

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error
        self.callback: Callable[..., Any] | None = None

    def __bool__(self) -> bool:
        if self.callback in gc.callbacks:
            gc.callbacks.remove(self.callback)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return False


def _hand_back(error: BaseException) -> None:
    """Schedules `error` in the next gc callback; scheduled here, it would be raised here."""
    if threading.get_ident() != threading.main_thread().ident:
        return  # signal handlers run on the main thread only
    import ctypes

    traceback = traceback_of(error)
    if traceback is not None:
        set_traceback(error, traceback.tb_next)  # without our frame
    handed = _HandedBack(error)
    # int Py_AddPendingCall(int (*)(void *), void *); PyObject_IsTrue asks `__bool__`
    add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
        ("Py_AddPendingCall", ctypes.pythonapi)
    )
    ask = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
    handed.callback = _called_with_each(functools.partial(add, ask, handed))
    gc.callbacks.append(handed.callback)
