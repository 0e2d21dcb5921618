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
OF_OTHER = {"pid": 9, "role": "other"}
ASSUMED = replace(GPU, is_number_assumed=True, is_used=True)
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


def share(*percents: float | None, gpus: tuple[Gpu, ...] = (OTHER, GPU)) -> KernelShare | None:
    return kernel_share(lines(*percents), gpus, 0, SPAN, SPAN[0])


def test_a_device_is_bounded_from_both_sides() -> None:
    even = share(*IDLE, *[40.0] * 20)
    assert even.mean == pytest.approx(0.4)
    assert even.high == pytest.approx(0.43)
    # The smallest kernels, one by one, count for more than they take.
    assert 0.2 < even.low(keeps_up=True) < 0.25 < 0.3 < even.low(keeps_up=False) < 0.35
    uneven = share(*IDLE, *[10.0, 70.0] * 10)
    assert uneven.mean == pytest.approx(0.4, abs=0.02)
    assert uneven.high > even.high + 0.05
    assert uneven.low(keeps_up=True) < even.low(keeps_up=True) - 0.05
    full = share(*IDLE, *[100.0] * 20)
    assert (full.mean, full.high) == (1.0, 1.0)
    assert full.low(keeps_up=False) == pytest.approx(0.97)
    assert full.low(keeps_up=True) < 0.6
    # What came up to 2 s, and from 20 s on, does not count; a window may be a second long.
    assert share(*[0.0] * 5, *[80.0] * 35, *[0.0] * 10).mean == pytest.approx(0.8)
    # It works before the script uses it: for others.
    assert share(*[60.0] * 4, *[100.0] * 20).low(keeps_up=False) == 0.0


@pytest.mark.parametrize(
    "processes",
    [
        [{"pid": 1, "role": "own"}, {"pid": 2, "role": "other"}],
        [{"pid": 2, "role": "unknown"}, {"pid": 3, "role": "unknown"}],
    ],
)
def test_where_others_are_on_the_device_it_tells_nothing_of_the_least(
    processes: list[dict[str, Any]],
) -> None:
    known = share(*IDLE, *[100.0] * 20, gpus=(OTHER, replace(GPU, processes=processes)))
    assert (known.low(keeps_up=False), known.high) == (0.0, 1.0)


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param((OTHER, replace(GPU, mig=[{"uuid": "MIG-1"}])), id="a part of it"),
        pytest.param((OTHER, replace(GPU, is_number_assumed=True)), id="numbers assumed"),
        pytest.param((OTHER, replace(GPU, is_used=False, processes=[OF_OTHER])), id="not used"),
        pytest.param((replace(OTHER, is_used=True), ASSUMED), id="two used"),
        pytest.param((replace(OTHER, logical_index=0), GPU), id="two of a number"),
    ],
)
def test_nothing_is_known_where_it_may_be_another_gpu(gpus: tuple[Gpu, ...]) -> None:
    assert share(*[40.0] * 20, gpus=gpus) is None
