"""The call with which torch asks a dataset for whole batches gives what the one as it is does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import summaries
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from trainprof.analysis.summary.loader import LoaderCall
from trainprof.findings.loading.batch_preparation import call_for_whole_batches

GENERATOR = torch.Generator()
TENSORS = TensorDataset(torch.arange(10))


def asking(sampler: str, drop_last: bool = False) -> str:
    return f"sampler=BatchSampler({sampler}, 4, drop_last={drop_last}), batch_size=None"


def advice(asked: str, **loader: Any) -> str:
    changes = {"num_workers": 0, "whole_batches": asked, **loader}
    return call_for_whole_batches(summaries.loader("train.py:41", **changes))


def batches_of(**given: Any) -> list[list[int]]:
    """Returns what a loader of ten numbers gives, by one seed."""
    GENERATOR.manual_seed(3)
    torch.manual_seed(3)
    return [batch.tolist() for [batch] in DataLoader(TENSORS, **given)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("arguments", "drawn"),
    [
        ({"shuffle": True}, "RandomSampler(dataset)"),
        ({"shuffle": True, "generator": GENERATOR}, "RandomSampler(dataset, generator=...)"),
        ({}, "SequentialSampler(dataset)"),
        ({"sampler": range(8)}, "sampler"),
    ],
    ids=["shuffled", "with a generator", "in order", "a sampler"],
)
def test_torch_takes_the_call_for_whole_batches(
    arguments: dict[str, Any], drawn: str, drop_last: bool, says: Callable[..., None]
) -> None:
    asked = asking(drawn, drop_last)
    says(advice(asked))
    given = {**arguments, "drop_last": drop_last}
    # torch refuses these next to a sampler.
    gone = ["shuffle", "sampler"] + ["drop_last"] * drop_last
    left = {name: value for name, value in given.items() if name not in gone}
    scope = {**vars(torch.utils.data), "dataset": TENSORS, "sampler": range(8), "own": GENERATOR}
    changed = eval(f"dict({asked.replace('...', 'own')})", scope)
    assert batches_of(**left, **changed) == batches_of(batch_size=4, **given)


def test_a_class_that_takes_no_sampler(says: Callable[..., None]) -> None:
    """It is given where its constructor calls its base's."""
    call = LoaderCall(ends_at=None, takes=["ds", "*"], constructors=["data.py:12"])
    says(advice("sampler=sampler, batch_size=None", kind="MyLoader", call=call, num_workers=2))


PAIRS: Any = [(torch.full((2,), float(number)), number) for number in range(10)]
NUMBERS: Any = [(number / 2, True) for number in range(10)]


@pytest.mark.parametrize(
    "dataset",
    [PAIRS, NUMBERS, Subset(PAIRS, range(2, 9)), ConcatDataset([TENSORS, TENSORS])],
    ids=["list", "numbers", "subset", "concatenated"],
)
def test_samples_that_are_put_into_tensors_give_the_same_batches(dataset: Any) -> None:
    asked = asking("SequentialSampler(dataset)")
    stacked, _, call = advice(asked, is_stackable=True).partition(", then ")
    assert call.startswith(f"DataLoader(..., {asked})")
    scope = {**vars(torch.utils.data), "dataset": dataset}
    exec(stacked, scope)
    batches = list(eval(f"DataLoader(dataset, {asked})", scope))
    for batch, before in zip(batches, DataLoader(dataset, batch_size=4), strict=True):
        assert type(batch) is type(before)
        assert all(x.dtype == y.dtype and x.equal(y) for x, y in zip(batch, before, strict=True))
