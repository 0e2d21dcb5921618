"""What a DataLoader, its dataset and its sampler show; nothing is called but what only counts."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from trainprof.inside.loading.dataset_tracking import whole_of
from trainprof.inside.loading.known_length import known_length
from trainprof.inside.loading.worker_requirements import (
    generators,
    open_files,
    start_method,
    unpicklable,
)
from trainprof.inside.patching.static_lookup import has, of_class

_HUGGING_FACE: Final = "datasets.iterable_dataset"
_SEQUENCES: Final = (list, tuple, deque)
_TAKE_NO_LISTS: Final = (*_SEQUENCES, dict, range)
_NUMBERS: Final = (int, float, bool)
_MAX_PARTS: Final = 64


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
    """Returns what a dataset is gone through for, which takes longer than all else.

    `open_files` cannot be shared by processes, `unpicklable` cannot be sent to a worker that is no
    fork, and of `generators` of random numbers all workers would have the same copy.
    """
    dataset = whole_of(getattr(loader, "dataset", None))
    return {
        "open_files": open_files(dataset),
        "unpicklable": [] if workers_are_forked else unpicklable(loader),
        "generators": generators(dataset, is_own),
    }


def _asking(loader: Any, dataset: Any) -> dict[str, Any]:
    """Says how torch asks a dataset for a batch; of torch's Subset, what it is of.

    `is_asked_one_by_one`: for each sample by itself, to put them together as it does by default.
    `shards`: of a stream, which are given to workers as a whole.
    """
    plain_collate = getattr(sys.modules.get("torch.utils.data"), "default_collate", None)
    dataset = whole_of(dataset)
    is_mapped = has(dataset, "__getitem__") and not is_iterable(dataset)
    is_mapped = is_mapped and not has(dataset, "__getitems__")
    return {
        "is_asked_one_by_one": is_mapped and getattr(loader, "collate_fn", 0) is plain_collate,
        "refuses_lists": refuses_lists(dataset),
        "is_stackable": is_stackable(dataset),
        "holds_tensors": _is_torchs("TensorDataset", dataset),
        "shards": _shards(dataset),
    }


def _shards(dataset: Any) -> int | None:
    """Returns how many parts a stream of Hugging Face's has: a worker beyond them gets nothing.

    Elsewhere a name like that may mean anything: the ranks, say.
    """
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
    """The loader's length; torch takes note of who asks that of an iterable dataset's, and warns.

    Its batches are counted as torch does.
    """
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
    """Whether a dataset is asked by a method that fails if it is given a list of indices.

    Of the user's own methods that is not known.
    """
    asked = of_class(type(dataset), "__getitem__")
    kinds = (*_TAKE_NO_LISTS, _of_torch("ConcatDataset"))
    return asked is not None and any(asked is vars(kind).get("__getitem__") for kind in kinds)


def is_stackable(dataset: Any) -> bool:
    """Whether its samples are rows of numbers in memory: a TensorDataset could have them.

    No code of the script's is called.
    """
    if type(dataset) in _SEQUENCES:
        return len(dataset) > 0 and _is_row(dataset[0])
    parts = getattr(dataset, "datasets", None) if _is_torchs("ConcatDataset", dataset) else None
    return type(parts) is list and 0 < len(parts) <= _MAX_PARTS and all(map(_has_rows, parts))


def _has_rows(part: Any) -> bool:
    whole = whole_of(part)
    return _is_torchs("TensorDataset", whole) or is_stackable(whole)


def _is_row(sample: Any) -> bool:
    """Whether it is some tensors, arrays and numbers side by side."""
    are_some = type(sample) in (tuple, list) and len(sample) > 0
    return are_some and all(
        type(part) in _NUMBERS
        or type(part).__module__ == "numpy"
        or type(part) is getattr(sys.modules.get("torch"), "Tensor", None)
        for part in sample
    )


def _is_torchs(name: str, dataset: Any) -> bool:
    return type(dataset) is _of_torch(name)


def _of_torch(name: str) -> Any:
    """Returns a class of torch's, `object` where it has none of that name."""
    return getattr(sys.modules.get("torch.utils.data"), name, object)


def _sampling(loader: Any) -> dict[str, Any]:
    """Says how samples are drawn.

    `sampler_from`: its class is torch's, of the package of the loader's class, which may make it by
    itself, or another's. `samples_plainly`: by a sampler that is made of the dataset alone,
    `samples_by_generator`: and of the loader's own generator.
    """
    sampler = getattr(loader, "sampler", None)
    held = getattr(sampler, "__dict__", {})
    generator = held.get("generator")
    draws_all = held.get("_num_samples") is None and held.get("replacement") is not True
    is_loaders = generator is not None and generator is getattr(loader, "generator", None)
    takes_epoch = of_class(type(sampler), "set_epoch") is not None
    package, loaders = (str(type(x).__module__).partition(".")[0] for x in (sampler, loader))
    origin = "torch" if package == "torch" else "loader" if package == loaders else "other"
    return {
        "sampler_from": None if sampler is None else origin,
        "samples_plainly": draws_all and generator is None,
        "samples_by_generator": draws_all and is_loaders,
        "sampler_takes_epoch": takes_epoch,
    }
