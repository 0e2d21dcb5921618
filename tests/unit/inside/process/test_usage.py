"""What the kernel tells of the process comes from Python's own module, which nobody is told of."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from support.session import run_plain

from trainprof.inside.process import usage
from trainprof.inside.process.usage import as_ranges, own_cores


def test_it_is_what_resource_tells() -> None:
    used = usage.getrusage(usage.RUSAGE_SELF)
    assert used.ru_maxrss == pytest.approx(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert getattr(resource, "RUSAGE_THREAD", None) == usage.RUSAGE_THREAD


def test_it_is_registered_nowhere(tmp_path: Path) -> None:
    code = "import sys, trainprof.inside.process.usage; print('resource' in sys.modules)"
    done = run_plain(["-c", code], tmp_path)
    assert done.stdout == "False\n"


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


@pytest.mark.parametrize(
    ("name", "value", "cores"),
    [
        ("OTHER", "true", "2-3,9"),
        *((name, "true", None) for name in BINDERS),  # it says nothing of the other threads
        ("KMP_AFFINITY", "compact,1,0", None),
        ("OMP_PROC_BIND", "FALSE", "2-3,9"),
        ("KMP_AFFINITY", "disabled", "2-3,9"),
        ("OMP_PLACES", " ", "2-3,9"),
    ],
)
def test_cores_of_a_thread_that_openmp_may_bind(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, cores: str | None
) -> None:
    monkeypatch.setenv(name, value)
    assert own_cores() == cores
    monkeypatch.delattr(os, "sched_getaffinity")
    assert own_cores() is None
