"""Notes of a loader's worker: its stream's first samples, get_worker_info(), torch's threads.

Workers of one epoch with equal samples each read the whole stream.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.patcher import Patcher, Wrapped
from trainprof.inside.session import Session

# Samples per worker that are compared.
COMPARED: Final = 8
_MOST_BYTES: Final = 1 << 16
_DEPTH: Final = 3
# Torch's own callers of get_worker_info().
_TORCHS: Final = ("torch.utils.data._utils.collate", "torch.random")
_PLAIN: Final = frozenset(map(id, (bool, int, float, complex, type(None))))
# Keeps the log small if a script sets another number of threads for each batch.
_MOST_THREAD_NOTES: Final = 8


class StreamSamples:
    """Computes checksums of a worker's first samples; workers of an iterator share `base_seed`."""

    def __init__(self, torch: ModuleType, session: Session, base_seed: int) -> None:
        self._tensor, self._session, self._base_seed = torch.Tensor, session, base_seed
        self._checksums: list[int | None] = []

    def add(self, samples: Any) -> None:
        """Adds a batch's samples, or a single sample without batching."""
        for sample in samples if type(samples) is list else [samples]:
            if None in self._checksums or len(self._checksums) == COMPARED:
                return
            self._checksums.append(self._of(sample, _DEPTH))
            if len(self._checksums) == COMPARED and None not in self._checksums:
                first = {"base_seed": self._base_seed, "checksums": self._checksums}
                self._session.note_state({"first_samples": first})

    def _of(self, thing: Any, depth: int) -> int | None:
        """Returns a checksum, None for classes whose code would have to run."""
        kind = type(thing)
        if id(kind) in _PLAIN:
            return zlib.crc32(repr(thing).encode())
        if kind is bytes or kind is str:
            part = thing[:_MOST_BYTES]
            return zlib.crc32(part if kind is bytes else part.encode(errors="replace"))
        if kind is self._tensor:
            if not thing.is_cpu or thing.is_sparse or thing.is_quantized:
                return None
            return self._of(thing.detach().numpy(), depth)
        if kind.__module__ == "numpy" and hasattr(kind, "__array_interface__"):
            return _of_array(thing)
        if depth and kind in (tuple, list, dict):
            items = [*thing.items()] if kind is dict else thing
            inner = [self._of(item, depth - 1) for item in items[:COMPARED]]
            return None if None in inner else zlib.crc32(repr((len(thing), inner)).encode())
        return None


def _of_array(array: Any) -> int | None:
    """Returns a numpy array's or number's checksum, of every n-th element if it is large."""
    if array.dtype.hasobject:
        return None
    if array.nbytes > _MOST_BYTES:
        array = array.flat[:: -(-array.nbytes // _MOST_BYTES)]
    return zlib.crc32(array.tobytes(), zlib.crc32(repr((array.dtype.str, array.shape)).encode()))


def is_not_torchs(caller: FrameType) -> bool:
    """Returns whether code other than torch's calls get_worker_info()."""
    return caller.f_globals.get("__name__") not in _TORCHS


def records_callers(patcher: Patcher, session: Session) -> Callable[[Wrapped], Wrapped]:
    """Returns a wrapper of torch's get_worker_info that records each process's first call."""
    noted_in = 0

    def note(caller: FrameType) -> None:
        nonlocal noted_in
        if is_not_torchs(caller):
            noted_in = os.getpid()
            session.note_state({"asked_for_worker": True})

    note_safely = patcher.guarded(note)

    def make(original: Wrapped) -> Wrapped:
        def get_worker_info() -> Any:
            if noted_in != os.getpid():
                note_safely(sys._getframe(1))
            return original()

        return get_worker_info

    return make


class WorkerThreads:
    """Records torch's number of threads, which a script may set at any time."""

    def __init__(self, torch: ModuleType, session: Session) -> None:
        self._threads_of_torch, self._session = torch.get_num_threads, session
        self._last: dict[str, Any] | None = None
        self._notes_left = _MOST_THREAD_NOTES

    def note_changes(self) -> None:
        """Records the number if it changed; call it after a fetch, which may set it."""
        if not self._notes_left:
            return
        note = {"torch": self._threads_of_torch(), "set_at": self._session.threads_set_at}
        if note != self._last:
            self._last = note
            self._notes_left -= 1
            self._session.note_state({"worker_threads": note})
