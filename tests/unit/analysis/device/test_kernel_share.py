"""What the driver says of kernels bounds a device's work, where it says it of that device alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainprof.analysis.device.kernel_share import KernelShare, kernel_share
from trainprof.analysis.summary.device import Gpu

S = 1_000_000_000
GPU = Gpu(1, "GPU-1", "H100", logical_index=0, is_visible=True, is_number_assumed=False)
OTHER = Gpu(0, "GPU-0", "H100", is_visible=False, is_number_assumed=False)
SPAN = (2 * S, 20 * S)
# Before the script used it.
IDLE = [0.0] * 4


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
    return kernel_share(lines(*percents), gpus, 0, SPAN, SPAN[0])


def test_an_even_device_is_bounded_from_both_sides() -> None:
    found = told(*IDLE, *[40.0] * 20)
    assert found.mean == pytest.approx(0.4)
    assert found.high == pytest.approx(0.43)
    # The smallest kernels, one by one, count for more than they take.
    assert 0.2 < found.low(keeps_up=True) < 0.25 < 0.3 < found.low(keeps_up=False) < 0.35


def test_one_that_always_has_a_kernel_was_at_work() -> None:
    found = told(*IDLE, *[100.0] * 20)
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low(keeps_up=False) == pytest.approx(0.97)
    assert found.low(keeps_up=True) < 0.6


def test_readings_that_differ_widen_the_bounds() -> None:
    even, uneven = told(*IDLE, *[40.0] * 20), told(*IDLE, *[10.0, 70.0] * 10)
    assert uneven.mean == pytest.approx(0.4, abs=0.02)
    assert uneven.high > even.high + 0.05
    assert uneven.low(keeps_up=True) < even.low(keeps_up=True) - 0.05


def test_what_came_before_and_after_does_not_count() -> None:
    # Up to 2 s, and from 20 s on; a window may be a second long.
    found = told(*[0.0] * 5, *[80.0] * 35, *[0.0] * 10)
    assert found.mean == pytest.approx(0.8)


@pytest.mark.parametrize(
    "processes",
    [
        [{"pid": 1, "role": "own"}, {"pid": 2, "role": "other"}],
        [{"pid": 1, "role": "own"}, {"pid": 2, "role": "own"}],
        [{"pid": 2, "role": "unknown"}, {"pid": 3, "role": "unknown"}],
    ],
)
def test_where_others_are_on_the_device_it_tells_nothing_of_the_least(
    processes: list[dict[str, Any]],
) -> None:
    found = told(*IDLE, *[100.0] * 20, gpus=(OTHER, replace(GPU, processes=processes)))
    assert (found.low(keeps_up=False), found.high) == (0.0, 1.0)


def test_where_it_works_before_the_script_does_others_are_there() -> None:
    found = told(*[60.0] * 4, *[100.0] * 20)
    assert found.low(keeps_up=False) == 0.0


@pytest.mark.parametrize(
    "gpus",
    [
        (OTHER, replace(GPU, logical_index=1)),
        (OTHER, replace(GPU, mig=[{"uuid": "MIG-1"}])),
        (OTHER, replace(GPU, is_number_assumed=True)),
        (OTHER, replace(GPU, is_used=False, processes=[{"pid": 9, "role": "other"}])),
        (replace(OTHER, is_used=True), replace(GPU, is_number_assumed=True, is_used=True)),
        (replace(OTHER, logical_index=0), GPU),
        (),
    ],
    ids=[
        "another number",
        "a part of it",
        "numbers assumed",
        "not used",
        "two used",
        "two of a number",
        "none",
    ],
)
def test_nothing_is_told_where_it_may_be_another_gpu(gpus: tuple[Gpu, ...]) -> None:
    assert told(*[40.0] * 20, gpus=gpus) is None


def test_a_number_that_is_assumed_is_right_where_it_is_the_only_one_in_use() -> None:
    used = replace(GPU, is_number_assumed=True, is_used=True)
    assert told(*[40.0] * 20, gpus=(OTHER, used)) is not None
    assert told(*[40.0] * 20, gpus=(replace(GPU, is_number_assumed=True),)) is not None


@pytest.mark.parametrize("percents", [[40.0] * 6, [None] * 20, []])
def test_too_little_tells_nothing(percents: list[float | None]) -> None:
    assert told(*percents) is None
