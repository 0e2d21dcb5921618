"""What a DataLoader tells of itself; nothing of it is called that may do more than count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from trainprof.inside.loading.changed_datasets import whole_of
from trainprof.inside.loading.dataset_rows import is_stackable, refuses_lists
from trainprof.inside.loading.known_length import known_length
from trainprof.inside.loading.sampler_metadata import sampling
from trainprof.inside.loading.worker_requirements import (
    generators,
    open_files,
    start_method,
    unpicklable,
)
from trainprof.inside.patching.static_lookup import has, of_class

_HUGGING_FACE: Final = "datasets.iterable_dataset"


def describe(loader: Any) -> dict[str, Any]:
    """Returns a loader's facts, but for those that take long to find; what it lacks is None."""
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
        **sampling(loader),
        **_asking(loader, dataset),
    }


def look_closer(
    loader: Any, is_own: Callable[[type], bool], *, workers_are_forked: bool
) -> dict[str, Any]:
    """Returns what is to be gone through a dataset for: it takes longer than all other facts.

    `open_files`: what it holds that processes cannot share.
    `unpicklable`: what a worker that is no fork could not be given.
    `generators`: of random numbers, which workers would have alike.

    Args:
        loader: A DataLoader, complete.
        is_own: Tells the classes of the user's.
        workers_are_forked: Its workers are, or would be.
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
    `refuses_lists`: it would fail if it were given the indices of a batch.
    `is_stackable`: it is made of rows that a TensorDataset could have.
    `shards`: of a stream, which are given to workers as a whole.
    """
    known = sys.modules.get("torch.utils.data")
    tensors, plain_collate = (
        getattr(known, name, None) for name in ("TensorDataset", "default_collate")
    )
    dataset = whole_of(dataset)
    is_mapped = has(dataset, "__getitem__") and not is_iterable(dataset)
    is_mapped = is_mapped and not has(dataset, "__getitems__")
    return {
        "is_asked_one_by_one": is_mapped and getattr(loader, "collate_fn", 0) is plain_collate,
        "refuses_lists": refuses_lists(dataset),
        "is_stackable": is_stackable(dataset),
        "holds_tensors": type(dataset) is tensors,
        "shards": _shards(dataset),
    }


def _shards(dataset: Any) -> int | None:
    """Returns how many parts a stream of Hugging Face's has: a worker beyond them gets nothing.

    Elsewhere a name like that may mean anything: the ranks, say.
    """
    if type(dataset).__module__ != _HUGGING_FACE or not is_iterable(dataset):
        return None
    try:
        found = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None)
    except Exception:
        return None
    return found if type(found) is int and found > 0 else None


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
