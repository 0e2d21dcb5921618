"""Describes a DataLoader with its dataset and sampler at its first iteration.

Of the script's code it calls nothing but harmless `__len__` methods. Attributes are read where they
are stored.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from trainprof.inside.loading.dataset_tracking import whole_of
from trainprof.inside.loading.known_length import known_length
from trainprof.inside.loading.worker_requirements import (
    generators,
    holds_code,
    open_files,
    python_objects,
    start_method,
    unpicklable,
)
from trainprof.inside.patching.call_site import Birthplace, CallSites
from trainprof.inside.patching.static_lookup import has, of_class, own_function
from trainprof.inside.patching.user_texts import any_text

_HUGGING_FACE: Final = "datasets.iterable_dataset"
_SEQUENCES: Final = (list, tuple, deque)
_TAKE_NO_LISTS: Final = (*_SEQUENCES, dict, range)
_NUMBERS: Final = (int, float, bool)
_MAX_PARTS: Final = 64
# The first loaders of a kind that are inspected closely, which takes up to 0.4 ms each (a dataset
# with some transforms, Python 3.12); later one each time their number has doubled.
FIRST_INSPECTIONS: Final = 8
# What loaders of a kind share, besides the class of their dataset (the one in a Subset).
_OF_KIND: Final = (
    *("site", "built_at", "is_taken_over", "kind", "dataset", "sampler", "batch_sampler"),
    *("batch_size", "drop_last", "num_workers", "workers_started_by", "collate_site"),
)
# What distinguishes them.
_OF_LOADER: Final = ("serial", "dataset_number", "dataset_length", "length")
_PLAIN_TYPES: Final = (bool, int, float, str)
_PLAIN: Final = frozenset(map(id, _PLAIN_TYPES))
# Loaders whose close inspection is kept.
_MOST_REMEMBERED: Final = 4_096
# Names by which a worker_init_fn reaches its worker's dataset.
_OF_WORKER: Final = frozenset(("get_worker_info", "dataset"))
_ASKS_FOR_NAME: Final = re.compile(r"__name__\s*==|==\s*__name__")


@dataclass(slots=True)
class _Kind:
    """Loaders that differ only in their data, with the last one's close inspection."""

    met: int = 0
    next_inspection: int = 0
    closer: dict[str, Any] = field(default_factory=dict)


class LoaderDescriptions:
    """Describes loaders. A line may build thousands, for tasks of a few steps each.

    Fewer and fewer loaders of a kind are inspected closely; the others get the last one's result. A
    loader recreated each epoch keeps its result.
    """

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._closer_of: dict[tuple[Any, ...], dict[str, Any]] = {}

    def of(
        self, loader: Any, place: Birthplace, serial: int, dataset_number: int | None
    ) -> dict[str, Any]:
        """Returns a complete loader's metadata; numbers distinguish it from others of its line."""
        sites = self._sites
        own = filter(sites.is_user_code, _constructors(type(loader)))
        changed = self._is_dataset_changed_at_start(getattr(loader, "worker_init_fn", None))
        collate = own_function(getattr(loader, "collate_fn", None), sites.is_user_code)
        metadata = {
            **describe(loader),
            "serial": serial,
            "dataset_number": dataset_number,
            "site": place.site,
            "built_by": place.built_by,
            "built_at": place.built_at,
            "call_ends_at": place.call_ends_at,
            "is_taken_over": place.is_taken_over,
            "takes": _taken_by(type(loader)),
            "constructors": [sites.beginning_of(code) for code in own],  # the outermost first
            "is_own_stream": self._is_own_stream(getattr(loader, "dataset", None)),
            "set_up_as_workers_start": changed,
            "collate_site": collate and sites.beginning_of(collate[0].__code__),
        }
        if metadata["workers_started_by"] != "fork":
            metadata["guards_main"] = self._guards_main
        metadata |= self._closer(loader, metadata)
        if changed is not False:
            metadata["generators"] = []
        return metadata

    def _closer(self, loader: Any, metadata: dict[str, Any]) -> dict[str, Any]:
        whole = type(whole_of(getattr(loader, "dataset", None))).__qualname__
        kind_key = (whole, *(_plain(metadata[name]) for name in _OF_KIND))
        key = (kind_key, *(_plain(metadata[name]) for name in _OF_LOADER))
        kind = self._kinds.setdefault(kind_key, _Kind())
        kind.met += 1
        if kind.met <= FIRST_INSPECTIONS or kind.met >= kind.next_inspection:
            are_forked = metadata["workers_started_by"] == "fork"
            kind.closer = inspect_closely(loader, self.is_own_class, workers_are_forked=are_forked)
            kind.closer |= self._code_of(whole_of(getattr(loader, "dataset", None)))
            kind.next_inspection = 2 * kind.met
            self._closer_of.pop(key, None)
        if len(self._closer_of) >= _MOST_REMEMBERED:
            self._closer_of.clear()
        return self._closer_of.setdefault(key, kind.closer)

    def _code_of(self, dataset: Any) -> dict[str, Any]:
        """Returns the dataset method that torch calls, and whether it runs the user's functions."""
        names = ("__iter__",) if is_iterable(dataset) else ("__getitems__", "__getitem__")
        methods = (of_class(type(dataset), name) for name in names)
        called = next((method for method in methods if type(method) is FunctionType), None)
        is_own = called is not None and self._sites.is_user_code(called.__code__)
        return {
            "runs_own_code": is_own or holds_code(dataset, self._sites.is_user_code),
            "dataset_function": called and f"{called.__module__}:{called.__qualname__}",
        }

    def _is_own_stream(self, dataset: Any) -> bool:
        """Returns whether the user's code yields the samples of an iterable dataset."""
        begins = getattr(getattr(type(dataset), "__iter__", None), "__code__", None)
        is_own = isinstance(begins, CodeType) and self._sites.is_user_code(begins)
        return is_own and is_iterable(dataset)

    def _is_dataset_changed_at_start(self, worker_init: Any) -> bool | None:
        """Returns whether worker_init_fn changes a worker's dataset; None if it may indirectly."""
        own = own_function(worker_init, self._sites.is_user_code)
        # A library's function only seeds generators.
        if own is None:
            return False
        function, names = own[0], own[0].__code__.co_names
        if not _OF_WORKER.isdisjoint(names):
            return True
        if function.__code__.co_freevars:
            return None
        held = function.__globals__
        return None if any(self._is_own(held[name]) for name in names if name in held) else False

    def _is_own(self, thing: Any) -> bool:
        """Returns whether a global is the user's, not a library's or a plain value."""
        kind = type(thing)
        if kind is ModuleType:
            file = thing.__dict__.get("__file__")
            return isinstance(file, str) and self._sites.is_user_file(file)
        if kind is FunctionType:
            return self._sites.is_user_code(thing.__code__)
        is_plain = kind in (*_PLAIN_TYPES, bytes, type(None))
        return not is_plain and kind.__module__ != "builtins"

    def is_own_class(self, kind: type) -> bool:
        """Returns whether a class is the user's, by its first function."""
        functions = (value for value in vars(kind).values() if type(value) is FunctionType)
        first = next(functions, None)
        return first is not None and self._sites.is_user_code(first.__code__)

    @cached_property
    def _guards_main(self) -> bool | None:
        """Returns whether the script checks `__name__`: workers that aren't forked import it."""
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if not isinstance(script, str) or not self._sites.is_user_file(script):
            return None
        return any_text(
            lambda path: path == script, lambda text: _ASKS_FOR_NAME.search(text) is not None
        )


def _plain(value: Any) -> Any:
    """Returns a number or string, else None: other classes may define `==`."""
    return value if id(type(value)) in _PLAIN else None


def _taken_by(cls: type) -> list[str]:
    """Returns a constructor's parameters, "*" before keyword-only ones, "**" for any others."""
    code = next(_constructors(cls), None)
    if code is None:
        return []
    by_place, names = code.co_argcount, code.co_varnames
    by_keyword = names[by_place : by_place + code.co_kwonlyargcount]
    others = ["**"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    return [*names[1:by_place], "*", *by_keyword, *others]


def _constructors(cls: type) -> Iterator[CodeType]:
    """Yields the code of a class's constructors, its own first, unwrapped."""
    for base in cls.__mro__:
        method: Any = vars(base).get("__init__")
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        code = getattr(method, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def describe(loader: Any) -> dict[str, Any]:
    """Returns a loader's metadata without slow inspections, with None for missing values."""
    dataset = getattr(loader, "dataset", None)
    workers = getattr(loader, "num_workers", None)
    started_by = start_method(getattr(loader, "multiprocessing_context", None))
    return {
        "kind": _class_name(loader),
        "dataset": _class_name(dataset),
        "dataset_length": _samples(loader, dataset),
        "length": _batches(loader, dataset),
        "is_iterable": is_iterable(dataset),
        "sampler": _class_name(getattr(loader, "sampler", None)),
        "batch_sampler": _class_name(getattr(loader, "batch_sampler", None)),
        "batch_size": getattr(loader, "batch_size", None),
        "drop_last": getattr(loader, "drop_last", None),
        "num_workers": workers,
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "persistent_workers": getattr(loader, "persistent_workers", None),
        "pin_memory": getattr(loader, "pin_memory", None),
        "in_order": getattr(loader, "in_order", None),
        "start_method": started_by if workers else None,
        "workers_started_by": started_by,
        **_sampling(loader),
        **_asking(loader, dataset),
    }


def inspect_closely(
    loader: Any, is_own: Callable[[type], bool], *, workers_are_forked: bool
) -> dict[str, Any]:
    """Returns the results of slow inspections, which walk the dataset's objects."""
    dataset = whole_of(getattr(loader, "dataset", None))
    return {
        "open_files": open_files(dataset),
        "python_objects": python_objects(dataset) if workers_are_forked else [],
        "unpicklable": [] if workers_are_forked else unpicklable(loader),
        "generators": generators(dataset, is_own),
    }


def _asking(loader: Any, dataset: Any) -> dict[str, Any]:
    """Returns how torch reads a batch from a dataset, or from the one in a Subset."""
    plain_collate = getattr(sys.modules.get("torch.utils.data"), "default_collate", None)
    dataset = whole_of(dataset)
    is_mapped = has(dataset, "__getitem__") and not has(dataset, "__getitems__")
    is_mapped = is_mapped and not is_iterable(dataset)
    return {
        "is_asked_one_by_one": is_mapped and getattr(loader, "collate_fn", 0) is plain_collate,
        "refuses_lists": refuses_lists(dataset),
        "is_stackable": is_stackable(dataset),
        "holds_tensors": _is_torchs("TensorDataset", dataset),
        "shards": _shards(dataset),
    }


def _shards(dataset: Any) -> int | None:
    """Returns the number of shards of a Hugging Face stream: more workers than that are idle."""
    if type(dataset).__module__ != _HUGGING_FACE or not is_iterable(dataset):
        return None
    try:
        shards = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None)
    except Exception:
        return None
    return shards if type(shards) is int and shards > 0 else None


def is_iterable(dataset: Any) -> bool:
    """Returns True for torch's IterableDataset, whose `__getitem__` only raises."""
    base = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    return isinstance(base, type) and isinstance(dataset, base)


def _class_name(thing: Any) -> str | None:
    return None if thing is None else type(thing).__qualname__


def _samples(loader: Any, dataset: Any) -> int | None:
    """Returns the dataset's length; for an iterable one the length that the script asked for."""
    asked = getattr(loader, "_IterableDataset_len_called", None)
    return asked if type(asked) is int else known_length(dataset)


def _batches(loader: Any, dataset: Any) -> int | None:
    """Returns the loader's length; len() of an iterable dataset's loader would make torch warn."""
    if not is_iterable(dataset):
        return known_length(loader)
    samples, size = _samples(loader, dataset), getattr(loader, "batch_size", None)
    method = of_class(type(loader), "__len__")
    if samples is None or getattr(method, "__qualname__", None) != "DataLoader.__len__":
        return None
    if type(size) is not int or size < 1:
        return samples
    return samples // size if getattr(loader, "drop_last", False) is True else -(-samples // size)


def refuses_lists(dataset: Any) -> bool:
    """Returns whether a dataset's `__getitem__` is known to fail for a list of indices."""
    asked = of_class(type(dataset), "__getitem__")
    kinds = (*_TAKE_NO_LISTS, _of_torch("ConcatDataset"))
    return asked is not None and any(asked is vars(kind).get("__getitem__") for kind in kinds)


def is_stackable(dataset: Any) -> bool:
    """Returns whether its samples are numbers in memory that a TensorDataset could hold."""
    if type(dataset) in _SEQUENCES:
        return len(dataset) > 0 and _is_row(dataset[0])
    parts = getattr(dataset, "datasets", None) if _is_torchs("ConcatDataset", dataset) else None
    return type(parts) is list and 0 < len(parts) <= _MAX_PARTS and all(map(_has_rows, parts))


def _has_rows(part: Any) -> bool:
    whole = whole_of(part)
    return _is_torchs("TensorDataset", whole) or is_stackable(whole)


def _is_row(sample: Any) -> bool:
    """Returns whether it is a tuple or list of tensors, arrays and numbers."""
    return (
        type(sample) in (tuple, list)
        and len(sample) > 0
        and all(
            type(part) in _NUMBERS
            or type(part).__module__ == "numpy"
            or type(part) is getattr(sys.modules.get("torch"), "Tensor", None)
            for part in sample
        )
    )


def _is_torchs(name: str, dataset: Any) -> bool:
    return type(dataset) is _of_torch(name)


def _of_torch(name: str) -> Any:
    """Returns a class of torch.utils.data, `object` if it has none of that name."""
    return getattr(sys.modules.get("torch.utils.data"), name, object)


def _sampling(loader: Any) -> dict[str, Any]:
    """Returns how samples are drawn.

    `sampler_from`: "torch", "loader" (the package of the loader's class) or "other".
    `samples_plainly`: the sampler is built from the dataset alone; `samples_by_generator`: from the
    dataset and the loader's generator.
    """
    sampler = getattr(loader, "sampler", None)
    held = getattr(sampler, "__dict__", {})
    generator = held.get("generator")
    draws_all = held.get("_num_samples") is None and held.get("replacement") is not True
    is_loaders = generator is not None and generator is getattr(loader, "generator", None)
    package, loaders = (str(type(x).__module__).partition(".")[0] for x in (sampler, loader))
    origin = "torch" if package == "torch" else "loader" if package == loaders else "other"
    return {
        "sampler_from": None if sampler is None else origin,
        "samples_plainly": draws_all and generator is None,
        "samples_by_generator": draws_all and is_loaders,
        "sampler_takes_epoch": of_class(type(sampler), "set_epoch") is not None,
    }
