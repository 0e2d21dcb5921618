"""Copies of kept batches share nothing with what was given before."""

from __future__ import annotations

import mmap
from collections import UserDict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from trainprof.inside.trial.free_data import (
    DEFAULT_AVAILABLE_BYTES,
    DEFAULT_CACHE_BYTES,
    KeptBatch,
    available_bytes,
    last_cache_bytes,
)

Pair = namedtuple("Pair", "x y")


@dataclass
class Held:
    x: torch.Tensor
    names: list[str] = field(default_factory=lambda: ["a"])


def ones() -> torch.Tensor:
    return torch.ones(2, 3)


@pytest.mark.parametrize(
    "batch",
    [
        ones(),
        [ones(), torch.zeros(0)],
        Pair(ones(), {"deep": (ones(),)}),
        UserDict(input_ids=ones()),
        Held(ones()),
        ["text", 3, None, b"bytes"],
        torch.ones(6, 4).t(),
        torch.ones(1, 3).expand(5, 3),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_copy_is_equal_and_of_the_same_types(batch: Any) -> None:
    kept = KeptBatch(batch, torch)
    assert described(kept.copy()) == described(kept.copy()) == described(batch)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.bool, torch.uint8, torch.int64, torch.complex64],
)
def test_large_tensors_are_kept_off_the_heap_of_the_script(dtype: torch.dtype) -> None:
    large = torch.arange(1 << 17).reshape(2, -1).to(dtype)
    small, nothing = torch.ones(3, dtype=dtype), torch.zeros(0, dtype=dtype)
    kept = KeptBatch([large, small, nothing], torch)
    # A mapping of its own begins at a page; of what malloc gives, one in 64 does by chance.
    assert kept.batch[0].data_ptr() % mmap.PAGESIZE == 0
    copies = kept.copy()
    assert all(map(torch.equal, copies, [large, small, nothing]))
    assert copies[0].data_ptr() not in (large.data_ptr(), kept.batch[0].data_ptr())


def described(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return (thing.dtype, thing.shape, thing.tolist())
    if isinstance(thing, (list, tuple)):
        return (type(thing), [described(part) for part in thing])
    if isinstance(thing, dict):
        return {key: described(value) for key, value in thing.items()}
    if hasattr(thing, "__dict__"):
        return (type(thing), described(vars(thing)))
    return thing


def test_what_is_done_to_a_copy_or_to_the_original_stays_there() -> None:
    batch = {"x": ones(), "names": ["a"]}
    kept = KeptBatch(batch, torch)
    for given in (batch, kept.copy()):
        given["x"].zero_()
        given["names"].clear()
    found = kept.copy()
    assert (found["x"].sum().item(), found["names"]) == (6, ["a"])


def test_two_views_of_one_storage_stay_that_and_one_tensor_twice_is_one() -> None:
    whole = torch.arange(6.0)
    found = KeptBatch((whole[:3], whole[3:], whole, whole), torch).copy()
    found[2].zero_()
    assert [part.sum().item() for part in found] == [0, 0, 0, 0]
    assert found[2] is found[3]


def test_leaves_that_want_gradients_do_so() -> None:
    leaf = torch.ones(2, requires_grad=True)
    found = KeptBatch([leaf], torch).copy()[0]
    assert found.requires_grad
    assert found is not leaf


def test_sizes_are_counted_once() -> None:
    x = torch.ones(10)
    assert KeptBatch([x, x, {"y": torch.ones(5, dtype=torch.int8)}, "text"], torch).size_bytes == 45


def test_tensors_are_pinned_where_the_loaders_were(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = ones()
    monkeypatch.setattr(
        "trainprof.inside.trial.free_data._is_pinned", lambda tensor: tensor is pinned
    )
    asked: list[torch.Tensor] = []

    def pin(self: KeptBatch, tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(KeptBatch, "_pinned", pin)
    kept = KeptBatch([pinned, torch.zeros(3)], torch)
    pinned.zero_()
    found = kept.copy()
    assert [tensor.tolist() for tensor in asked] == [[[1.0] * 3] * 2]
    assert found[0] is not asked[0]
    assert found[0].sum() == 6


def test_the_last_cache(tmp_path: Path) -> None:
    for number, (level, size) in enumerate([("1", "32K"), ("1", "32K"), ("2", "1M"), ("3", "24M")]):
        place = tmp_path / f"index{number}"
        place.mkdir()
        (place / "level").write_text(f"{level}\n")
        (place / "size").write_text(f"{size}\n")
    (tmp_path / "uevent").write_text("")
    assert last_cache_bytes(str(tmp_path)) == 24 << 20
    assert last_cache_bytes(str(tmp_path / "nothing")) == DEFAULT_CACHE_BYTES


def test_available_memory(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:  900 kB\nMemFree:  10 kB\nMemAvailable:     400 kB\n")
    nothing = str(tmp_path / "nothing")
    assert available_bytes(str(told), nothing) == 400 << 10
    assert available_bytes(nothing, nothing) == DEFAULT_AVAILABLE_BYTES


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_a_container_has_less(tmp_path: Path, limit: str, used: str) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemAvailable:     400 kB\n")
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    for most, available in (("9000\n", 4000), ("4500\n", 0), ("max\n", 400 << 10)):
        (tmp_path / limit).write_text(most)
        (tmp_path / used).write_text("5000\n")
        assert available_bytes(str(told), str(tmp_path)) == available
