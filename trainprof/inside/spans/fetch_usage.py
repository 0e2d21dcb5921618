"""Measures a fetch's resources by the kernel's counters: CPU, run delay, reading."""

from __future__ import annotations

import errno
import os
from _thread import get_ident
from collections.abc import Callable
from time import thread_time_ns
from types import ModuleType
from typing import Any, Final

from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.process.usage import RUSAGE_SELF, getrusage
from trainprof.record.files import contents_of
from trainprof.record.hot import new_state
from trainprof.record.schema import FAULTS_SHIFT, NOT_REPORTED, Kind

# Measuring takes 10 us, and 50 us more in the following code, which it evicts from the CPU caches.
# So one fetch in ONE_OF is measured, after MANY_AFTER short ones in a row one in ONE_OF_MANY.
SHORT_NS: Final = 1_000_000
ONE_OF: Final = 16
MANY_AFTER: Final = 512
ONE_OF_MANY: Final = 128
# The first ones after longer ones are all measured, as a run may have no more.
FIRST_LONG: Final = 64
_TURN: Final = 1 << 32
_GOLDEN_STEP: Final = 0x9E3779B1

NO_DELAY: Final = -1
_RUN_DELAY_FILE: Final = "/proc/thread-self/schedstat"
_THREAD_STAT_FILE: Final = "/proc/thread-self/stat"
_DELAY_ACCOUNTING_FILE: Final = "/proc/sys/kernel/task_delayacct"
# Index after the name in /proc/<pid>/stat: ticks waited for block devices.
_BLOCK_TICKS: Final = 39
_MAX_STAT_BYTES: Final = 4096
_MAX_RUN_DELAY_BYTES: Final = 128  # three numbers; a larger buffer is slower
# Each fetching thread keeps a file open; more threads have no run delay.
_MAX_FILES: Final = 64
# Schedstat's CPU time is that of the last tick. A larger difference means that the script closed
# our descriptor and opened another file under its number.
_MAX_LAG_NS: Final = 1_000_000_000
_READ_BLOCK_BYTES: Final = 512  # of ru_inblock
_MAX_READ: Final = (1 << FAULTS_SHIFT) - 1
_MAX_FAULTS: Final = (1 << (63 - FAULTS_SHIFT)) - 1
# The first batches are measured, then one in ONE_OF_BATCHES.
FIRST_MEASURED: Final = 16
ONE_OF_BATCHES: Final = 8
# Tensors measured per batch, at 0.2 us each: on average, and at most.
_PARTS_A_BATCH: Final = 4
_MAX_PARTS: Final = 4096


# The thread's CPU ns; the process's CPU s, blocks read and major faults; the thread's run delay in
# ns or NO_DELAY; us for which the cgroup was throttled.
Counters = tuple[int, float, int, int, int, int]
# Before a fetch: the number of fetches it stands for, and the counters.
Begun = tuple[int, Counters]


class _Spread:
    """Picks one in n, evenly spread over any period of the fetches (every n-th would not be).

    It picks where multiples of the golden ratio fall into the first n-th of the unit interval.
    """

    __slots__ = ("_place",)

    def __init__(self) -> None:
        self._place = 0

    def picks_next(self, one_of: int) -> bool:
        self._place = (self._place + _GOLDEN_STEP) % _TURN
        return self._place * one_of < _TURN

    def pass_over(self, one_of: int) -> int:
        """Skips to just before the next pick; returns the number skipped."""
        passed = 0
        while not self.picks_next(one_of):
            passed += 1
        self.go_back(1)
        return passed

    def go_back(self, count: int) -> None:
        """Goes back to before the last `count` fetches."""
        self._place = (self._place - count * _GOLDEN_STEP) % _TURN


class UsageMeter:
    """Measures and records fetches of this process, on any thread.

    Args:
        throttle_file: cpu.stat of the cgroup with the smallest quota, or None.

    Attributes:
        state: The caller counts its `to_pass` down and then calls `begin`.
    """

    __slots__ = (
        *("_emit", "_files", "_is_short", "_longs", "_reports_reading", "_shorts", "_spreads"),
        *("_throttle", "_to_pass_later", "_waited_ns", "state"),
    )

    def __init__(self, emit: Callable[..., None], throttle_file: str | None) -> None:
        self._emit = emit
        self._throttle = None if throttle_file is None else _KeptFile(throttle_file)
        self.state = new_state()
        self._reports_reading = _read(_DELAY_ACCOUNTING_FILE).strip() == b"1"
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Resets what a fork inherits, which is of the parent's threads."""
        self._files: dict[int, _KeptFile] = {}
        self._waited_ns: dict[int, tuple[int, int, int]] = {}
        self._spreads = {True: _Spread(), False: _Spread()}
        # Whether the last fetch was short; the number to pass after one of the other kind.
        self._is_short = False
        self._to_pass_later = self._shorts = self._longs = 0
        self.state.to_pass = self.state.least_ns = 0

    def took(self, wall_ns: int) -> None:
        """Call it after each fetch of `state.least_ns` and more."""
        is_short = wall_ns < SHORT_NS
        if is_short is not self._is_short:
            state = self.state
            if self._shorts >= MANY_AFTER:  # next time one in ONE_OF is measured again
                self._spreads[True].go_back(state.to_pass)
                state.to_pass = 0
            self._is_short, self._shorts = is_short, 0
            state.to_pass, self._to_pass_later = self._to_pass_later, state.to_pass
            state.least_ns = SHORT_NS if is_short else 0

    def begin(self) -> Begun | None:
        """Reads the counters before a fetch, None if it is not measured."""
        stands_for, is_short = ONE_OF, self._is_short
        if is_short:
            stands_for = ONE_OF if self._shorts < MANY_AFTER else ONE_OF_MANY
        elif self._longs < FIRST_LONG:
            self._longs += 1
            stands_for = 1
        spread = self._spreads[is_short]
        is_measured = spread.picks_next(stands_for)
        passed = spread.pass_over(stands_for)
        if is_short is self._is_short:  # else another thread's fetch was of the other kind
            self.state.to_pass = passed
            self._shorts += (1 + passed) * is_short
        if not is_measured:
            return None
        throttled_us = self._throttled_us()
        used = getrusage(RUSAGE_SELF)
        blocks, faults = used.ru_inblock, used.ru_majflt
        if self._reports_reading:
            self._bring_up_to_date(blocks, faults)
        cpu_ns = thread_time_ns()
        cpu_s, delay_ns = used.ru_utime + used.ru_stime, self._run_delay_ns(cpu_ns)
        return stands_for, (cpu_ns, cpu_s, blocks, faults, delay_ns, throttled_us)

    def end(self, begun: Begun, start: int, wall_ns: int) -> None:
        """Records the differences of the counters after the fetch that began at `start`."""
        cpu_ns = thread_time_ns()
        used = getrusage(RUSAGE_SELF)
        cpu_s, blocks, faults = used.ru_utime + used.ru_stime, used.ru_inblock, used.ru_majflt
        throttled_us = self._throttled_us()
        stands_for, before = begun
        cpu_before_ns, cpu_before_s, blocks_before, faults_before, delay_before_ns, stopped = before
        thread_ns = cpu_ns - cpu_before_ns
        delay_us, delay_ns = NOT_REPORTED, self._run_delay_ns(cpu_ns)
        if 0 <= delay_before_ns <= delay_ns:
            waited_ns = max(min(delay_ns - delay_before_ns, wall_ns - thread_ns), 0)
            delay_us = min(waited_ns // 1000, NOT_REPORTED - 1)
        # The two clocks are not read at the same moment.
        process_ns = max(round((cpu_s - cpu_before_s) * 1e9), thread_ns)
        emit = self._emit
        emit(_FETCH_CPU, start, start + thread_ns, delay_us, process_ns, stands_for)
        # Without run delay it was not throttled either.
        stopped_us = max(throttled_us - stopped, 0) if delay_us else 0
        blocks, faults = blocks - blocks_before, faults - faults_before
        if blocks or faults or stopped_us:
            read = min(blocks * _READ_BLOCK_BYTES, _MAX_READ)
            traffic = read | min(faults, _MAX_FAULTS) << FAULTS_SHIFT
            emit(_FETCH_IO, start, start, min(stopped_us, NOT_REPORTED - 1), traffic, stands_for)
        if self._reports_reading:
            reading_ns = self._bring_up_to_date(used.ru_inblock, used.ru_majflt)
            emit(_FETCH_READING, start, start + reading_ns, 0, 0, stands_for)

    def _throttled_us(self) -> int:
        """Returns the time in us for which the quota has throttled the cgroup."""
        words = [] if self._throttle is None else self._throttle.read().split()
        for name, unit in ((b"throttled_usec", 1), (b"throttled_time", 1000)):  # cgroup v2, v1
            if name in words[:-1]:
                return int(words[words.index(name) + 1]) // unit
        return 0

    def _run_delay_ns(self, cpu_ns: int) -> int:
        """Returns this thread's total wait for a core in ns, or NO_DELAY."""
        thread = get_ident()
        file = self._files.get(thread)
        if file is None:
            if len(self._files) >= _MAX_FILES:
                return NO_DELAY
            file = self._files[thread] = _KeptFile(_RUN_DELAY_FILE, _MAX_RUN_DELAY_BYTES)
        try:
            ran, waited, _ = file.read().split()
            return int(waited) if abs(cpu_ns - int(ran)) < _MAX_LAG_NS else NO_DELAY
        except ValueError:
            return NO_DELAY

    def _bring_up_to_date(self, read: int, faults: int) -> int:
        """Returns the ns that this thread waited for block devices since the last call.

        It reads them only if the process read blocks or had major faults: that takes 10 us.
        """
        thread = get_ident()
        known = self._waited_ns.get(thread)
        if known is not None and known[:2] == (read, faults):
            return 0
        waited_ns = _waited_for_devices_ns()
        self._waited_ns[thread] = (read, faults, waited_ns)
        return 0 if known is None else max(waited_ns - known[2], 0)


class _KeptFile:
    """A kernel file that is kept open."""

    __slots__ = ("_descriptor", "_most_bytes", "_path")

    def __init__(self, path: str, most_bytes: int = _MAX_STAT_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._open()

    def _open(self) -> None:
        self._descriptor: int | None
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def read(self) -> bytes:
        """Returns its content now, b"" if it cannot be read."""
        for _ in range(2):
            if self._descriptor is None:
                break
            try:
                return os.pread(self._descriptor, self._most_bytes, 0)
            except OSError as error:
                # The file's thread has ended, and this one has its ident.
                if error.errno == errno.ESRCH:
                    os.close(self._descriptor)
            self._open()  # also if the script closed it
        return b""


def _waited_for_devices_ns() -> int:
    """Returns this thread's total wait for block devices in ns."""
    fields = _read(_THREAD_STAT_FILE).rpartition(b")")[2].split()
    ticks = int(fields[_BLOCK_TICKS]) if len(fields) > _BLOCK_TICKS else 0
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def _read(path: str) -> bytes:
    return contents_of(path, _MAX_STAT_BYTES) or b""


class BatchScale:
    """Measures the size of batches."""

    def __init__(self, torch: ModuleType) -> None:
        self._plain = {getattr(torch, "Tensor", None)}
        self._modes = FunctionModes(torch)
        self._parts_left = _PARTS_A_BATCH
        self._spread, self._first_left = _Spread(), FIRST_MEASURED

    def of(self, batch: Any) -> tuple[int, int] | None:
        """Returns bytes and number of the tensors and arrays in plain containers.

        None without any, for most batches after the first ones, if a mode of the script would see
        the reads, and for a batch of too many parts and some after one of many.
        """
        if self._first_left:
            self._first_left -= 1
        elif not self._spread.picks_next(ONE_OF_BATCHES):
            return None
        self._parts_left = min(self._parts_left + _PARTS_A_BATCH, _PARTS_A_BATCH)
        if self._parts_left < _PARTS_A_BATCH or self._modes.would_notice():
            return None
        with self._modes.unseen():
            return self._ask(batch)

    def _ask(self, batch: Any) -> tuple[int, int] | None:
        size = count = parts = 0
        waiting = [batch]
        while waiting:
            parts += 1
            thing = waiting.pop()
            kind = type(thing)
            if kind in self._plain:
                size += thing.numel() * thing.element_size()
                count += 1
            elif kind is list or kind is tuple or kind is dict:
                if parts + len(waiting) + len(thing) > _MAX_PARTS:
                    count = 0
                    break
                waiting.extend(thing.values() if kind is dict else thing)
            elif kind.__name__ == "ndarray" and kind.__module__ == "numpy":
                size += thing.nbytes
                count += 1
        self._parts_left -= parts
        return (size, count) if count else None


_FETCH_CPU, _FETCH_IO = int(Kind.FETCH_CPU), int(Kind.FETCH_IO)
_FETCH_READING = int(Kind.FETCH_READING)
