"""Which tensors hold the same numbers in each step, as far as a few looks tell."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from math import gcd
from types import ModuleType
from typing import Any, Final

# Functions, by name, whose results have no numbers yet.
NO_NUMBERS_YET: Final = frozenset({"empty", "empty_like", "new_empty", "empty_strided"})
# Of a result: the most bytes that are all gone through, and numbers that are compared of more.
_ALL_BYTES: Final = 1 << 18
_SAMPLED: Final = 8_192
_MOST_NUMBERS: Final = 1 << 24


class KnownNumbers:
    """Storages that hold, as far as is known, the same numbers in each step.

    By where torch keeps them; a reference is kept to each, weakly, so that no other gets its place.
    """

    def __init__(self, weak: Callable[[Any], Any]) -> None:
        self._weak = weak
        # With how often each had been written to.
        self._made: dict[int, tuple[Any, int]] = {}
        self._raw: set[int] = set()
        self._met: dict[int, tuple[Any, int]] = {}
        self._met_before: dict[int, tuple[Any, int]] = {}
        self._changing: set[int] = set()

    def begin(self) -> None:
        """Begins a look: what was met in the one before, and is the same, is known to stay."""
        self._met_before, self._met = self._met, {}

    def end(self) -> None:
        self._made, self._raw, self._changing = {}, set(), set()

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor's numbers were there in the last look, or come of such."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        version: int = tensor._version
        made = self._made.get(key)
        if made is not None:
            return made[1] == version
        if key in self._changing:
            return False
        if key not in self._met:
            self._met[key] = self._weak(storage), version
        before = self._met_before.get(key)
        if before is None or before[1] != version:
            return False
        return before[0].expired() is False

    def add(self, tensor: Any, *, is_raw: bool = False) -> None:
        """Notes that a tensor's numbers are now such, or, if `is_raw`, still to be written."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._changing.discard(key)
        kept = self._made.get(key)
        weak = self._weak(storage) if kept is None else kept[0]
        self._made[key] = weak, tensor._version
        if is_raw:
            self._raw.add(key)
        elif kept is None:
            self._raw.discard(key)

    def is_raw(self, tensor: Any) -> bool:
        """Whether parts of it may not have been written yet."""
        return tensor.untyped_storage()._cdata in self._raw

    def drop(self, tensor: Any) -> None:
        """Notes that a tensor's numbers are others in each step."""
        key = tensor.untyped_storage()._cdata
        self._made.pop(key, None)
        self._changing.add(key)

    def place_of(self, tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata)


def digest_of(torch: ModuleType, results: list[Any]) -> int | None:
    """Returns what tells numbers from others, of large ones by some; None: they are too many."""
    told: list[object] = []
    for one in results:
        if one.numel() > _MOST_NUMBERS:
            return None
        numbers = one.detach().reshape(-1)
        if numbers.numel() * numbers.element_size() > _ALL_BYTES:
            numbers = numbers[:: _apart(tuple(one.shape))]
        octets = torch._C.TensorBase.numpy(numbers.contiguous().view(torch.uint8))
        told += [one.dtype, tuple(one.shape), zlib.crc32(octets)]
    return hash(tuple(told))


def _apart(shape: tuple[int, ...]) -> int:
    """Returns how far apart numbers of a tensor are compared: in all of its rows and columns."""
    numbers = 1
    for size in shape:
        numbers *= size
    apart = max(1, numbers // _SAMPLED)
    while any(gcd(apart, size) > 1 for size in shape):
        apart += 1
    return apart
