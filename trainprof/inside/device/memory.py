"""Reads what torch's allocator tells of the devices in use, at the ends of phases now and then."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainprof.inside.device.accelerator import Accelerator
from trainprof.inside.device.allocator import Figures, Reader, find_reader, limit_of
from trainprof.inside.device.out_of_memory import last_state
from trainprof.inside.patching.patcher import Patcher, hide_our_frame, let_dynamo_skip
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, MemoryFigure, Topic

Wrapped = Callable[..., Any]

# Readings follow each other in bursts: only from one end of a phase to the next do they tell what
# the phase did. The first is longer, for the first steps mostly set the peak.
FIRST_BURST: Final = 96
BURST: Final = 32
# A burst takes this part of the time until the next one.
SHARE_OF_TIME: Final = 1 / 200
SHORTEST_PAUSE_NS: Final = 1_000_000_000
# In a long run pauses grow, so that the log does not: to this part of the time passed.
PAUSE_OF_PASSED: Final = 1 / 100
# How long until it is asked again whether the script uses a device.
_ASKED_EVERY_NS: Final = 1_000_000
_NEVER: Final = 1 << 63
_RESETS: Final = ("reset_peak_memory_stats", "reset_accumulated_memory_stats")


class DeviceMemoryProbe:
    """Makes the clock of phases read the allocator's statistics when they are due.

    To be attached after those who set that clock, and before those who read it.
    """

    name = "device_memory"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        if session.accelerator is None:  # nothing that knows of devices, or none can be there
            return
        self._torch, self._patcher, self._session = torch, patcher, session
        self._accelerator: Accelerator = session.accelerator
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        session.phase_now = self._reading_clock(session.phase_now)
        session.at_end.append(patcher.guarded(self._read_at_end))
        self._watch_resets(torch, patcher)

    def _forget(self) -> None:
        """Of a forked child nothing is known yet: it cannot use its parent's devices."""
        self._reader: Reader | None = None
        self._kind = ""
        self._last: dict[int, Figures] = {}
        self._due_ns = self._began_ns = self._burst_ns = 0
        self._left = FIRST_BURST

    def _reading_clock(self, inner: Callable[[], int]) -> Callable[[], int]:
        patcher, read = self._patcher, self._read_when_due

        def phase_now() -> int:
            at = inner()
            if at >= self._due_ns and not patcher.is_silent:
                try:
                    read(at)
                except Exception as error:
                    patcher.fail(error)
            return at

        let_dynamo_skip(phase_now, and_all_below=True)
        return phase_now

    def _read_when_due(self, at: int) -> None:
        if self._reader is None and not self._begin():
            self._due_ns = max(self._due_ns, at + _ASKED_EVERY_NS)
            return
        if self._accelerator.is_capturing([self._kind]):
            return
        self._began_ns = self._began_ns or at
        self._burst_ns += self._read(at)
        self._left -= 1
        if self._left > 0 or self._due_ns == _NEVER:
            return
        pause = max(
            SHORTEST_PAUSE_NS,
            int(self._burst_ns / SHARE_OF_TIME),
            int((at - self._began_ns) * PAUSE_OF_PASSED),
        )
        self._due_ns = self._session.now() + pause
        self._start_burst(BURST)

    def _start_burst(self, readings: int) -> None:
        self._left, self._burst_ns = readings, 0
        self._last.clear()

    def _begin(self) -> bool:
        """Finds out how to read, once the script has begun to use a device."""
        kinds = self._accelerator.kinds_in_use()
        for kind in kinds:
            reader = find_reader(self._torch, kind)
            if reader is not None:
                self._reader, self._kind, self._due_ns = reader, kind, 0
                return True
        if kinds:
            self._cannot(f"torch tells nothing of the memory of devices of type {kinds[0]}")
        return False

    def _cannot(self, reason: str) -> None:
        self._session.log.note(Topic.ENVIRONMENT, {"no_device_memory": reason})
        self._due_ns = _NEVER

    def _read(self, at: int) -> int:
        """Records what changed on each device in use since the last reading of the burst.

        Returns:
            What it took, ns.
        """
        assert self._reader is not None
        now, emit, began = self._session.now, self._session.emit, self._session.now()
        for index in self._devices():
            start, known = now(), self._last.get(index)
            try:
                figures = self._reader(index)
                if known is None:
                    limit = limit_of(self._torch, self._kind, index)
                    figures |= {} if limit is None else {MemoryFigure.LIMIT: limit}
            except (RuntimeError, NotImplementedError) as error:  # an allocator of the script's
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                self._cannot(f"its allocator does not tell: {why}")
                break
            if MemoryFigure.ALLOCATED not in figures:
                self._cannot(f"torch tells nothing of the memory of devices of type {self._kind}")
                break
            end = at + now() - start
            if known is None:
                known = self._last[index] = {}
                emit(_MEMORY, at, at, index, 0, _BURST)
            for figure, value in figures.items():
                if figure == MemoryFigure.ALLOCATED or known.get(figure) != value:
                    emit(_MEMORY, at, end, index, value, figure)
                    known[figure] = value
        return now() - began

    def _devices(self) -> list[int]:
        current = getattr(getattr(self._torch, self._kind, None), "current_device", lambda: 0)
        return sorted({int(current()), *self._accelerator.indices_in_use(self._kind)})

    def _read_apart(self) -> None:
        """Reads at a moment that is no end of a phase."""
        if self._reader is not None and not self._accelerator.is_capturing([self._kind]):
            self._last.clear()
            self._read(self._session.now())
            self._last.clear()

    def _read_at_end(self) -> None:
        self._read_apart()
        state = last_state(self._session.sites.is_user_code)
        if state is not None:
            self._session.log.note(Topic.OUT_OF_MEMORY, {"kind": self._kind or None, **state})

    def _watch_resets(self, torch: ModuleType, patcher: Patcher) -> None:
        """What the script's own resets are about to lose is read before."""
        read = patcher.guarded(self._read_apart)

        def make(original: Wrapped) -> Wrapped:
            def reset(*args: Any, **kwargs: Any) -> Any:
                read()
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return reset

        for kind in ("cuda", "xpu", "accelerator"):
            module = getattr(torch, kind, None)
            for name in _RESETS:
                inner = getattr(module, "memory", None)
                places = [(owner, name) for owner in (inner, module) if name in _vars(owner)]
                if places:
                    patcher.around(make, *places)


def _vars(owner: Any) -> dict[str, Any]:
    return getattr(owner, "__dict__", {})


_MEMORY, _BURST = int(Kind.DEVICE_MEMORY), int(MemoryFigure.BURST)
