"""Numbers for what functions are given: equal ones for what holds the same, within one forward."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import count
from types import ModuleType
from typing import Any, Final

from trainprof.probes.elements import elements_of, is_container

# Of what a function is given: how deep its containers are gone into, and how many things in all.
_DEEPEST: Final = 4
_MOST_THINGS: Final = 256
_PLAIN: Final = (int, float, bool, complex, str, bytes, type(None), type(...))
_OF_TORCH: Final = ("dtype", "device", "layout", "memory_format")


class _Untold(Exception):
    """Nobody can say of a thing what it holds without running code of others."""


class ValueNumbers:
    """Numbers storages as they are met, and gives what repeats another the number of that.

    By where torch keeps a storage and how often it was written to, so that all views of it are
    known with it; a weak reference is kept to each, so that no other gets its place.

    Args:
        torch: The script's.
        weak: Makes such a reference.
        may_be_told: Whether a tensor is one whose storage tells all that it holds.

    Attributes:
        given: Where torch keeps the storages that the last call was given.
    """

    def __init__(
        self, torch: ModuleType, weak: Callable[[Any], Any], may_be_told: Callable[[Any], bool]
    ) -> None:
        self._weak, self._may_be_told = weak, may_be_told
        self._tensor = torch.Tensor
        self._by_hand = torch.autograd.function.BackwardCFunction
        plain = [*_PLAIN, *(getattr(torch, name) for name in _OF_TORCH)]
        self._plain = frozenset(map(id, plain))  # a metaclass may have an == of its own
        self.begin()

    def begin(self) -> None:
        """Forgets all."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._kept: dict[int, Any] = {}
        self._next = count()
        self.given: set[int] = set()

    def of_call(self, name: str, things: Iterable[Any]) -> Hashable | None:
        """Returns what is equal for calls of one function of the same; None: nobody can tell."""
        self._left, self.given = _MOST_THINGS, set()
        try:
            return (name, *[self._of(one, _DEEPEST) for one in things])
        except _Untold:
            return None

    def of_storage(self, tensor: Any) -> int:
        """Returns the number of what a tensor's storage holds now: a new one if it is not known."""
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor._version
        number = self._numbers.get(key)
        if number is None:
            if storage._cdata not in self._kept:
                self._kept[storage._cdata] = self._weak(storage)
            number = self._numbers[key] = next(self._next)
        return number

    def give(self, tensor: Any, number: int) -> None:
        """Notes that a tensor's storage holds what another of that number held."""
        self.of_storage(tensor)
        self._numbers[tensor.untyped_storage()._cdata, tensor._version] = number

    def _of(self, thing: Any, depth: int) -> Hashable:
        self._left -= 1
        kind = type(thing)
        if self._left < 0 or not depth:
            raise _Untold
        if id(kind) in self._plain:
            return kind, thing
        if issubclass(kind, self._tensor):
            return self._of_tensor(thing)
        if kind is slice:
            return kind, *[
                self._of(one, depth - 1) for one in (thing.start, thing.stop, thing.step)
            ]
        if issubclass(kind, dict):
            words = list(dict.items(thing))
            return kind, *[(self._word(x), self._of(y, depth - 1)) for x, y in words]
        if is_container(thing):
            return kind, *[self._of(one, depth - 1) for one in elements_of(thing)]
        raise _Untold

    def _word(self, key: Any) -> str:
        if type(key) is not str:
            raise _Untold
        return key

    def _of_tensor(self, tensor: Any) -> Hashable:
        if not self._may_be_told(tensor):
            raise _Untold
        number = self.of_storage(tensor)
        self.given.add(tensor.untyped_storage()._cdata)
        return (
            number,
            tensor.storage_offset(),
            tuple(tensor.size()),
            tensor.stride(),
            tensor.dtype,
            tensor.requires_grad,
            self._backward_by_hand(tensor),
        )

    def _backward_by_hand(self, tensor: Any) -> int:
        """Tells apart what is the same ahead and not in backward: a reversal of gradients."""
        if not tensor.requires_grad:
            return 0
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view that was written to through another
            raise _Untold from None
        return id(node) if issubclass(type(node), self._by_hand) else 0
