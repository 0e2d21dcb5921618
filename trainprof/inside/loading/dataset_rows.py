"""Whether a dataset takes a list of indices, and if not, what its samples could be put into."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, Final

from trainprof.inside.loading.changed_datasets import whole_of
from trainprof.inside.patching.static_lookup import of_class

_SEQUENCES: Final = (list, tuple, deque)
_TAKE_NO_LISTS: Final = (*_SEQUENCES, dict, range)
_NUMBERS: Final = (int, float, bool)
_MAX_PARTS: Final = 64


def refuses_lists(dataset: Any) -> bool:
    """Whether a dataset is asked by a method that fails if it is given a list of indices.

    Of the user's own methods nobody knows: they can be written anew.
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
        type(one) in _NUMBERS or type(one).__module__ == "numpy" or _is_tensor(one)
        for one in sample
    )


def _is_tensor(thing: Any) -> bool:
    return type(thing) is getattr(sys.modules.get("torch"), "Tensor", None)


def _is_torchs(name: str, dataset: Any) -> bool:
    return type(dataset) is _of_torch(name)


def _of_torch(name: str) -> Any:
    """Returns a class of torch's, `object` where it has none of that name."""
    return getattr(sys.modules.get("torch.utils.data"), name, object)
