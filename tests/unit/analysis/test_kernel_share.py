"""What the driver says of kernels bounds a device's work, where it says it of that device alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainprof.analysis.gpu_figures import Gpu
from trainprof.analysis.kernel_share import KernelShare, kernel_share

S = 1_000_000_000
GPU = Gpu(1, "GPU-1", "H100", logical_index=0, is_visible=True, is_number_assumed=False)
OTHER = Gpu(0, "GPU-0", "H100", is_visible=False, is_number_assumed=False)
SPAN = (2 * S, 20 * S)


def lines(*percents: float | None, others: float = 100.0) -> list[dict[str, Any]]:
    """A sample each half second, of two GPUs; the second is the script's."""
    return [
        {
            "t_ns": at * S // 2,
            "gpus": [
                {"index": 0, "t_ns": at * S // 2, "utilization_gpu_percent": others},
                {"index": 1, "t_ns": at * S // 2 + 1, "utilization_gpu_percent": percent},
            ],
        }
        for at, percent in enumerate(percents, 1)
    ]


def told(*percents: float | None, gpus: tuple[Gpu, ...] = (OTHER, GPU)) -> KernelShare | None:
    return kernel_share(lines(*percents), gpus, 0, SPAN)


def test_an_even_device_is_bounded_from_both_sides() -> None:
    found = told(*[40.0] * 20)
    assert found is not None
    assert found.mean == pytest.approx(0.4)
    assert found.high == pytest.approx(0.43)
    # The smallest kernels count for more than they take.
    assert 0.25 < found.low < 0.3


def test_one_that_always_has_a_kernel_was_at_work() -> None:
    found = told(*[100.0] * 20)
    assert found is not None
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.97)


def test_readings_that_differ_widen_the_bounds() -> None:
    even, uneven = told(*[40.0] * 20), told(*[10.0, 70.0] * 10)
    assert even is not None
    assert uneven is not None
    assert uneven.mean == pytest.approx(0.4, abs=0.02)
    assert uneven.high > even.high + 0.05
    assert uneven.low < even.low - 0.05


def test_what_came_before_and_after_does_not_count() -> None:
    # Up to 2 s, and from 20 s on.
    found = told(*[0.0] * 4, *[80.0] * 36, *[0.0] * 10)
    assert found is not None
    assert found.mean == pytest.approx(0.8)


def test_a_reading_that_began_before_does_not_count() -> None:
    found = kernel_share(lines(*[0.0] * 5, *[80.0] * 20), (OTHER, GPU), 0, (2 * S + S // 4, 20 * S))
    assert found is not None
    assert found.mean == pytest.approx(0.8)


@pytest.mark.parametrize(
    "gpus",
    [
        (OTHER, replace(GPU, logical_index=1)),
        (OTHER, replace(GPU, mig=[{"uuid": "MIG-1"}])),
        (replace(OTHER, is_visible=True), replace(GPU, is_number_assumed=True)),
        (replace(OTHER, logical_index=0), GPU),
        (),
    ],
    ids=["another number", "a part of it", "numbers assumed", "two of a number", "none"],
)
def test_nothing_is_told_where_it_may_be_another_gpu(gpus: tuple[Gpu, ...]) -> None:
    assert told(*[40.0] * 20, gpus=gpus) is None


def test_the_only_one_that_is_seen_is_the_one() -> None:
    assert told(*[40.0] * 20, gpus=(OTHER, replace(GPU, is_number_assumed=True))) is not None


@pytest.mark.parametrize("percents", [[40.0] * 6, [None] * 20, []])
def test_too_little_tells_nothing(percents: list[float | None]) -> None:
    assert told(*percents) is None
