"""The cores that a process tells of."""

from __future__ import annotations

import os

import pytest

from trainprof.inside.process.affinity import as_ranges, own_cores

BINDERS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


@pytest.fixture(autouse=True)
def bound_to_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 2, 3}, raising=False)
    for name in BINDERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([5], "5"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7, 8, 9, 11], "0,2-3,7-9,11")],
)
def test_numbers_are_written_as_the_kernel_does(numbers: list[int], text: str) -> None:
    assert as_ranges(numbers) == text


def test_those_that_the_thread_may_be_on() -> None:
    assert own_cores() == "2-3,9"


@pytest.mark.parametrize(
    ("name", "value"), [*((name, "true") for name in BINDERS), ("KMP_AFFINITY", "compact,1,0")]
)
def test_a_thread_that_openmp_binds_says_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert own_cores() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_PROC_BIND", "FALSE"), ("KMP_AFFINITY", "disabled"), ("OMP_PLACES", " ")],
)
def test_openmp_that_is_told_not_to_bind(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert own_cores() == "2-3,9"


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert own_cores() is None
