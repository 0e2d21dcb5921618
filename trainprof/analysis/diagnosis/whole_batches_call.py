"""The call with which torch asks a dataset for whole batches, and what is to be minded of it."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.constructor_words import by_base, not_taken
from trainprof.analysis.diagnosis.loader_cautions import others_of_line
from trainprof.analysis.loader_figures import Loader

# torch's own samplers: that of shuffle=True, and that without it.
_SHUFFLES: Final = "RandomSampler"
_IN_ORDER: Final = "SequentialSampler"
# What `whole_batches` gives a loader.
_ARGUMENTS: Final = ("sampler", "batch_size")
# Of a dataset that takes no list of indices; batches are collated the same way.
_STACKED: Final = "dataset = TensorDataset(*default_collate(list(dataset))), once, then "
# What stands in the arguments for something that the call as it is has.
_HAS_NOW: Final = {"BatchSampler(sampler,": "sampler", "generator=...": "generator"}


def call_for_whole_batches(loader: Loader, more: str = "") -> str:
    """Returns the call with which torch asks the dataset for a batch at once.

    With what has to go from the call as it is, for torch refuses it beside a sampler, and what is
    to be done to the dataset first. Another loader of the same line may draw otherwise, or be of a
    dataset that takes no list: the call is for this one alone.

    Args:
        loader: One that has `whole_batches`.
        more: Further arguments, behind a comma.
    """
    asked = loader.whole_batches or ""
    named = [name for name in (_SHUFFLES, _IN_ORDER) if f"{name}(" in asked]
    kept = [
        f", with the {what} that it has now" for sign, what in _HAS_NOW.items() if sign in asked
    ]
    refused = ["shuffle"] if _SHUFFLES in named else []
    refused += ["drop_last"] if "drop_last=True" in asked else []
    without = f", without {' and '.join(refused)}" if refused else ""
    stacks = ["TensorDataset", "default_collate"] if loader.is_stackable else []
    imports = ", ".join(["BatchSampler", *named, *stacks])
    first = f"{_for_it_alone(loader)}{_STACKED if stacks else ''}"
    call = f"{loader.kind}(..., {asked}{more})"
    if not_taken(loader, _ARGUMENTS):
        call = f"{asked}{more} {by_base(loader)}"
    call += f"{''.join(kept)}{without}"
    return f"{first}{call} (from torch.utils.data import {imports})"


def _for_it_alone(loader: Loader) -> str:
    if not loader.also_builds:
        return ""
    return f"for this loader alone, as its line builds {others_of_line(loader)} too: "


def cautions_of_whole_batches(loader: Loader) -> list[str]:
    """Returns what that call alters, or needs.

    Args:
        loader: One that has `whole_batches`.
    """
    told = []
    if loader.is_stackable:
        told.append(
            "the samples are in memory twice then, unless the old dataset goes, and what changes "
            "in that later does not reach the tensors"
        )
    elif not loader.holds_tensors:
        told.append(
            "__getitem__ then gets a list of indices: self.x[indices] takes all of them at once; "
            "what it does to one sample has to be written for all"
        )
    if loader.sampler_takes_epoch:
        told.append(
            "loader.sampler is the BatchSampler then, which has no set_epoch: keep the sampler "
            "itself in a variable, and call set_epoch on that"
        )
    return told
