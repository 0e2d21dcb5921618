"""Reads what torch's allocator tells of the devices in use, at the ends of phases now and then."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.device.accelerator import Accelerator, device_modules
from trainprof.inside.patching.patcher import (
    Arguments,
    Patcher,
    hide_our_frame,
    let_dynamo_skip,
    told_after,
)
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


Figures = dict[MemoryFigure, int]
# Reads the figures of the device of that number.
Reader = Callable[[int], Figures]

_BYTES: Final = (
    (MemoryFigure.ALLOCATED, "allocated_bytes", "current"),
    (MemoryFigure.RESERVED, "reserved_bytes", "current"),
    (MemoryFigure.PEAK_ALLOCATED, "allocated_bytes", "peak"),
    (MemoryFigure.PEAK_RESERVED, "reserved_bytes", "peak"),
)
_COUNTS: Final = (
    (MemoryFigure.RETRIES, "num_alloc_retries"),
    (MemoryFigure.OUT_OF_MEMORY, "num_ooms"),
)
# Statistics that an allocator other than torch's own gives as 0, whatever happened.
_OF_NATIVE_ALLOCATOR: Final = (MemoryFigure.RETRIES, MemoryFigure.OUT_OF_MEMORY)


def find_reader(torch: ModuleType, kind: str) -> Reader | None:
    """Returns what reads a kind of device's statistics, at the least cost there is.

    Each call makes a dict of some 200 numbers: what torch offers besides flattens and sorts it
    for every single figure.

    Args:
        torch: The script's.
        kind: Such as "cuda"; the script has begun to use it.

    Returns:
        None where torch tells nothing of the kind.
    """
    module = getattr(torch, kind, None)
    nested = getattr(module, "memory_stats_as_nested_dict", None)
    if nested is not None:
        return _without(partial(_read_nested, nested), _not_kept(module))
    flat = getattr(module, "memory_stats", None)
    if flat is not None:
        return partial(_read_flat, flat)
    current = getattr(module, "current_allocated_memory", None)  # mps
    if current is not None:
        return partial(_read_current, current, getattr(module, "driver_allocated_memory", None))
    general = getattr(getattr(torch, "accelerator", None), "memory_stats", None)
    return None if general is None else partial(_read_flat, general)


def limit_of(torch: ModuleType, kind: str, index: int) -> int | None:
    """Returns the bytes that this process may take from a device; None where torch has no say.

    The device's own size, or the part of it that the script has limited itself to. What other
    processes hold comes off it.
    """
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


def _not_kept(module: Any) -> tuple[MemoryFigure, ...]:
    backend = getattr(module, "get_allocator_backend", None)
    is_native = backend is None or backend() == "native"
    return () if is_native else _OF_NATIVE_ALLOCATOR


def _without(read: Reader, figures: tuple[MemoryFigure, ...]) -> Reader:
    if not figures:
        return read
    return lambda index: {k: v for k, v in read(index).items() if k not in figures}


def _read_nested(stats: Callable[[int], Mapping[str, Any]], index: int) -> Figures:
    told, found = stats(index), Figures()
    for figure, name, metric in _BYTES:
        try:
            found[figure] = int(told[name]["all"][metric])
        except (KeyError, TypeError):
            continue
    return _with_counts(found, told)


def _read_flat(stats: Callable[[int], Mapping[str, Any]], index: int) -> Figures:
    told = stats(index)
    found = {
        figure: int(told[f"{name}.all.{metric}"])
        for figure, name, metric in _BYTES
        if f"{name}.all.{metric}" in told
    }
    return _with_counts(found, told)


def _with_counts(found: Figures, told: Mapping[str, Any]) -> Figures:
    found.update({figure: int(told[name]) for figure, name in _COUNTS if name in told})
    return found


def _read_current(
    allocated: Callable[[], int], reserved: Callable[[], int] | None, index: int
) -> Figures:
    found = {MemoryFigure.ALLOCATED: int(allocated())}
    if reserved is not None:
        found[MemoryFigure.RESERVED] = int(reserved())
    return found


_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
# From torch's own sentence; of it nothing else is kept.
_SIZES: Final = {
    "requested_bytes": re.compile(rf"[Tt]ried to allocate {_SIZE}"),
    "total_bytes": re.compile(rf"total capaci?ty of {_SIZE}"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free"),
    "allocated_bytes": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "kept_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
_DEVICE: Final = re.compile(r"\bGPU (\d{1,4})\b")
_CAUSES: Final = 8


def last_state(is_user_code: Callable[[CodeType], bool]) -> dict[str, Any] | None:
    """Returns {device, place, requested_bytes, ...} of the error that this process ends by.

    Sizes as torch rounded them in its message, each None where that does not tell it; `place` is
    the user's innermost [file, line, function].

    Returns:
        None where the process does not end by a device out of memory.
    """
    error = _is_ended_by()
    for _ in range(_CAUSES):
        if error is None:
            return None
        if _is_out_of_memory(error):
            return _described(error, is_user_code)
        error = error.__cause__
    return None


def _is_ended_by() -> BaseException | None:
    """The exception that nobody has caught; in a child of multiprocessing the one in flight."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error = error or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error if isinstance(error, BaseException) else None


def _is_out_of_memory(error: BaseException) -> bool:
    if any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__):
        return True
    # Where torch has no class for it: mps, and CUDA errors out of memory in its own libraries.
    return isinstance(error, RuntimeError) and "out of memory" in _message(error)


def _message(error: BaseException) -> str:
    return str(error.args[0]) if error.args and isinstance(error.args[0], str) else ""


def _described(error: BaseException, is_user_code: Callable[[CodeType], bool]) -> dict[str, Any]:
    message = _message(error)
    device = _DEVICE.search(message)
    state: dict[str, Any] = {"device": int(device[1]) if device else None, "place": None}
    for name, pattern in _SIZES.items():
        found = pattern.search(message)
        state[name] = round(float(found[1]) * _UNITS[found[2]]) if found else None
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code):
            state["place"] = [code.co_filename, traceback.tb_lineno, code.co_name]
        traceback = traceback.tb_next
    return state


class EmptiedCachesProbe:
    """Wraps `empty_cache` of every kind of device."""

    name = "emptied_caches"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        make = told_after(session.now, patcher.guarded(self._emptied))
        for module in device_modules(torch):
            here = [
                (one, "empty_cache")
                for one in (module, getattr(module, "memory", None))
                if one is not None and "empty_cache" in vars(one)
            ]
            if here and len({id(vars(one)[name]) for one, name in here}) == 1:
                patcher.around_if_there(make, *here)

    def _emptied(self, start: int, end: int, caller: FrameType | None, _: Arguments) -> None:
        site = self._session.sites.find(caller)
        self._session.emit(_CACHE_EMPTIED, start, end, site, 0, 0)


_CACHE_EMPTIED = int(Kind.CACHE_EMPTIED)
