"""Records batches from workers: time blocked, time receiving, workers started and lost."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import weakref
from collections.abc import Callable
from functools import partial
from time import thread_time_ns
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import (
    Arguments,
    Patcher,
    Wrapped,
    hide_our_frame,
    let_dynamo_skip,
    recorded_after,
    recorded_outermost,
)
from trainprof.inside.session import Session
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import RECEIVE_CPU_SHIFT, Kind, NextPartsFlag

_PID_BITS: Final = 32
_PIDS: Final = re.compile(r"\d+")


class DeliveryProbe:
    """Hooks the `next` of iterators with workers."""

    name = "delivery"

    def __init__(self, loader: LoaderProbe) -> None:
        self._loader = loader
        self._parts: dict[int, _Parts] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        created = recorded_after(session.now, patcher.guarded(self._created))
        next_data = partial(self._make_next, patcher.guarded(self._find_lost))

        def wrap(cls: type) -> None:
            patcher.around_if_there(created, (cls, "__init__"))
            patcher.around_if_there(self._make_get, (cls, "_try_get_data"), inherited=True)
            patcher.around_if_there(next_data, (cls, "_next_data"), inherited=True)

        self._loader.watch_classes(patcher, wrap)
        pinning, signals = (
            sys.modules.get(f"torch.utils.data._utils.{name}")
            for name in ("pin_memory", "signal_handling")
        )
        let_dynamo_skip(self._pinned, and_all_below=True)
        pinned = patcher.guarded(self._pinned)
        patcher.around_if_there(
            recorded_outermost(session.now, pinned, set()), (pinning, "pin_memory")
        )
        check = partial(self._make_check, patcher.guarded(self._find_all_lost))
        patcher.around_if_there(check, (signals, "_error_if_any_worker_fails"))

    def _created(self, start: int, end: int, _: FrameType | None, given: Arguments) -> None:
        """Records the workers, and begins to measure how long their queue is empty."""
        iterator: Any = given[0][0]
        loader = self._loader.number_of(iterator)
        for number, worker in enumerate(getattr(iterator, "_workers", ())):
            if worker.pid is not None:
                flags = number + 1 & 255
                self._session.emit(_WORKER, start, end, loader, worker.pid, flags)
        key = id(iterator)
        queue = getattr(iterator, "_worker_result_queue", None)
        poll = getattr(queue, "_poll", None)
        if key in self._parts or queue is None or poll is None:
            return
        is_pinned = hasattr(iterator, "_pin_memory_thread")
        self._parts[key] = parts = _Parts(weakref.ref(iterator), loader, is_pinned=is_pinned)
        self._session.keep_track(iterator, self._parts, key)
        if is_pinned:
            return
        now = self._session.now

        def _poll(timeout: float | None = 0.0) -> Any:
            start = now()
            try:
                return poll(timeout)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                parts.blocked_ns += now() - start

        # After the workers started: spawned ones get a pickled copy of the queue.
        queue._poll = _poll

    def _make_next(self, find_lost: Callable[..., None], original: Wrapped) -> Wrapped:
        emit, now = self._session.emit, self._session.now
        parts_of = self._parts

        def _next_data(self: Any) -> Any:
            parts = parts_of.get(id(self), _UNKNOWN)
            parts.blocked_ns = parts.getting_ns = parts.cpu_ns = 0
            start = now()
            try:
                batch = original(self)
            except BaseException as error:
                if type(error) is not StopIteration:
                    find_lost(self, error)
                hide_our_frame(error)
                raise
            if parts is not _UNKNOWN:
                blocked = parts.getting_ns if parts.is_pinned else parts.blocked_ns
                receiving = max(parts.getting_ns - blocked, 0)
                cpu_us = min(parts.cpu_ns // 1000, _MOST_CPU_US)
                value = min(receiving, _LONGEST_NS) | cpu_us << RECEIVE_CPU_SHIFT
                flags = 0 if parts.is_pinned else _CPU_KNOWN
                emit(_NEXT_PARTS, start, start + blocked, parts.loader, value, flags)
            return batch

        return _next_data

    def _make_get(self, original: Wrapped) -> Wrapped:
        now, parts_of = self._session.now, self._parts

        def _try_get_data(self: Any, *args: Any, **kwargs: Any) -> Any:
            cpu, start = thread_time_ns(), now()
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                parts = parts_of.get(id(self), _UNKNOWN)
                parts.getting_ns += now() - start
                parts.cpu_ns += thread_time_ns() - cpu

        return _try_get_data

    def _make_check(self, find_lost: Callable[..., None], original: Wrapped) -> Wrapped:
        """Wraps the function that torch's SIGCHLD handler calls, anywhere in the script."""

        def _error_if_any_worker_fails(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                find_lost(error)
                hide_our_frame(error)
                raise

        return _error_if_any_worker_fails

    def _find_all_lost(self, error: BaseException) -> None:
        for parts in list(self._parts.values()):
            iterator = parts.iterator()
            if iterator is not None:
                self._find_lost(iterator, error)

    def _find_lost(self, iterator: Any, error: BaseException) -> None:
        """Records workers that died; with exit status 0 only those named in torch's error."""
        at, loader = self._session.now(), self._loader.number_of(iterator)
        message = error.args[0] if type(error) is RuntimeError and error.args else ""
        named = _PIDS.findall(message) if type(message) is str else []
        for number, worker in enumerate(getattr(iterator, "_workers", ())):
            code = _exit_code(worker)
            if code or (code == 0 and str(worker.pid) in named):
                value = worker.pid | (code & 0xFFFF) << _PID_BITS
                self._session.emit(_WORKER_LOST, at, at, loader, value, number + 1 & 255)

    def _pinned(self, start: int, _: FrameType | None, __: Arguments) -> None:
        self._session.emit(_PIN, start, self._session.now())


class _Parts:
    """Time spent so far in an iterator's current `next`.

    Attributes:
        is_pinned: A thread receives and pins batches; `next` only waits for it.
        getting_ns: Getting data; of it `blocked_ns` with an empty queue, `cpu_ns` on a CPU.
    """

    __slots__ = ("blocked_ns", "cpu_ns", "getting_ns", "is_pinned", "iterator", "loader")

    def __init__(self, iterator: Callable[[], Any], loader: int, *, is_pinned: bool) -> None:
        self.iterator, self.loader = iterator, loader
        self.is_pinned = is_pinned
        self.getting_ns = self.blocked_ns = self.cpu_ns = 0


def _exit_code(worker: Any) -> int | None:
    """Returns a worker's exit code (-n for signal n, None alive) without reaping it."""
    if worker.pid is None:
        return None
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):
            status = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                return None
            return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
    code: int | None = worker.exitcode  # reaped already, or a child of the fork server
    return code


# For iterators created before the probe.
_UNKNOWN: Final = _Parts(lambda: None, 0, is_pinned=False)
_NEXT_PARTS, _PIN = int(Kind.NEXT_PARTS), int(Kind.PIN)
_CPU_KNOWN: Final = int(NextPartsFlag.CPU_KNOWN)
_LONGEST_NS: Final = (1 << RECEIVE_CPU_SHIFT) - 1
_MOST_CPU_US: Final = (1 << 63 - RECEIVE_CPU_SHIFT) - 1
_WORKER, _WORKER_LOST = int(Kind.WORKER), int(Kind.WORKER_LOST)
