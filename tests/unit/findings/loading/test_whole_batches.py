"""The call with which torch asks a dataset for whole batches gives what the one as it is does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import summaries

from trainprof.findings.loading.batch_preparation import call_for_whole_batches

GENERATOR = torch.Generator()
TENSORS = torch.utils.data.TensorDataset(torch.arange(10))


def batches_of(**given: Any) -> list[list[int]]:
    """Returns what a loader of ten numbers gives, by one seed."""
    GENERATOR.manual_seed(3)
    torch.manual_seed(3)
    return [batch.tolist() for [batch] in torch.utils.data.DataLoader(TENSORS, **given)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("arguments", "drawn", "named", "kept"),
    [
        ({"shuffle": True}, "RandomSampler(dataset)", "BatchSampler, RandomSampler", ""),
        (
            {"shuffle": True, "generator": GENERATOR},
            "RandomSampler(dataset, generator=...)",
            "BatchSampler, RandomSampler",
            "generator",
        ),
        ({}, "SequentialSampler(dataset)", "BatchSampler, SequentialSampler", ""),
        ({"sampler": range(8)}, "sampler", "BatchSampler", "sampler"),
    ],
)
def test_torch_takes_the_call_for_whole_batches(
    arguments: dict[str, Any], drawn: str, named: str, kept: str, drop_last: bool
) -> None:
    asked = f"sampler=BatchSampler({drawn}, 4, drop_last={drop_last}), batch_size=None"
    known = call_for_whole_batches(
        summaries.loader("train.py:41", num_workers=0, whole_batches=asked)
    )
    call, _, beside = known.rpartition(" (from torch.utils.data import ")
    assert beside == f"{named})"
    call, _, refused = call.partition(", without ")
    assert call == f"DataLoader(..., {asked})" + f", with the {kept} that it has now" * bool(kept)
    gone = refused.split(" and ") if refused else []
    assert gone == ["shuffle"] * ("shuffle" in arguments) + ["drop_last"] * drop_last
    given = {**arguments, "drop_last": drop_last}
    left = {name: value for name, value in given.items() if name not in ("sampler", *gone)}
    scope = {**vars(torch.utils.data), "dataset": TENSORS, "sampler": range(8), "own": GENERATOR}
    changed = eval(f"dict({asked.replace('...', 'own')})", scope)
    assert batches_of(**left, **changed) == batches_of(batch_size=4, **given)


PAIRS = [(torch.full((2,), float(number)), number) for number in range(10)]
ROWS = torch.utils.data.TensorDataset(torch.arange(10))


@pytest.mark.parametrize(
    "dataset",
    [
        PAIRS,
        [(number / 2, True) for number in range(10)],
        torch.utils.data.Subset(PAIRS, range(2, 9)),  # type: ignore[arg-type]
        torch.utils.data.ConcatDataset([ROWS, ROWS]),
    ],
    ids=["list", "numbers", "subset", "concatenated"],
)
def test_samples_that_are_put_into_tensors_give_the_same_batches(dataset: Any) -> None:
    asked = "sampler=BatchSampler(SequentialSampler(dataset), 4, drop_last=False), batch_size=None"
    loader = summaries.loader("train.py:41", num_workers=0, whole_batches=asked, is_stackable=True)
    known = call_for_whole_batches(loader)
    stacked, _, call = known.partition(", once, then ")
    imports = "BatchSampler, SequentialSampler, TensorDataset, default_collate"
    assert call == f"DataLoader(..., {asked}) (from torch.utils.data import {imports})"
    scope = {**vars(torch.utils.data), "dataset": dataset}
    exec(stacked, scope)
    batches = list(eval(f"DataLoader(dataset, {asked})", scope))
    as_before = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    assert [type(batche) for batche in batches] == [type(item) for item in as_before]
    for batche, before in zip(batches, as_before, strict=True):
        assert all(x.dtype == y.dtype and x.equal(y) for x, y in zip(batche, before, strict=True))
    with pytest.raises(TypeError):
        next(iter(eval(f"DataLoader(before, {asked})", {**scope, "before": dataset})))
