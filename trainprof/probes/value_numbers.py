"""Numbers for what functions are given: equal ones for what holds the same, within one forward."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import count
from types import ModuleType
from typing import Any, Final

from trainprof.probes.elements import elements_of, is_container
from trainprof.probes.graph_walk import is_leaf

# Of what a function is given: how deep its containers are gone into, and how many things in all.
_DEEPEST: Final = 4
_MOST_THINGS: Final = 256
_PLAIN: Final = (int, float, bool, complex, str, bytes, type(None), type(...))
_OF_TORCH: Final = ("dtype", "device", "layout", "memory_format")
# Nodes of an autograd graph that only go back to what a view is of, by name without a number, and
# how many of them are gone through.
_OF_VIEWS: Final = frozenset(
    f"{name}Backward"
    for name in (
        *("Alias", "AsStrided", "Diagonal", "Expand", "Permute", "ReshapeAlias", "Select", "Slice"),
        *("Split", "SplitWithSizes", "Squeeze", "T", "Transpose", "Unbind", "Unfold", "Unsqueeze"),
        *("View", "ViewAsComplex", "ViewAsReal"),
    )
)
_MOST_VIEWS: Final = 16

# Of what a storage holds, and of what made it, as backward goes; 0 where that does not come by.
Number = tuple[int, int]


class _Untold(Exception):
    """Nobody can say of a thing what it holds without running code of others."""


class ValueNumbers:
    """Numbers storages as they are met, and gives what repeats another the number of that.

    By where torch keeps a storage and how often it was written to, so that all views of it are
    known with it; a weak reference is kept to each, so that no other gets its place. What made it
    is numbered, too, where backward goes through it: a reversal of gradients holds the same numbers
    as what it is given, and is not the same.

    Args:
        torch: The script's.
        weak: Makes such a reference.
        may_be_told: Whether a tensor is one whose storage tells all that it holds.

    Attributes:
        given: Where torch keeps the storages that the last call was given.
        apart: And those of tensors that were met with a hook of the script's for backward.
    """

    def __init__(
        self, torch: ModuleType, weak: Callable[[Any], Any], may_be_told: Callable[[Any], bool]
    ) -> None:
        self._weak, self._may_be_told = weak, may_be_told
        self._tensor = torch.Tensor
        plain = [*_PLAIN, *(getattr(torch, name) for name in _OF_TORCH)]
        self._plain = frozenset(map(id, plain))  # a metaclass may have an == of its own
        self.begin()

    def begin(self) -> None:
        """Forgets all."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._kept: dict[int, Any] = {}
        self._origins: dict[Hashable, int] = {}
        self.apart: set[int] = set()
        self._next = count(1)
        self.given: set[int] = set()

    def of_call(self, name: str, things: Iterable[Any]) -> Hashable | None:
        """Returns what is equal for calls of one function of the same; None: nobody can tell."""
        self._left, self.given = _MOST_THINGS, set()
        try:
            return (name, *[self._of(one, _DEEPEST) for one in things])
        except _Untold:
            return None

    def of_result(self, tensor: Any) -> Number | None:
        """Returns the number of what a tensor's storage holds now: a new one if it is not known.

        None: nobody can tell what backward does behind it.
        """
        try:
            return self._number_of(tensor)
        except _Untold:
            return None

    def give(self, tensor: Any, number: Number | None) -> None:
        """Notes that a tensor's storage holds what another of that number held."""
        if number is None or self.of_result(tensor) is None:
            return
        self._numbers[tensor.untyped_storage()._cdata, tensor._version] = number[0]
        if tensor.requires_grad:
            self._origins[self._origin_of(tensor)] = number[1]

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
        number = self._number_of(tensor)
        self.given.add(tensor.untyped_storage()._cdata)
        return (
            number,
            tensor.storage_offset(),
            tuple(tensor.size()),
            tensor.stride(),
            tensor.dtype,
            tensor.requires_grad,
        )

    def _number_of(self, tensor: Any) -> Number:
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor._version
        number = self._numbers.get(key)
        if number is None:
            if storage._cdata not in self._kept:
                self._kept[storage._cdata] = self._weak(storage)
            number = self._numbers[key] = next(self._next)
        if not tensor.requires_grad:
            return number, 0
        origin = self._origin_of(tensor)
        if origin not in self._origins:
            self._origins[origin] = next(self._next)
        return number, self._origins[origin]

    def _origin_of(self, tensor: Any) -> Hashable:
        """Returns what tells what made a tensor's storage, for backward, or the leaf that it is.

        By how many nodes there had been: a node's place, or that of Python's object for it, may
        become another's. So may a leaf's, but not while anything is left that was made of it.
        """
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view that was written to through another
            raise _Untold from None
        if node is None:
            return "leaf", id(tensor)  # whose hooks are given the sum of all
        place = tensor.untyped_storage()._cdata
        if tensor._backward_hooks:
            self.apart.add(place)
        if place in self.apart:
            raise _Untold
        for _ in range(_MOST_VIEWS):
            if is_leaf(node):
                return "leaf", id(node.variable)
            if type(node).__name__.rstrip("0123456789") not in _OF_VIEWS:
                return "node", node._sequence_nr()
            node = node.next_functions[0][0]
        raise _Untold
