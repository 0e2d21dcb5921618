"""Which tensors a call was given, and what it gave, without any code of the script's being run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from types import ModuleType
from typing import Any, Final

from trainprof.probes.elements import elements_of, is_container
from trainprof.probes.graph_look import Autograd
from trainprof.probes.kept_value import kept
from trainprof.probes.repeated_forwards import Given
from trainprof.probes.session import ModuleCall

# A call is given few tensors, and gives few, as a rule.
_MOST_TENSORS: Final = 16
_MOST_NESTED: Final = 4
_MOST_ELEMENTS: Final = 64
_PLAIN: Final = (str, bytes, int, float, bool, type(None))


class GivenTensors:
    """Finds tensors in what goes into calls and comes out of them."""

    def __init__(self, torch: ModuleType, autograd: Autograd) -> None:
        self._torch, self._autograd = torch, autograd

    def all_in(self, things: Any) -> list[Any] | None:
        """Returns the tensors in it; None where there may be others, or are many."""
        tensors = list(islice(_tensors_in(things, self._torch.Tensor), _MOST_TENSORS + 1))
        if len(tensors) > _MOST_TENSORS or not all(map(self._autograd.is_plain, tensors)):
            return None
        return tensors

    def given(self, call: ModuleCall) -> list[Any]:
        """Returns where those that a call was given keep their numbers, weakly."""
        return self.storages(islice(_tensors_in(call.inputs, self._torch.Tensor), _MOST_TENSORS))

    def storages(self, tensors: Iterable[Any]) -> list[Any]:
        """Returns where tensors keep their numbers, weakly, of those that say so."""
        weak = self._torch.multiprocessing.reductions.StorageWeakRef
        found = []
        for tensor in tensors:
            if self._autograd.is_plain(tensor):
                try:
                    found.append(weak(tensor.untyped_storage()))
                except RuntimeError:  # sparse, or of torch.func
                    continue
        return found

    def identified(self, call: ModuleCall) -> Given | None:
        """Returns which tensors a call was given; None where there may be others, or are many."""
        with self._autograd.unseen():
            tensors = self.all_in(call.inputs)
            if tensors is None:
                return None
            if any(tensor.is_inference() for tensor in tensors):  # nobody counts writes to them
                return None
            storages = self.storages(tensors)
            if len(storages) < len(tensors):
                return None
            identities = [
                (storage.cdata, tensor.storage_offset(), tuple(tensor.shape), tensor._version)
                for storage, tensor in zip(storages, tensors, strict=True)
            ]
        return Given(storages, identities, others_in(call))


def others_in(call: ModuleCall) -> tuple[Any, ...]:
    """Returns what a call was given besides tensors: plain values, and the names of all it has."""
    positional, named = call.inputs
    others = tuple(
        (name, kept(one))
        for name, one in (*enumerate(positional), *named.items())
        if type(one) in _PLAIN
    )
    return (*others, *named)


def _tensors_in(output: Any, tensor: type, depth: int = 0) -> Iterator[Any]:
    """Yields what a call gave, tensor by tensor, and None for what may hold more of them."""
    if issubclass(type(output), tensor):
        yield output
    elif is_container(output) and depth < _MOST_NESTED:
        elements = list(islice(elements_of(output), _MOST_ELEMENTS + 1))
        if len(elements) > _MOST_ELEMENTS:
            yield None
        for one in elements[:_MOST_ELEMENTS]:
            yield from _tensors_in(one, tensor, depth + 1)
    elif type(output) not in _PLAIN:
        yield None
