"""What a fetch takes of the machine, told by the kernel: CPU, waiting for a core, reading."""

from __future__ import annotations

import os
import resource
from _thread import get_ident
from collections.abc import Callable
from time import process_time_ns, thread_time_ns
from types import ModuleType
from typing import Any, Final

from trainprof.record.schema import FAULTS_SHIFT, NOT_TOLD, Kind

# CPU ns of the thread, of the process, and run delay ns or NO_DELAY, read before the fetch.
Begun = tuple[int, int, int]

# Measuring takes some 8 us: of a main process's fetches after one shorter than this, one in EVERY
# is measured. In a worker it delays nobody.
SHORT_NS: Final = 150_000
EVERY: Final = 8

NO_DELAY: Final = -1
_RUN_DELAY_FILE: Final = "/proc/thread-self/schedstat"
_THREAD_STAT_FILE: Final = "/proc/thread-self/stat"
_DELAY_ACCOUNTING_FILE: Final = "/proc/sys/kernel/task_delayacct"
# Its place behind the name in parentheses in /proc/<pid>/stat: ticks waited for block devices.
_BLOCK_TICKS: Final = 39
_MAX_STAT_BYTES: Final = 4096
# Each thread that fetches keeps a file open; of more than these the run delay is not told.
_MAX_FILES: Final = 64
_READ_BLOCK_BYTES: Final = 512  # of ru_inblock
_MAX_READ: Final = (1 << FAULTS_SHIFT) - 1
_MAX_FAULTS: Final = (1 << (63 - FAULTS_SHIFT)) - 1
_MAX_PARTS: Final = 64


class UsageMeter:
    """Measures fetches of this process, on any thread, and records what it finds.

    Args:
        emit: The log's.
        throttle_file: cpu.stat of the cgroup whose quota binds us, or None.
    """

    def __init__(self, emit: Callable[..., None], throttle_file: str | None) -> None:
        self._emit = emit
        self._throttle_file = throttle_file
        self._tells_reading = _read(_DELAY_ACCOUNTING_FILE).strip() == b"1"
        self._start_over()
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        """Forgets what a fork inherits: it tells of the parent's threads."""
        self._files: dict[int, int] = {}
        self._before: dict[int, _Counters] = {}
        self._throttled_us = _throttled_us(self._throttle_file)
        self._last_wall_ns = SHORT_NS
        self._passed_over = 0

    def begin(self, *, is_worker: bool) -> Begun | None:
        """Reads the counters before a fetch; None if this one is not to be measured."""
        if not is_worker and self._last_wall_ns < SHORT_NS:
            self._passed_over += 1
            if self._passed_over < EVERY:
                return None
            self._passed_over = 0
        thread = get_ident()
        if thread not in self._before:
            self._before[thread] = _Counters(self._tells_reading)
        return thread_time_ns(), process_time_ns(), self._run_delay_ns(thread)

    def end(self, begun: Begun, start: int, end: int, *, is_worker: bool) -> int:
        """Reads them again, records the differences, and returns how many fetches this stands for.

        Args:
            begun: From `begin`.
            start, end: Of the fetch, ns.
            is_worker: As at `begin`.
        """
        of_thread, of_process = thread_time_ns() - begun[0], process_time_ns() - begun[1]
        thread, delay_us = get_ident(), NOT_TOLD
        if begun[2] != NO_DELAY:
            delay = self._run_delay_ns(thread)
            if delay >= begun[2]:
                delay_us = min((delay - begun[2]) // 1000, NOT_TOLD - 1)
        stands_for = 1 if is_worker or self._last_wall_ns >= SHORT_NS else EVERY
        self._last_wall_ns = end - start
        emit = self._emit
        emit(_FETCH_CPU, start, start + of_thread, delay_us, max(of_process, of_thread), stands_for)
        read, faults, reading_ns = self._before[thread].advance()
        # One that has not waited for a core was not stopped by a quota either.
        throttled_us = self._newly_throttled_us() if delay_us else 0
        traffic = min(read, _MAX_READ) | min(faults, _MAX_FAULTS) << FAULTS_SHIFT
        emit(_FETCH_IO, start, start, throttled_us, traffic, stands_for)
        if reading_ns is not None:
            emit(_FETCH_READING, start, start + reading_ns, 0, 0, stands_for)
        return stands_for

    def _newly_throttled_us(self) -> int:
        if self._throttle_file is None:
            return 0
        before, self._throttled_us = self._throttled_us, _throttled_us(self._throttle_file)
        return min(max(self._throttled_us - before, 0), NOT_TOLD - 1)

    def _run_delay_ns(self, thread: int) -> int:
        """Returns for how long this thread has waited for a core in its life, or NO_DELAY."""
        file = self._files.get(thread)
        try:
            if file is None:
                if len(self._files) >= _MAX_FILES:
                    return NO_DELAY
                self._files[thread] = NO_DELAY  # should opening fail
                file = self._files[thread] = os.open(_RUN_DELAY_FILE, os.O_RDONLY | os.O_CLOEXEC)
            if file == NO_DELAY:
                return NO_DELAY
            return int(os.pread(file, 64, 0).split()[1])
        except (OSError, IndexError, ValueError):  # no such file here, or the script closed it
            self._files[thread] = NO_DELAY
            return NO_DELAY


class _Counters:
    """What one thread has read so far. Between two fetches it reads next to nothing."""

    __slots__ = ("_faults", "_reading_ns", "_reads", "_tells_reading")

    def __init__(self, tells_reading: bool) -> None:
        self._tells_reading = tells_reading
        self._reads, self._faults = _reads_and_faults()
        self._reading_ns = _reading_ns() if tells_reading else 0

    def advance(self) -> tuple[int, int, int | None]:
        """Returns bytes, major faults, and ns waited for block devices since the last call."""
        reads, faults = _reads_and_faults()
        new_reads, new_faults = reads - self._reads, faults - self._faults
        self._reads, self._faults = reads, faults
        reading: int | None = None
        if self._tells_reading:
            reading = 0
            if new_reads or new_faults:
                before, self._reading_ns = self._reading_ns, _reading_ns()
                reading = max(self._reading_ns - before, 0)
        return new_reads * _READ_BLOCK_BYTES, new_faults, reading


def _reads_and_faults() -> tuple[int, int]:
    used = resource.getrusage(_WHO)
    return used.ru_inblock, used.ru_majflt


# Of the whole process where the thread's own is not to be had.
_WHO: Final = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def _reading_ns() -> int:
    fields = _read(_THREAD_STAT_FILE).rpartition(b")")[2].split()
    ticks = int(fields[_BLOCK_TICKS]) if len(fields) > _BLOCK_TICKS else 0
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def _throttled_us(file: str | None) -> int:
    """Returns for how long the cgroup has been stopped by its quota; 0 where that is not told."""
    words = _read(file).split() if file is not None else []
    told = dict(zip(words[::2], words[1::2], strict=False))
    if b"throttled_usec" in told:
        return int(told[b"throttled_usec"])
    return int(told.get(b"throttled_time", 0)) // 1000  # cgroup v1, in ns


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _MAX_STAT_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)


class BatchScale:
    """Tells how large batches are."""

    def __init__(self, torch: ModuleType) -> None:
        self._plain = {getattr(torch, "Tensor", None)}
        self._mode_depth = getattr(torch._C, "_len_torch_function_stack", lambda: 0)

    def of(self, batch: Any) -> tuple[int, int] | None:
        """Returns bytes and number of the tensors and arrays in plain containers.

        None where none is found, or where a mode of the script's would see us ask.
        """
        if self._mode_depth():
            return None
        size = count = 0
        waiting = [batch]
        for _ in range(_MAX_PARTS):
            if not waiting:
                break
            thing = waiting.pop()
            kind = type(thing)
            if kind in self._plain:
                size += thing.numel() * thing.element_size()
                count += 1
            elif kind is list or kind is tuple:
                waiting.extend(thing[:_MAX_PARTS])
            elif kind is dict:
                waiting.extend(thing.values())
            elif kind.__name__ == "ndarray" and kind.__module__ == "numpy":
                size += thing.nbytes
                count += 1
        return (size, count) if count else None


_FETCH_CPU, _FETCH_IO = int(Kind.FETCH_CPU), int(Kind.FETCH_IO)
_FETCH_READING = int(Kind.FETCH_READING)
