"""Records when the device reached the ends of phases, without waiting for it."""

from __future__ import annotations

import os
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.session import Session
from trainprof.record.schema import DeviceMarkFlag, Kind, Topic

# The most events that are recorded but not yet completed.
_MAX_PENDING: Final = 1024
# A phase that begins this soon after a mark needs no new one.
_ADJACENT_NS: Final = 10_000
# The same for the beginning of a copy: hardly a kernel was launched in between.
_RECENT_NS: Final = 30_000
_NS_PER_MS: Final = 1e6
_UNSIGNED: Final = (1 << 64) - 1


@dataclass(slots=True)
class _Stream:
    """One thread's marks in order; `pending` has uncompleted events and when each was recorded."""

    pending: deque[tuple[Any, int]] = field(default_factory=deque)
    spare: list[Any] = field(default_factory=list)
    last: Any = None
    marked_until_ns: int = 0


class DeviceMarksProbe:
    """Makes each reading of the phase clock record an event in the device's stream."""

    name = "device_marks"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._accelerator = session.accelerator = Accelerator(torch)
        self._accelerator.watch_captures(patcher)
        self._kinds: list[str] = []
        self._make_event: Callable[[], Any] | None = None
        self._current_device: Callable[[], int] = lambda: 0
        # Indices of devices that the script is known to use; may be empty.
        self._in_use: set[int] = set()
        # By thread and device.
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._of_parent: list[Any] = []
        os.register_at_fork(after_in_child=self._forget)
        session.phase_now = patcher.clock(session.now, self._mark)
        session.wait_now = patcher.clock(session.now, self._mark_wait)
        session.on_copy_begin.subscribe(patcher.guarded(self._mark_copy_begin))
        session.on_copy_end.subscribe(patcher.guarded(self._mark))
        session.on_device_wait.subscribe(patcher.guarded(self._record_here))
        session.on_end.subscribe(patcher.guarded(self._record_here))

    def _forget(self) -> None:
        """Resets a forked child; it can neither use nor free the parent's events."""
        self._of_parent.append(self._streams)
        self._streams, self._make_event = {}, None
        self._kinds = []

    def _mark(self, at: int) -> None:
        make_event = self._make_event or self._begin()
        if make_event is None or self._accelerator.is_capturing(self._kinds):
            return
        device = self._current_device()
        if self._in_use and device not in self._in_use:
            return
        key = (get_ident(), device)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
        if at - stream.marked_until_ns < _ADJACENT_NS and stream.pending:
            return
        self._record_reached(stream, device)
        if len(stream.pending) >= _MAX_PENDING:
            return
        event = stream.spare.pop() if stream.spare else make_event()
        event.record()
        stream.pending.append((event, at))
        # The script launched no kernels during record().
        stream.marked_until_ns = self._session.now()

    def _mark_wait(self, at: int) -> None:
        """Marks if this thread has used its current device; a loader's thread may not have."""
        if self._make_event is not None and (get_ident(), self._current_device()) in self._streams:
            self._mark(at)

    def _mark_copy_begin(self, at: int) -> None:
        if self._make_event is not None:
            stream = self._streams.get((get_ident(), self._current_device()))
            if stream is not None and at - stream.marked_until_ns < _RECENT_NS:
                return
        self._mark(at)

    def _record_here(self) -> None:
        if self._accelerator.is_capturing(self._kinds):
            return
        thread = get_ident()
        for (owner, device), stream in list(self._streams.items()):
            if owner == thread:
                self._record_reached(stream, device)

    def _begin(self) -> Callable[[], Any] | None:
        """Returns the event constructor once the script uses a device, else None."""
        for kind in self._accelerator.kinds_in_use():
            module = getattr(self._torch, kind, None)
            make = getattr(module, "Event", None)
            if make is None and hasattr(self._torch, "Event"):
                make = partial(self._torch.Event, device=kind)
            if make is None:
                continue
            self._kinds = [kind]
            self._in_use = self._accelerator.indices_of(kind)
            self._current_device = getattr(module, "current_device", self._current_device)
            self._make_event = partial(make, enable_timing=True)
            self._session.log.note(Topic.ENVIRONMENT, {"device": kind})
            return self._make_event
        return None

    def _record_reached(self, stream: _Stream, device: int) -> None:
        emit, now, pending = self._session.emit, self._session.now, stream.pending
        while pending and pending[0][0].query():
            event, at = pending.popleft()
            if stream.last is None:
                emit(_MARK, at, now(), device, 0, DeviceMarkFlag.FIRST)
            else:
                passed_ns = round(stream.last.elapsed_time(event) * _NS_PER_MS)
                emit(_MARK, at, now(), device, passed_ns & _UNSIGNED)
                stream.spare.append(stream.last)
            stream.last = event


_MARK = int(Kind.DEVICE_MARK)
