"""Reads torch's allocator statistics of the devices in use at the ends of some phases."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.device.accelerator import device_modules
from trainprof.inside.patching.patcher import (
    Arguments,
    Patcher,
    called_around,
    let_dynamo_skip,
    recorded_after,
)
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, MemoryFigure, Topic

Figures = dict[MemoryFigure, int]
# Reads the figures of the device with an index.
Reader = Callable[[int], Figures]

# Readings come in bursts: consecutive ones show what a phase allocated. The first burst is longer
# because the first steps mostly set the peak.
FIRST_BURST: Final = 96
BURST: Final = 32
# A burst may take this part of the time until the next one.
SHARE_OF_TIME: Final = 1 / 200
SHORTEST_PAUSE_NS: Final = 1_000_000_000
# In a long run pauses grow to this part of the time passed, to keep the log small.
PAUSE_OF_PASSED: Final = 1 / 100
# Time between checks whether the script uses a device.
_ASKED_EVERY_NS: Final = 1_000_000
_NEVER: Final = 1 << 63
_RESETS: Final = ("reset_peak_memory_stats", "reset_accumulated_memory_stats")
_MEMORY, _BURST = int(Kind.DEVICE_MEMORY), int(MemoryFigure.BURST)
_CACHE_EMPTIED: Final = int(Kind.CACHE_EMPTIED)

_BYTES: Final = (
    (MemoryFigure.ALLOCATED, "allocated_bytes", "current"),
    (MemoryFigure.RESERVED, "reserved_bytes", "current"),
    (MemoryFigure.PEAK_ALLOCATED, "allocated_bytes", "peak"),
    (MemoryFigure.PEAK_RESERVED, "reserved_bytes", "peak"),
)
# Allocators other than torch's native one always report 0 for these.
_COUNTS: Final = (
    (MemoryFigure.RETRIES, "num_alloc_retries"),
    (MemoryFigure.OUT_OF_MEMORY, "num_ooms"),
)

_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
# Parts of torch's error message; nothing else of it is recorded.
_SIZES: Final = {
    "requested_bytes": re.compile(rf"[Tt]ried to allocate {_SIZE}"),
    "total_bytes": re.compile(rf"total capaci?ty of {_SIZE}"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free"),
    "allocated_bytes": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "kept_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
_DEVICE: Final = re.compile(r"\bGPU (\d{1,4})\b")
_CAUSES: Final = 8


class DeviceMemoryProbe:
    """Makes the phase clock read the allocator's statistics when they are due."""

    name = "device_memory"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        assert session.accelerator is not None
        self._torch, self._session = torch, session
        self._accelerator = session.accelerator
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        let_dynamo_skip(self._read_when_due, and_all_below=True)
        session.phase_now = patcher.clock(session.phase_now, self._read_when_due)
        session.on_end.subscribe(patcher.guarded(self._read_at_end))
        self._watch_resets(torch, patcher)

    def _forget(self) -> None:
        """Resets a forked child: it cannot use its parent's devices."""
        self._reader: Reader | None = None
        self._kind = ""
        self._last: dict[int, Figures] = {}
        self._due_ns = self._began_ns = self._burst_ns = 0
        self._left = FIRST_BURST

    def _read_when_due(self, at: int) -> None:
        if at < self._due_ns:
            return
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
        self._left, self._burst_ns = BURST, 0
        self._last.clear()

    def _begin(self) -> bool:
        kinds = self._accelerator.kinds_in_use()
        for kind in kinds:
            reader = find_reader(self._torch, kind)
            if reader is not None:
                self._reader, self._kind, self._due_ns = reader, kind, 0
                return True
        if kinds:
            self._report_unavailable(f"torch has no memory statistics for {kinds[0]} devices")
        return False

    def _report_unavailable(self, reason: str) -> None:
        self._session.log.note(Topic.ENVIRONMENT, {"no_device_memory": reason})
        self._due_ns = _NEVER

    def _read(self, at: int) -> int:
        """Records changed figures of each used device; returns the time this took in ns."""
        assert self._reader is not None
        now, emit, began = self._session.now, self._session.emit, self._session.now()
        for index in self._devices():
            start, known = now(), self._last.get(index)
            try:
                figures = self._reader(index)
                if known is None:
                    limit = limit_of(self._torch, self._kind, index)
                    figures |= {} if limit is None else {MemoryFigure.LIMIT: limit}
            except (RuntimeError, NotImplementedError) as error:  # a custom allocator
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                self._report_unavailable(f"the allocator has no statistics: {why}")
                break
            if MemoryFigure.ALLOCATED not in figures:
                self._report_unavailable(f"torch has no memory statistics for {self._kind} devices")
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
        return sorted({int(current()), *self._accelerator.indices_of(self._kind)})

    def _read_apart(self) -> None:
        """Reads outside of a burst."""
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
        """Reads the peaks before the script resets them."""
        read = patcher.guarded(self._read_apart)
        make = called_around(lambda *_, **__: read())
        for module in device_modules(torch):
            for name in _RESETS:
                places = _places(module, name)
                if places:
                    patcher.around_if_there(make, *places)


class EmptiedCachesProbe:
    """Records calls of `empty_cache`, which return the allocator's unused memory to a device."""

    name = "emptied_caches"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        make = recorded_after(session.now, patcher.guarded(self._emptied))
        for module in device_modules(torch):
            places = _places(module, "empty_cache")
            if places:
                patcher.around_if_there(make, *places)

    def _emptied(self, start: int, end: int, caller: FrameType | None, _: Arguments) -> None:
        site = self._session.sites.find(caller)
        self._session.emit(_CACHE_EMPTIED, start, end, site, 0, 0)


def _places(module: Any, name: str) -> list[tuple[Any, str]]:
    """Returns the places of a function in torch's device module; most are in two."""
    holders = (getattr(module, "memory", None), module)
    return [(holder, name) for holder in holders if name in getattr(holder, "__dict__", {})]


def find_reader(torch: ModuleType, kind: str) -> Reader | None:
    """Returns the reader of a device type's statistics, None if torch has none."""
    module = getattr(torch, kind, None)
    nested = getattr(module, "memory_stats_as_nested_dict", None)
    if nested is not None:
        backend = getattr(module, "get_allocator_backend", None)
        is_native = backend is None or backend() == "native"
        return partial(_read_nested, nested, _COUNTS if is_native else ())
    flat = getattr(module, "memory_stats", None)
    if flat is not None:
        return partial(_read_flat, flat)
    current = getattr(module, "current_allocated_memory", None)  # mps
    if current is not None:
        return partial(_read_current, current, getattr(module, "driver_allocated_memory", None))
    general = getattr(getattr(torch, "accelerator", None), "memory_stats", None)
    return None if general is None else partial(_read_flat, general)


def _read_nested(
    stats: Callable[[int], Any], counts: Sequence[tuple[MemoryFigure, str]], index: int
) -> Figures:
    read, figures = stats(index), Figures()
    for figure, name, metric in _BYTES:
        with suppress(KeyError, TypeError):
            figures[figure] = int(read[name]["all"][metric])
    return figures | {figure: int(read[name]) for figure, name in counts if name in read}


def _read_flat(stats: Callable[[int], Mapping[str, Any]], index: int) -> Figures:
    read = stats(index)
    names = [(figure, f"{name}.all.{metric}") for figure, name, metric in _BYTES]
    return {figure: int(read[name]) for figure, name in (*names, *_COUNTS) if name in read}


def _read_current(
    allocated: Callable[[], int], reserved: Callable[[], int] | None, index: int
) -> Figures:
    figures = {MemoryFigure.ALLOCATED: int(allocated())}
    if reserved is not None:
        figures[MemoryFigure.RESERVED] = int(reserved())
    return figures


def limit_of(torch: ModuleType, kind: str, index: int) -> int | None:
    """Returns the bytes that this process may allocate on a device, None if unknown."""
    module = getattr(torch, kind, None)
    properties = getattr(module, "get_device_properties", None)
    if properties is not None:
        total = getattr(properties(index), "total_memory", None)
    else:
        recommended = getattr(module, "recommended_max_memory", None)  # mps
        total = None if recommended is None else recommended()
    if not isinstance(total, int) or total <= 0:
        return None
    fraction = getattr(module, "get_per_process_memory_fraction", None)
    return total if fraction is None else min(total, int(total * fraction(index)))


def last_state(is_user_code: Callable[[CodeType], bool]) -> dict[str, Any] | None:
    """Returns {device, place, requested_bytes, ...} of the memory error that ends this process.

    None without one. `place` is the user's innermost [file, line, function].
    """
    error = _last_error()
    for _ in range(_CAUSES):
        if error is None:
            return None
        if _is_out_of_memory(error):
            return _described(error, is_user_code)
        error = error.__cause__
    return None


def _last_error() -> BaseException | None:
    """Returns the uncaught exception; in a child of multiprocessing the one being handled."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error = error or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error if isinstance(error, BaseException) else None


def _is_out_of_memory(error: BaseException) -> bool:
    if any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__):
        return True
    # Torch has no class for it on mps, nor for errors of CUDA libraries.
    return isinstance(error, RuntimeError) and "out of memory" in _message(error)


def _message(error: BaseException) -> str:
    return str(error.args[0]) if error.args and isinstance(error.args[0], str) else ""


def _described(error: BaseException, is_user_code: Callable[[CodeType], bool]) -> dict[str, Any]:
    message = _message(error)
    device = _DEVICE.search(message)
    state: dict[str, Any] = {"device": int(device[1]) if device else None, "place": None}
    for name, pattern in _SIZES.items():
        size = pattern.search(message)
        state[name] = round(float(size[1]) * _UNITS[size[2]]) if size else None
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code):
            state["place"] = [code.co_filename, traceback.tb_lineno, code.co_name]
        traceback = traceback.tb_next
    return state
