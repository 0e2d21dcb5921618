"""Records how batches come from workers: time blocked, time receiving, and which workers serve."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.probes.loader import LoaderProbe
from trainprof.probes.patcher import Patcher, hide_our_frame
from trainprof.probes.session import Session
from trainprof.record.schema import Kind

Wrapped = Callable[..., Any]

_PID_BITS: Final = 32


class DeliveryProbe:
    """Hooks the iterators that have workers, inside their `next`."""

    name = "delivery"

    def __init__(self, loader: LoaderProbe) -> None:
        self._loader = loader
        self._parts: dict[int, _Parts] = {}

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session

        def wrap(cls: type) -> None:
            created = patcher.guarded(self._created)
            patcher.around_if_there(self._maker_of_init(created), (cls, "__init__"))
            patcher.around_if_there(self._make_get, (cls, "_try_get_data"), inherited=True)
            lost = patcher.guarded(self._find_lost)
            patcher.around_if_there(self._maker_of_next(lost), (cls, "_next_data"), inherited=True)

        self._loader.watch_classes(patcher, wrap)
        pinning = sys.modules.get("torch.utils.data._utils.pin_memory")
        patcher.around_if_there(self._make_pin, (pinning, "pin_memory"))

    def _maker_of_init(self, created: Callable[..., None]) -> Callable[[Wrapped], Wrapped]:
        now = self._session.now

        def make(original: Wrapped) -> Wrapped:
            def __init__(iterator: Any, *args: Any, **kwargs: Any) -> Any:
                start = now()
                try:
                    return original(iterator, *args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise
                finally:
                    created(iterator, start)

            return __init__

        return make

    def _created(self, iterator: Any, start: int) -> None:
        """Notes the workers; from now on tells how long their queue has nothing for us."""
        loader, emit, end = (
            self._loader.number_of(iterator),
            self._session.emit,
            self._session.now(),
        )
        for number, worker in enumerate(getattr(iterator, "_workers", ())):
            if worker.pid is not None:
                emit(_WORKER, start, end, loader, worker.pid, number + 1 & 255)
        key = id(iterator)
        if key in self._parts:
            return
        queue = getattr(iterator, "_worker_result_queue", None)
        poll = getattr(queue, "_poll", None)
        if queue is None or poll is None:
            return
        self._parts[key] = parts = _Parts(hasattr(iterator, "_pin_memory_thread"))
        self._session.keep_track(iterator, self._parts, key)
        now = self._session.now

        def _poll(*args: Any, **kwargs: Any) -> Any:
            start = now()
            try:
                return poll(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                if get_ident() == parts.thread:
                    parts.blocked_ns += now() - start

        # On the instance, and only now: workers started by spawn got the queue without it.
        queue._poll = _poll

    def _maker_of_next(self, find_lost: Callable[..., None]) -> Callable[[Wrapped], Wrapped]:
        emit, now = self._session.emit, self._session.now
        parts_of, loader = self._parts, self._loader

        def make(original: Wrapped) -> Wrapped:
            def _next_data(self: Any) -> Any:
                parts = parts_of.get(id(self), _NOBODY)
                parts.blocked_ns = parts.getting_ns = 0
                parts.thread = get_ident()
                start = now()
                try:
                    batch = original(self)
                except BaseException as error:
                    if type(error) is not StopIteration:
                        find_lost(self)
                    hide_our_frame(error)
                    raise
                blocked = parts.getting_ns if parts.is_pinned else parts.blocked_ns
                receiving = max(parts.getting_ns - blocked, 0)
                emit(_NEXT_PARTS, start, start + blocked, loader.number_of(self), receiving)
                return batch

            return _next_data

        return make

    def _make_get(self, original: Wrapped) -> Wrapped:
        now, parts_of = self._session.now, self._parts

        def _try_get_data(self: Any, *args: Any, **kwargs: Any) -> Any:
            start = now()
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                parts_of.get(id(self), _NOBODY).getting_ns += now() - start

        return _try_get_data

    def _find_lost(self, iterator: Any) -> None:
        """Notes the workers that have died; torch has just asked after them too."""
        at = self._session.now()
        for number, worker in enumerate(getattr(iterator, "_workers", ())):
            code = worker.exitcode
            if code is not None and worker.pid is not None:
                value = worker.pid | (code & 0xFFFF) << _PID_BITS
                loader = self._loader.number_of(iterator)
                self._session.emit(_WORKER_LOST, at, at, loader, value, number + 1 & 255)

    def _make_pin(self, original: Wrapped) -> Wrapped:
        emit, now = self._session.emit, self._session.now
        inside: set[int] = set()

        def pin_memory(*args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            is_outermost = thread not in inside
            inside.add(thread)
            start = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            finally:
                if is_outermost:
                    inside.discard(thread)
                    emit(_PIN, start, now())

        return pin_memory


class _Parts:
    """What the present `next` of an iterator has spent so far.

    Attributes:
        is_pinned: A thread receives and pins; `next` only waits for it.
        thread: That calls `next`.
        getting_ns: In asking for data, of which `blocked_ns` with nothing there.
    """

    __slots__ = ("blocked_ns", "getting_ns", "is_pinned", "thread")

    def __init__(self, is_pinned: bool) -> None:
        self.is_pinned = is_pinned
        self.thread = self.getting_ns = self.blocked_ns = 0


# Takes what belongs to iterators made before us.
_NOBODY: Final = _Parts(is_pinned=False)
_NEXT_PARTS, _PIN = int(Kind.NEXT_PARTS), int(Kind.PIN)
_WORKER, _WORKER_LOST = int(Kind.WORKER), int(Kind.WORKER_LOST)
