"""How torch would ask a loader's dataset for all of a batch at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainprof.analysis.loading.loader_builder import builder_of
from trainprof.analysis.run.metadata import integer

# Those that a loader makes for itself, of its dataset alone.
TORCHS_SAMPLERS: Final = ("RandomSampler", "SequentialSampler")
# Whose the classes are of samplers that nobody but the user can have made, where no package did.
_OF_OTHERS: Final = ("torch", "other")


def whole_batches(metadata: Mapping[str, Any]) -> str | None:
    """Returns the arguments with which torch asks a dataset for a batch at once, as for samples.

    None where batches are made up by a rule of the user's own, or by a package for them, where a
    package made the sampler, and where the dataset takes no list of indices, nor could as tensors.

    Args:
        metadata: Of the loader, as inside/loading/loader_metadata.py describes them.
    """
    size, drawn = integer(metadata.get("batch_size")), _drawn(metadata)
    is_plain = metadata.get("batch_sampler") == "BatchSampler" and builder_of(metadata) is None
    is_plain &= metadata.get("is_taken_over") is not True
    is_plain &= metadata.get("refuses_lists") is not True or metadata.get("is_stackable") is True
    if metadata.get("is_asked_one_by_one") is not True or not is_plain or not size or drawn is None:
        return None
    drops_last = metadata.get("drop_last") is True
    return f"sampler=BatchSampler({drawn}, {size}, drop_last={drops_last}), batch_size=None"


def _drawn(metadata: Mapping[str, Any]) -> str | None:
    """Returns what draws a loader's samples, as one writes it beside its arguments.

    `sampler` is the one that the call has: torch makes none but its own two. None where it may have
    none, and of older runs that do not tell.
    """
    sampler, origin = metadata.get("sampler"), metadata.get("sampler_from")
    if sampler in TORCHS_SAMPLERS and origin in ("torch", None):
        if metadata.get("samples_plainly") is True:
            return f"{sampler}(dataset)"
        if metadata.get("samples_by_generator") is True:
            return f"{sampler}(dataset, generator=...)"
    return "sampler" if origin in _OF_OTHERS else None
