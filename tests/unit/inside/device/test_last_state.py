"""The state in which a device ran out of memory, from the error that ends the process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainprof.inside.device.memory import last_state

GIB = 1 << 30
MIB = 1 << 20
# As torch 2.4 to 2.13 writes them.
CUDA = (
    "CUDA out of memory. Tried to allocate 1.25 GiB. GPU 1 has a total capacity of 93.02 GiB of "
    "which 1.18 GiB is free. Process 2752205 has 91.82 GiB memory in use. Of the allocated memory "
    "90.63 GiB is allocated by PyTorch, with 23.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 120.54 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
XPU = (
    "XPU out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 64.00 GiB of "
    "which 0 bytes is free. Of the allocated memory 63.00 GiB is allocated by PyTorch, and 0 bytes "
    "is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied "
    "cached memory."
)
MPS = "MPS backend out of memory (MPS allocated: 9.05 GB). Tried to allocate 256.00 MB on private"


def ends_by(monkeypatch: pytest.MonkeyPatch, raises: Callable[[], Any]) -> dict[str, Any] | None:
    try:
        raises()
    except BaseException as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.delattr(sys, "last_exc", raising=False)
    return last_state(lambda code: code.co_name != "in_a_library")


def in_a_library(error: BaseException) -> None:
    raise error


def user(error: BaseException) -> None:
    in_a_library(error)


def test_cudas_sentence_is_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ends_by(monkeypatch, lambda: user(torch.OutOfMemoryError(CUDA)))
    assert state is not None
    place = state.pop("place")
    assert place == [__file__, user.__code__.co_firstlineno + 1, "user"]
    assert state == {
        "device": 1,
        "requested_bytes": round(1.25 * GIB),
        "total_bytes": round(93.02 * GIB),
        "free_bytes": round(1.18 * GIB),
        "allocated_bytes": round(90.63 * GIB),
        "kept_bytes": round(120.54 * MIB),
    }


def test_so_is_xpus(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ends_by(monkeypatch, lambda: user(torch.cuda.OutOfMemoryError(XPU)))
    assert state is not None
    assert (state["requested_bytes"], state["free_bytes"], state["kept_bytes"]) == (512, 0, 0)


@pytest.mark.parametrize("message", [MPS, "CUDA error: out of memory", "CUDA out of memory."])
def test_what_a_sentence_does_not_tell_is_not_known(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    state = ends_by(monkeypatch, lambda: user(RuntimeError(message)))
    assert state is not None
    assert [value for name, value in state.items() if name != "place"] == [None] * 6


def test_an_error_that_it_caused_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises() -> None:
        try:
            user(torch.OutOfMemoryError(CUDA))
        except RuntimeError as error:
            raise ValueError("batch too large") from error

    state = ends_by(monkeypatch, raises)
    assert state is not None
    assert state["device"] == 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        MemoryError("out of memory"),
        ValueError("out of memory"),
        SystemExit(1),
        KeyboardInterrupt(),
        RuntimeError(7),
    ],
)
def test_other_ends_are_none(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    assert ends_by(monkeypatch, lambda: user(error)) is None


def test_one_that_the_script_has_caught_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.delattr(sys, "last_exc", raising=False)
    with contextlib.suppress(torch.OutOfMemoryError):
        user(torch.OutOfMemoryError(CUDA))
    assert last_state(lambda code: True) is None


def test_a_rank_that_leaves_by_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.multiprocessing makes `sys.exit(1)` of it, and our turn comes while that passes."""
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.delattr(sys, "last_exc", raising=False)
    try:
        try:
            user(torch.OutOfMemoryError(CUDA))
        except Exception:
            sys.exit(1)
    except SystemExit:
        state = last_state(lambda code: True)
    assert state is not None
    assert state["device"] == 1
