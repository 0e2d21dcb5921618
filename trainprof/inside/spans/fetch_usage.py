"""What a fetch takes of the machine, by the kernel's counters: CPU, waiting for a core, reading."""

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
from trainprof.record.schema import FAULTS_SHIFT, NOT_TOLD, Kind

# Measuring takes some 10 us, and 50 more of the steps that follow, whose code it has driven out of
# the caches. So of fetches that follow a short one, one of so many is measured,
SHORT_NS: Final = 1_000_000
ONE_OF_SHORT: Final = 16
# and fewer still after so many short ones in a row.
ONE_OF_QUICK: Final = 128
QUICK_AFTER: Final = 512
LONG_NS: Final = 10_000_000
ONE_OF_MIDDLING: Final = 8
# Of long ones the first are measured all, for a run may have no more.
FIRST_LONG: Final = 64
ONE_OF_LONG: Final = 4
_TURN: Final = 1 << 32
_GOLDEN_STEP: Final = 0x9E3779B1

NO_DELAY: Final = -1
_RUN_DELAY_FILE: Final = "/proc/thread-self/schedstat"
_THREAD_STAT_FILE: Final = "/proc/thread-self/stat"
_DELAY_ACCOUNTING_FILE: Final = "/proc/sys/kernel/task_delayacct"
# Its place behind the name in parentheses in /proc/<pid>/stat: ticks waited for block devices.
_BLOCK_TICKS: Final = 39
_MAX_STAT_BYTES: Final = 4096
_MAX_RUN_DELAY_BYTES: Final = 128  # three numbers; making room takes a fifth of reading them
# Each thread that fetches keeps a file open; of more than these the run delay is not known.
_MAX_FILES: Final = 64
# A thread's CPU time in schedstat is as of the last tick. A file of the script's that has taken the
# number of ours says something else.
_MAX_LAG_NS: Final = 1_000_000_000
_READ_BLOCK_BYTES: Final = 512  # of ru_inblock
_MAX_READ: Final = (1 << FAULTS_SHIFT) - 1
_MAX_FAULTS: Final = (1 << (63 - FAULTS_SHIFT)) - 1
# The size of the first batches is read, and then of one in so many.
FIRST_LOOKED_AT: Final = 16
ONE_OF_BATCHES: Final = 8
# Of a tensor it takes 0.2 us: of so many a batch on average, and of no more than these.
_PARTS_A_BATCH: Final = 4
_MAX_PARTS: Final = 4096


# CPU ns of the thread, CPU seconds, blocks read and major faults of the process, run delay ns of
# the thread or NO_DELAY, us that the cgroup was stopped.
Counters = tuple[int, float, int, int, int, int]
# Before a fetch: how many fetches it stands for, and the counters.
Begun = tuple[int, Counters]


class _Spread:
    """Picks one of so many: where multiples of the golden ratio fall into the first part of a turn.

    They are spread evenly over any period that fetches themselves may have, as every 16th is not.
    """

    __slots__ = ("_place",)

    def __init__(self) -> None:
        self._place = 0

    def picks_next(self, one_of: int) -> bool:
        self._place = (self._place + _GOLDEN_STEP) % _TURN
        return self._place * one_of < _TURN

    def pass_over(self, one_of: int) -> int:
        """Goes on to just before the next that it picks; returns how many come first."""
        passed = 0
        while not self.picks_next(one_of):
            passed += 1
        self._place = (self._place - _GOLDEN_STEP) % _TURN
        return passed


class UsageMeter:
    """Measures fetches of this process, on any thread, and records what it finds.

    `throttle_file` is cpu.stat of the cgroup whose quota binds us, or None.

    Attributes:
        to_pass: How many of the next fetches are not to be measured; the caller counts them down.
    """

    __slots__ = (
        *("_emit", "_files", "_last_wall_ns", "_long_spread", "_longs", "_passed_later"),
        *("_short_spread", "_shorts", "_tells_reading", "_throttle", "_waited_ns", "to_pass"),
    )

    def __init__(self, emit: Callable[..., None], throttle_file: str | None) -> None:
        self._emit = emit
        self._throttle = None if throttle_file is None else _KeptFile(throttle_file)
        self._tells_reading = _read(_DELAY_ACCOUNTING_FILE).strip() == b"1"
        self._start_over()
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        """Forgets what a fork inherits: it is of the parent's threads."""
        self._files: dict[int, _KeptFile] = {}
        self._waited_ns: dict[int, tuple[int, int, int]] = {}
        self._long_spread, self._short_spread = _Spread(), _Spread()
        self._last_wall_ns = LONG_NS
        self.to_pass = self._passed_later = self._shorts = self._longs = 0

    def took(self, wall_ns: int) -> None:
        """To be called after each fetch; a short one that was passed over may be left out."""
        self._last_wall_ns = wall_ns
        if wall_ns >= SHORT_NS and self.to_pass:
            # They are of short fetches' turn, which goes on after this one.
            self._passed_later, self.to_pass = self.to_pass, 0

    def begin(self) -> Begun | None:
        """Reads the counters before a fetch; None if this one is not to be measured."""
        stands_for, last_ns = 1, self._last_wall_ns
        if last_ns < SHORT_NS:
            if self._passed_later:
                self.to_pass, self._passed_later = self._passed_later - 1, 0
                return None
            stands_for = ONE_OF_SHORT if self._shorts < QUICK_AFTER else ONE_OF_QUICK
            is_measured = self._short_spread.picks_next(stands_for)
            self.to_pass = self._short_spread.pass_over(stands_for)
            self._shorts += 1 + self.to_pass
        else:
            self._shorts = 0
            if last_ns < LONG_NS:
                stands_for = ONE_OF_MIDDLING
            elif self._longs < FIRST_LONG:
                self._longs += 1
            else:
                stands_for = ONE_OF_LONG
            is_measured = stands_for == 1 or self._long_spread.picks_next(stands_for)
        if not is_measured:
            return None
        throttled_us = self._throttled_us()
        used = getrusage(RUSAGE_SELF)
        blocks, faults = used.ru_inblock, used.ru_majflt
        if self._tells_reading:
            self._bring_up_to_date(blocks, faults)
        cpu_ns = thread_time_ns()
        cpu_s, delay_ns = used.ru_utime + used.ru_stime, self._run_delay_ns(cpu_ns)
        return stands_for, (cpu_ns, cpu_s, blocks, faults, delay_ns, throttled_us)

    def end(self, begun: Begun, start: int, wall_ns: int) -> None:
        """Reads them again after the fetch that began at `start`; records the differences."""
        cpu_ns = thread_time_ns()
        used = getrusage(RUSAGE_SELF)
        cpu_s, blocks, faults = used.ru_utime + used.ru_stime, used.ru_inblock, used.ru_majflt
        throttled_us = self._throttled_us()
        stands_for, before = begun
        cpu_before_ns, cpu_before_s, blocks_before, faults_before, delay_before_ns, stopped = before
        thread_ns = cpu_ns - cpu_before_ns
        delay_us, delay_ns = NOT_TOLD, self._run_delay_ns(cpu_ns)
        if 0 <= delay_before_ns <= delay_ns:
            waited_ns = max(min(delay_ns - delay_before_ns, wall_ns - thread_ns), 0)
            delay_us = min(waited_ns // 1000, NOT_TOLD - 1)
        # The kernel's two clocks are not read in the same moment.
        process_ns = max(round((cpu_s - cpu_before_s) * 1e9), thread_ns)
        emit = self._emit
        emit(_FETCH_CPU, start, start + thread_ns, delay_us, process_ns, stands_for)
        # One that has not waited for a core was not stopped by a quota either.
        stopped_us = max(throttled_us - stopped, 0) if delay_us else 0
        blocks, faults = blocks - blocks_before, faults - faults_before
        if blocks or faults or stopped_us:
            read = min(blocks * _READ_BLOCK_BYTES, _MAX_READ)
            traffic = read | min(faults, _MAX_FAULTS) << FAULTS_SHIFT
            emit(_FETCH_IO, start, start, min(stopped_us, NOT_TOLD - 1), traffic, stands_for)
        if self._tells_reading:
            reading_ns = self._bring_up_to_date(used.ru_inblock, used.ru_majflt)
            emit(_FETCH_READING, start, start + reading_ns, 0, 0, stands_for)

    def _throttled_us(self) -> int:
        """Returns for how long cpu.stat says that its cgroup has been stopped by its quota."""
        words = [] if self._throttle is None else self._throttle.read().split()
        for name, unit in ((b"throttled_usec", 1), (b"throttled_time", 1000)):  # cgroup v2, v1
            if name in words[:-1]:
                return int(words[words.index(name) + 1]) // unit
        return 0

    def _run_delay_ns(self, cpu_ns: int) -> int:
        """Returns for how long this thread has ever waited for a core, or NO_DELAY."""
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
        """Returns ns that this thread has waited for block devices since the last call.

        Only where the process has read blocks or had major faults since: asking takes 10 us.
        """
        thread = get_ident()
        known = self._waited_ns.get(thread)
        if known is not None and known[:2] == (read, faults):
            return 0
        waited_ns = _waited_for_devices_ns()
        self._waited_ns[thread] = (read, faults, waited_ns)
        return 0 if known is None else max(waited_ns - known[2], 0)


class _KeptFile:
    """A file of the kernel's that is kept open."""

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
        """Returns what it says now; b"" where it cannot be read."""
        for _ in range(2):
            if self._descriptor is None:
                break
            try:
                return os.pread(self._descriptor, self._most_bytes, 0)
            except OSError as error:
                # The thread that it was of is gone, and this one has got its number.
                if error.errno == errno.ESRCH:
                    os.close(self._descriptor)
            self._open()  # also where the script has closed it
        return b""


def _waited_for_devices_ns() -> int:
    """Returns for how long this thread has waited for block devices in its life."""
    fields = _read(_THREAD_STAT_FILE).rpartition(b")")[2].split()
    ticks = int(fields[_BLOCK_TICKS]) if len(fields) > _BLOCK_TICKS else 0
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def _read(path: str) -> bytes:
    return contents_of(path, _MAX_STAT_BYTES) or b""


class BatchScale:
    """Measures how large batches are."""

    def __init__(self, torch: ModuleType) -> None:
        self._plain = {getattr(torch, "Tensor", None)}
        self._modes = FunctionModes(torch)
        self._parts_left = _PARTS_A_BATCH
        self._spread, self._first_left = _Spread(), FIRST_LOOKED_AT

    def of(self, batch: Any) -> tuple[int, int] | None:
        """Returns bytes and number of the tensors and arrays in plain containers.

        None without any, where a mode of the script's would see us ask, for a batch of too many
        parts and some that follow one of many, and for most that follow the first ones.
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
