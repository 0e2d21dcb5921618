"""Batches kept by a trial, and fresh copies of them: the script may change what it is given."""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import re
from types import ModuleType
from typing import Any, Final

CACHES: Final = "/sys/devices/system/cpu/cpu0/cache"
MEMORY: Final = "/proc/meminfo"
# A container sees its own there.
CGROUP: Final = "/sys/fs/cgroup"
# The limit, and what is used of it.
_OF_CGROUP: Final = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
# Where the kernel tells nothing; more than most have.
DEFAULT_CACHE_BYTES: Final = 64 << 20
DEFAULT_AVAILABLE_BYTES: Final = 2 << 30
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# A process has room for 65,530 mappings, and what is smaller hardly matters to the heap.
_LEAST_MOVED_BYTES: Final = 1 << 16


class KeptBatch:
    """A batch as its loader delivered it.

    Attributes:
        batch: A copy of it; not to be handed out, but for a fault.
        size_bytes: Of its tensors and arrays.
    """

    __slots__ = ("_clones", "_torch", "batch", "size_bytes")

    def __init__(self, batch: Any, torch: ModuleType) -> None:
        self._torch = torch
        memo: dict[int, Any] = {}
        self.batch = copy.deepcopy(batch, memo)
        # Of what was copied, deepcopy keeps the originals there.
        originals = memo.get(id(memo), [])
        self.size_bytes = sum(_size_bytes(thing, torch) for thing in originals)
        self._clones = self._find_clones(originals, memo)
        for tensor, _ in self._clones:
            self._move_off_the_heap(tensor)

    def copy(self) -> Any:
        """Returns a batch that shares nothing with this one or an earlier copy."""
        memo: dict[int, Any] = {}
        for tensor, is_pinned in self._clones:
            # At a fifth of what a tensor's own deepcopy takes.
            memo[id(tensor)] = self._pinned(tensor) if is_pinned else tensor.clone()
        return copy.deepcopy(self.batch, memo)

    def _find_clones(self, originals: list[Any], memo: dict[int, Any]) -> list[tuple[Any, bool]]:
        """Returns the tensors of the kept batch that are no more than their values.

        With whether they were pinned. Others (views of one storage, leaves with gradients) are left
        to their own deepcopy.
        """
        pairs = [(t, memo[id(t)]) for t in originals if type(t) is self._torch.Tensor]
        storages = [_storage(kept) for _, kept in pairs]
        found = []
        for (original, kept), storage in zip(pairs, storages, strict=True):
            is_whole = (
                storage is not None
                and storages.count(storage) == 1
                and storage[1] == kept.numel() * kept.element_size()
                and kept.is_contiguous()
                and not kept.requires_grad
            )
            is_pinned = is_whole and _is_pinned(original)
            if is_whole:
                found.append((kept, is_pinned))
        return found

    def _move_off_the_heap(self, tensor: Any) -> None:
        """Puts a tensor's values where no allocation of the script's lies.

        What stays on malloc's heap changes how much of it is free at its end, and so given back and
        faulted in again: steps of the same work were seen to take twice as long by that.
        """
        count = tensor.numel()
        size = count * tensor.element_size()
        if not tensor.is_cpu or size < _LEAST_MOVED_BYTES:
            return
        with contextlib.suppress(Exception):  # a dtype that is no plain number, or no room
            mapped = self._torch.frombuffer(mmap.mmap(-1, size), dtype=tensor.dtype, count=count)
            tensor.data = mapped.view(tensor.shape).copy_(tensor)

    def _pinned(self, tensor: Any) -> Any:
        return self._torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def _storage(tensor: Any) -> tuple[int, int] | None:
    """Returns where a tensor's values lie and how many bytes there are; None where it has none."""
    with contextlib.suppress(Exception):  # sparse, say
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    return None


def _is_pinned(tensor: Any) -> bool:
    try:
        return bool(tensor.is_cpu and tensor.is_pinned())
    except (RuntimeError, NotImplementedError):
        return False


def _size_bytes(thing: Any, torch: ModuleType) -> int:
    if isinstance(thing, torch.Tensor):
        return int(thing.numel() * thing.element_size())
    size = getattr(thing, "nbytes", None) if type(thing).__module__ == "numpy" else None
    return size if isinstance(size, int) else 0


def last_cache_bytes(directory: str = CACHES) -> int:
    """Returns the size of the last level of this machine's caches."""
    found = {0: DEFAULT_CACHE_BYTES}
    with contextlib.suppress(OSError, ValueError):
        for name in sorted(os.listdir(directory)):
            if name.startswith("index"):
                level = int(_text(os.path.join(directory, name, "level")))
                size = _text(os.path.join(directory, name, "size")).strip()
                told = re.fullmatch(r"(\d+)([KMG]?)", size)
                if told is not None:
                    found[level] = int(told[1]) * _UNITS[told[2]]
    return found[max(found)]


def available_bytes(path: str = MEMORY, cgroup: str = CGROUP) -> int:
    """Returns how much memory new work can have without swapping, on this machine or container."""
    found = [DEFAULT_AVAILABLE_BYTES]
    with contextlib.suppress(OSError):
        told = re.search(r"^MemAvailable:\s+(\d+) kB", _text(path), re.MULTILINE)
        if told is not None:
            found = [int(told[1]) << 10]
    for limit, used in _OF_CGROUP:
        with contextlib.suppress(OSError, ValueError):  # "max", or another version of cgroups
            most, held = (int(_text(os.path.join(cgroup, name))) for name in (limit, used))
            found.append(max(most - held, 0))
    return min(found)


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()
