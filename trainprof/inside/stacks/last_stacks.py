"""Keeps this process's last stacks in a file that survives however the process ends."""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any, Final

from trainprof.inside.limits.limit import loader_worker
from trainprof.inside.patching.call_site import CallSites
from trainprof.inside.stacks.copied_frames import CopiedFrame, beginning_of_child, stack_of
from trainprof.record.last_stacks import SLOT_BYTES, SLOTS, STACKS_SUFFIX
from trainprof.record.log_chunk import allocate

# Time between samples: at first, doubling up to PERIOD_S.
FIRST_PERIOD_S: Final = 0.05
PERIOD_S: Final = 1.0
_LONGEST_WAIT_S: Final = 3600.0
# Length of file and function names, so that a sample fits its slot.
_LONGEST_NAME: Final = 240

Position = tuple[str, int, str]


class LastStacks:
    """Writes this process's last stack sample to `events`, for one thread at a time."""

    def __init__(self, events: str, sites: CallSites) -> None:
        self._events, self._sites = events, sites
        self._slots: memoryview | None = None
        self._is_refused = False
        self._written = 0
        self._sample: dict[str, Any] = {}
        self._since: dict[int, tuple[object, int]] = {}
        self.due_ns = 0

    def in_child(self) -> LastStacks:
        return LastStacks(self._events, self._sites)

    def wait_s(self) -> float:
        return min(max(self.due_ns - perf_counter_ns(), 0) * 1e-9, _LONGEST_WAIT_S)

    def write(self, threads: Iterable[int] = ()) -> None:
        """Samples and writes the stacks of the main thread and others, by their idents."""
        if self._is_refused:
            return
        now = perf_counter_ns()
        main = threading.main_thread().ident
        idents = [main, *(ident for ident in threads if ident != main)]
        stacks = {ident: stack_of(ident) for ident in idents if ident is not None}
        sampled = [
            self._sampled(ident, stack, now) | {"is_main": ident == main}
            for ident, stack in stacks.items()
            if stack is not None
        ]
        period_s = min(FIRST_PERIOD_S * 2 ** min(self._written, 10), PERIOD_S)
        self.due_ns = now + round(period_s * 1e9)
        self._sample = {
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "at_ns": now,
            "ended_ns": None,
            "rank": os.environ.get("RANK"),
            "worker": loader_worker(),
            "threads": sampled,
        }
        self._put(self._sample)

    def end(self) -> None:
        """Records that the process ends, and keeps its last stacks."""
        if self._sample and not self._is_refused:
            now = perf_counter_ns()
            self._put({**self._sample, "at_ns": now, "ended_ns": now})

    def _sampled(self, ident: int, stack: CopiedFrame, now: int) -> dict[str, Any]:
        user, called, innermost = self._frames(stack)
        position = (user, called and called[2])
        known, since = self._since.get(ident, (None, now))
        since = since if known == position else now
        self._since[ident] = position, since
        return {"since_ns": since, "user": user, "called": called, "innermost": innermost}

    def _frames(self, stack: CopiedFrame) -> tuple[Position | None, Position | None, Position]:
        """Returns the innermost user frame, the one that it called, and the innermost frame."""
        innermost: CopiedFrame | None = None
        called: CopiedFrame | None = None
        frame: CopiedFrame | None = stack
        begins = beginning_of_child()
        while frame is not None and frame.f_code is not begins:
            if self._sites.is_user_code(frame.f_code):
                callee = None if called is None else self._place(called)
                return self._place(frame), callee, self._place(innermost or frame)
            # Our frames wrap functions that the user called.
            if not self._sites.is_ours(frame.f_code):
                called, innermost = frame, innermost or frame
            frame = frame.f_back
        return None, None, self._place(innermost or stack)

    def _place(self, frame: CopiedFrame) -> Position:
        file, line, name = self._sites.place(frame)
        return file[-_LONGEST_NAME:], line, name[-_LONGEST_NAME:]

    def _put(self, sample: dict[str, Any]) -> None:
        threads = sample["threads"]
        text = json.dumps(sample).encode("ascii")
        while len(text) > SLOT_BYTES and threads:
            threads.pop()
            text = json.dumps(sample).encode("ascii")
        try:
            if self._slots is None:
                name = f"{os.getpid()}-{sample['at_ns']}{STACKS_SUFFIX}"
                self._slots = _mapped(os.path.join(self._events, name))
        except (ImportError, OSError, AttributeError):
            self._is_refused, self.due_ns = True, sys.maxsize
            return
        at = self._written % SLOTS * SLOT_BYTES
        self._slots[at : at + SLOT_BYTES] = text.ljust(SLOT_BYTES)
        self._written += 1


def _mapped(path: str) -> memoryview:
    """Returns a new file's bytes for writing; Python's mmap would keep a descriptor open."""
    import ctypes

    size = SLOTS * SLOT_BYTES
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        allocate(descriptor, 0, size)
        map_ = ctypes.PyDLL(None).mmap
        map_.restype = ctypes.c_void_p
        map_.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        address = map_(None, size, mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError("the file cannot be mapped")
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
