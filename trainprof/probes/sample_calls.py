"""Calls of a model for one sample each, of a batch that is there as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any, Final

from trainprof.probes.calls_of_line import LineCalls
from trainprof.probes.elements import elements_of, is_container
from trainprof.probes.given_tensors import GivenTensors, others_in
from trainprof.probes.graph_look import Autograd
from trainprof.probes.graph_walk import is_leaf
from trainprof.probes.lines_of_modules import Key
from trainprof.probes.middle import median
from trainprof.probes.module_parts import modules_of
from trainprof.probes.session import ModuleCall

_MOST_PLACES: Final = 64
# Batches told, each of which was taken apart, into so many calls.
_ENOUGH_BATCHES: Final = 4
_ENOUGH_ROWS: Final = 8
# Calls of a line whose graph and module are gone through: then it is known what it does.
_MOST_LOOKS: Final = 128
_MOST_NODES: Final = 2_000
_MOST_NESTED: Final = 3
_MOST_ELEMENTS: Final = 64
_NUMBERS: Final = (int, float, bool)
_OF_TORCH: Final = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, slots=True)
class _Row:
    """What tells calls apart.

    Attributes:
        batch: What those for rows of one batch have in common.
        number: Of the row.
        state: That the module had after it, None where that was not looked at.
        storages: Of the batch, weakly.
    """

    batch: tuple[Any, ...]
    number: int
    state: tuple[Any, ...] | None
    storages: list[Any]


@dataclass(slots=True)
class _Place(LineCalls):
    """Those of a line.

    Attributes:
        batches: Of which each call had a row.
        row: Of the last one.
        known: Numbers of the rows of its batch that had a call.
        last_node: In the order of nodes of autograd, the last one that it made.
        looks: Calls whose graph was gone through.
        is_out: They are something else.
    """

    batches: int = 0
    row: _Row | None = None
    known: set[int] = field(default_factory=set)
    last_node: int = -1
    looks: int = 0
    is_out: bool = False


class SampleCalls:
    """Is told of calls with gradients, and counts by their lines those for single rows.

    Rows are parts of one tensor, not written to in between: all of them were there before the first
    call. None of the calls goes on with what another one gave or left in the module, as a cell of a
    recurrent network does.
    """

    def __init__(
        self,
        torch: ModuleType,
        autograd: Autograd,
        tensors: GivenTensors,
        share_of: Callable[[Key], float],
    ) -> None:
        """Begins with none.

        Args:
            torch, autograd, tensors: What is asked of calls.
            share_of: Returns a line's share of what forwards with gradients took.
        """
        self._autograd, self._tensors, self._share_of = autograd, tensors, share_of
        self._tensor = torch.Tensor
        self._recurrent = (torch.nn.RNNBase, torch.nn.RNNCellBase)
        self._attending = torch.nn.MultiheadAttention
        self._places: dict[Key, _Place] = {}

    def open(self) -> None:
        """Begins a window: what came before it is not known."""
        for place in self._places.values():
            place.open()
            place.row = None

    def meet(self, call: ModuleCall, key: Key, passes: int) -> None:
        """Takes note of a call, after so many passes of backward."""
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                return
            place = self._places[key] = _Place()
            place.is_out = self._takes_sequences(call.module)
        if place.is_out:
            return
        place.count(call, passes)
        with self._autograd.unseen():
            self._count(place, call, passes)

    def _count(self, place: _Place, call: ModuleCall, passes: int) -> None:
        row = self._row_of(call, passes, with_state=place.looks < _MOST_LOOKS)
        if row is None:
            place.is_out = True
            return
        before, place.row = place.row, row
        is_same = (
            before is not None
            and row.batch == before.batch
            and row.number not in place.known
            and (row.state == before.state or None in (row.state, before.state))
            and not any(storage.expired() for storage in before.storages)
        )
        if not is_same:
            place.batches += 1
            place.known.clear()
            place.last_node = -1
        place.known.add(row.number)
        if place.looks < _MOST_LOOKS:
            place.looks += 1
            self._see_graph(place, call)

    def _row_of(self, call: ModuleCall, passes: int, *, with_state: bool) -> _Row | None:
        tensors = self._tensors.all_in(call.inputs)
        if not tensors or any(one.is_inference() for one in tensors):
            return None
        storages = self._tensors.storages(tensors)
        if len(storages) < len(tensors):
            return None
        numbers = [_number_of_row(one) for one in tensors]
        number = next((found for found in numbers if found is not None), None)
        if number is None:
            return None
        common = tuple(
            (storage.cdata, tensor._version, found is None and tensor.storage_offset())
            for storage, tensor, found in zip(storages, tensors, numbers, strict=True)
            if found in (number, None)
        )
        if len(common) < len(tensors):
            return None
        shapes = tuple(tuple(one.shape) for one in tensors)
        state = self._state_of(call.module) if with_state else None
        batch = (passes, id(call.module), common, shapes, others_in(call))
        return _Row(batch, number, state, storages)

    def _see_graph(self, place: _Place, call: ModuleCall) -> None:
        """Notes where a call goes on with what was computed before it, besides weights."""
        tensors = self._tensors.all_in(call.output)
        ends = {one.grad_fn for one in tensors or ()} - {None}
        orders = _orders_in(ends)
        if not orders or min(orders) <= place.last_node:
            place.is_out = True
            return
        place.last_node = max(orders)

    def _takes_sequences(self, module: Any) -> bool:
        """Whether the first dimension may be that of a sequence."""
        return any(
            issubclass(type(one), self._recurrent)
            or (
                issubclass(type(one), self._attending)
                and getattr(one, "__dict__", {}).get("batch_first") is not True
            )
            for one in modules_of(module)
        )

    def _state_of(self, module: Any) -> tuple[Any, ...]:
        """Returns what tells whether a call has left something in the module."""
        state: list[Any] = []
        for holder in modules_of(module):
            held = getattr(holder, "__dict__", {})
            things = [one for name, one in held.items() if name not in _OF_TORCH]
            self._note_state([*things, held.get("_buffers", {})], state)
        return tuple(state)

    def _note_state(self, things: Iterable[Any], state: list[Any], depth: int = 0) -> None:
        for one in things:
            if issubclass(type(one), self._tensor):
                state.append((id(one), one._version))
            elif type(one) in _NUMBERS:
                state.append(one)
            elif is_container(one) and depth < _MOST_NESTED:
                self._note_state(islice(elements_of(one), _MOST_ELEMENTS), state, depth + 1)

    def told(self, passes: int, per_watched: float) -> list[dict[str, Any]]:
        """Returns the lines that take batches apart.

        Args:
            passes: Of backward, while they were watched.
            per_watched: So many steps stand for one that was watched.
        """
        return [
            {
                "site": key[0],
                "class": key[1],
                "rows": place.calls / place.batches,
                "each_s": median(place.took_ns) / 1e9,
                "seconds": place.ns_in_all() * per_watched / 1e9,
                "share": self._share_of(key),
            }
            for key, place in self._places.items()
            if not place.is_out
            and place.batches >= _ENOUGH_BATCHES
            and place.calls >= _ENOUGH_ROWS * place.batches
            and place.come_often(passes)
        ]


def _number_of_row(tensor: Any) -> int | None:
    """Returns which part it is of a tensor, along its first dimension; None where it is none."""
    base = tensor._base
    if base is None or base.dim() == 0 or tensor.numel() == 0:
        return None
    if not (base.is_contiguous() and tensor.is_contiguous()):
        return None
    if base.shape[0] < 1 or tensor.numel() * base.shape[0] != base.numel():
        return None
    number, within = divmod(tensor.storage_offset() - base.storage_offset(), tensor.numel())
    return None if within else int(number)


def _orders_in(ends: set[Any]) -> list[int]:
    """Returns when each node above was made, leaves apart, by their order; [] where unknown."""
    seen, waiting, orders = set(ends), list(ends), []
    while waiting:
        node = waiting.pop()
        if is_leaf(node):
            continue
        told = getattr(node, "_sequence_nr", None)
        if told is None or len(seen) > _MOST_NODES:
            return []
        orders.append(int(told()))
        for found, _ in node.next_functions:
            if found is not None and found not in seen:
                seen.add(found)
                waiting.append(found)
    return orders
