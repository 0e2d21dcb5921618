"""How far other threads are at work, by planted times on a core."""

from __future__ import annotations

import threading

import pytest

from trainprof.inside.stacks import sampler
from trainprof.inside.stacks.sampler import ThreadCpuShares

MS = 1_000_000


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Time on a core by native id, ns; idents are the native ids plus 1000."""
    had: dict[int, int] = {}
    monkeypatch.setattr(sampler, "core_times", lambda native: lambda: (had[native], 0))
    monkeypatch.setattr(
        sampler, "_native_id", lambda ident: ident - 1000 if ident - 1000 in had else None
    )
    return had


def test_shares_are_of_the_time_since_they_were_asked_for(cores: dict[int, int]) -> None:
    threads = ThreadCpuShares()
    cores.update({1: 5 * MS, 2: 0})
    assert threads.shares([1001, 1002, 1003], 0) == {1001: None, 1002: None, 1003: None}
    cores.update({1: 35 * MS, 2: 0})
    assert threads.shares([1001, 1002, 1003], 40 * MS) == {1001: 0.75, 1002: 0.0, 1003: None}
    assert threads.busy == {1001}
    # So soon the interpreter may not have gone round: what was known still holds.
    assert threads.shares([1001, 1002], 45 * MS) == {1001: 0.75, 1002: 0.0}
    cores[2] = 6 * MS
    assert threads.shares([1001, 1002], 100 * MS) == {1001: 0.0, 1002: 0.1}
    assert threads.busy == {1002}
    # Who is asked for more rarely has a share of a longer time.
    assert threads.shares([1002], 140 * MS) == {1002: 0.0}
    cores[1] += 20 * MS
    assert threads.shares([1001], 180 * MS) == {1001: 0.25}


def test_threads_that_come_and_go_do_not_add_up(cores: dict[int, int]) -> None:
    threads = ThreadCpuShares()
    for native in range(1000):
        cores[native] = 0
        threads.shares([1000 + native], native)
    assert len(threads._known) <= 64


def test_what_nobody_can_tell_is_no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "core_times", lambda native: lambda: None)
    threads, here = ThreadCpuShares(), threading.get_ident()
    assert threads.shares([here], 0) == {here: None}
    assert threads.shares([here], 90 * MS) == {here: None}
    assert threads.busy == set()


def test_only_a_few_threads_are_asked_for(cores: dict[int, int]) -> None:
    threads = ThreadCpuShares()
    cores.update(dict.fromkeys(range(20), 0))
    threads.shares(range(1000, 1020), 0)
    told = threads.shares(range(1000, 1020), 50 * MS)
    assert sum(share is not None for share in told.values()) == 6


def test_the_kernels_name_of_a_thread() -> None:
    here = threading.current_thread()
    assert sampler._native_id(threading.get_ident()) == here.native_id
    assert sampler._native_id(1) is None
