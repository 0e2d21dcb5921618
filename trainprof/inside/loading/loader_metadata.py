"""What a DataLoader, its dataset and its sampler show, as the loader is first iterated.

Nothing of the script's is called but what only counts: it might notice, or raise. Attributes are
looked up where they are stored.
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
# So many loaders of a kind are inspected more closely, each of which takes up to 0.4 ms (a dataset
# with some transforms, Python 3.12); then one each time that twice as many were met.
FIRST_LOOKS: Final = 8
# What loaders of a kind have in common, besides the class of what their dataset is of.
_OF_KIND: Final = (
    *("site", "built_at", "is_taken_over", "kind", "dataset", "sampler", "batch_sampler"),
    *("batch_size", "drop_last", "num_workers", "workers_started_by", "collate_site"),
)
# What tells them apart.
_OF_LOADER: Final = ("serial", "dataset_number", "dataset_length", "length")
_PLAIN_TYPES: Final = (bool, int, float, str)
_PLAIN: Final = frozenset(map(id, _PLAIN_TYPES))
# Of those that were told apart.
_MOST_REMEMBERED: Final = 4_096
# By which a worker_init_fn comes to the dataset of its worker.
_OF_WORKER: Final = frozenset(("get_worker_info", "dataset"))
_ASKS_FOR_NAME: Final = re.compile(r"__name__\s*==|==\s*__name__")


@dataclass(slots=True)
class _Kind:
    """Loaders that are alike but for their data: what was found in the last that was looked at."""

    met: int = 0
    next_look: int = 0
    closer: dict[str, Any] = field(default_factory=dict)


class LoaderDescriptions:
    """Describes loaders. A script may build thousands by one line, for tasks of a few steps each.

    What takes long to find is looked for in fewer and fewer of a kind; the others are said to have
    what the last one had. One that is recreated each epoch has what it had before.
    """

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._closer_of: dict[tuple[Any, ...], dict[str, Any]] = {}

    def of(
        self, loader: Any, place: Birthplace, serial: int, dataset_number: int | None
    ) -> dict[str, Any]:
        """Returns the metadata of a complete loader; numbers tell it from others of its line."""
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
        if kind.met <= FIRST_LOOKS or kind.met >= kind.next_look:
            are_forked = metadata["workers_started_by"] == "fork"
            kind.closer = look_closer(loader, self.is_own_class, workers_are_forked=are_forked)
            kind.closer |= self._code_of(whole_of(getattr(loader, "dataset", None)))
            kind.next_look = 2 * kind.met
            self._closer_of.pop(key, None)
        if len(self._closer_of) >= _MOST_REMEMBERED:
            self._closer_of.clear()
        return self._closer_of.setdefault(key, kind.closer)

    def _code_of(self, dataset: Any) -> dict[str, Any]:
        """Returns what torch calls of a dataset, and whether it runs functions of the user's."""
        names = ("__iter__",) if is_iterable(dataset) else ("__getitems__", "__getitem__")
        methods = (of_class(type(dataset), name) for name in names)
        called = next((method for method in methods if type(method) is FunctionType), None)
        is_own = called is not None and self._sites.is_user_code(called.__code__)
        return {
            "runs_own_code": is_own or holds_code(dataset, self._sites.is_user_code),
            "dataset_function": called and f"{called.__module__}:{called.__qualname__}",
        }

    def _is_own_stream(self, dataset: Any) -> bool:
        """Whether code of the user's gives the samples of an iterable dataset."""
        begins = getattr(getattr(type(dataset), "__iter__", None), "__code__", None)
        is_own = isinstance(begins, CodeType) and self._sites.is_user_code(begins)
        return is_own and is_iterable(dataset)

    def _is_dataset_changed_at_start(self, worker_init: Any) -> bool | None:
        """Whether names in a user's function change a worker's dataset; None where others may."""
        own = own_function(worker_init, self._sites.is_user_code)
        # A library's, or one that only seeds generators, is there for reproducible numbers.
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
        """Whether a global is more than a library's module or function, or a number or word."""
        kind = type(thing)
        if kind is ModuleType:
            file = thing.__dict__.get("__file__")
            return isinstance(file, str) and self._sites.is_user_file(file)
        if kind is FunctionType:
            return self._sites.is_user_code(thing.__code__)
        is_plain = kind in (*_PLAIN_TYPES, bytes, type(None))
        return not is_plain and kind.__module__ != "builtins"

    def is_own_class(self, kind: type) -> bool:
        """Whether a class is the user's, by the first of its functions."""
        functions = (value for value in vars(kind).values() if type(value) is FunctionType)
        first = next(functions, None)
        return first is not None and self._sites.is_user_code(first.__code__)

    @cached_property
    def _guards_main(self) -> bool | None:
        """Whether the user's script compares its name: a worker that is no fork imports it."""
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if not isinstance(script, str) or not self._sites.is_user_file(script):
            return None
        return any_text(
            lambda path: path == script, lambda text: _ASKS_FOR_NAME.search(text) is not None
        )


def _plain(value: Any) -> Any:
    """Returns a number or word, else None: the script's own may have an `==` of its own."""
    return value if id(type(value)) in _PLAIN else None


def _taken_by(cls: type) -> list[str]:
    """Returns the names of a constructor's parameters, "*" ahead of keywords, "**" for others."""
    code = next(_constructors(cls), None)
    if code is None:
        return []
    by_place, names = code.co_argcount, code.co_varnames
    by_keyword = names[by_place : by_place + code.co_kwonlyargcount]
    others = ["**"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    return [*names[1:by_place], "*", *by_keyword, *others]


def _constructors(cls: type) -> Iterator[CodeType]:
    """Yields the code of a class's constructors, its own first; of wrapped ones what they wrap."""
    for base in cls.__mro__:
        method: Any = vars(base).get("__init__")
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        code = getattr(method, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def describe(loader: Any) -> dict[str, Any]:
    """Returns a loader's metadata, but for what takes long to find; what it lacks is None."""
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


def look_closer(
    loader: Any, is_own: Callable[[type], bool], *, workers_are_forked: bool
) -> dict[str, Any]:
    """Returns what a dataset is searched for, which takes longer than all else."""
    dataset = whole_of(getattr(loader, "dataset", None))
    return {
        "open_files": open_files(dataset),
        "python_objects": python_objects(dataset) if workers_are_forked else [],
        "unpicklable": [] if workers_are_forked else unpicklable(loader),
        "generators": generators(dataset, is_own),
    }


def _asking(loader: Any, dataset: Any) -> dict[str, Any]:
    """Returns how torch asks a dataset for a batch; of torch's Subset, what it is of."""
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
    """Returns how many parts a stream of Hugging Face's has: a worker beyond them gets nothing."""
    if type(dataset).__module__ != _HUGGING_FACE or not is_iterable(dataset):
        return None
    try:
        shards = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None)
    except Exception:
        return None
    return shards if type(shards) is int and shards > 0 else None


def is_iterable(dataset: Any) -> bool:
    """True for torch's IterableDataset, whose base has a `__getitem__` that only raises."""
    base = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    return isinstance(base, type) and isinstance(dataset, base)


def _class_name(thing: Any) -> str | None:
    return None if thing is None else type(thing).__qualname__


def _samples(loader: Any, dataset: Any) -> int | None:
    """The dataset's length; that of an iterable one as well as the script has asked for it."""
    asked = getattr(loader, "_IterableDataset_len_called", None)
    return asked if type(asked) is int else known_length(dataset)


def _batches(loader: Any, dataset: Any) -> int | None:
    """The loader's length; torch would note that it was asked for that of a stream, and warn."""
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
    """Whether a dataset's method is known to fail if it is given a list of indices."""
    asked = of_class(type(dataset), "__getitem__")
    kinds = (*_TAKE_NO_LISTS, _of_torch("ConcatDataset"))
    return asked is not None and any(asked is vars(kind).get("__getitem__") for kind in kinds)


def is_stackable(dataset: Any) -> bool:
    """Whether its samples are rows of numbers in memory: a TensorDataset could have them."""
    if type(dataset) in _SEQUENCES:
        return len(dataset) > 0 and _is_row(dataset[0])
    parts = getattr(dataset, "datasets", None) if _is_torchs("ConcatDataset", dataset) else None
    return type(parts) is list and 0 < len(parts) <= _MAX_PARTS and all(map(_has_rows, parts))


def _has_rows(part: Any) -> bool:
    whole = whole_of(part)
    return _is_torchs("TensorDataset", whole) or is_stackable(whole)


def _is_row(sample: Any) -> bool:
    """Whether it is some tensors, arrays and numbers side by side."""
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
    """Returns a class of torch's, `object` where it has none of that name."""
    return getattr(sys.modules.get("torch.utils.data"), name, object)


def _sampling(loader: Any) -> dict[str, Any]:
    """Returns how samples are drawn.

    `sampler_from`: the sampler's class is torch's, of the package of the loader's class, which may
    build it itself, or another's. `samples_plainly`: the sampler is built from the dataset alone,
    `samples_by_generator`: and from the loader's own generator.
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
