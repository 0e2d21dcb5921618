"""The real driver, where there is one: that what a stand-in for it tells is not another thing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from trainprof.sampling.gpu import GpuReader
from trainprof.sampling.loop import NothingToSample

pytestmark = pytest.mark.gpu


@pytest.fixture
def samples() -> Iterator[list[dict[str, Any]]]:
    """Two samples of all GPUs, a second apart: the driver's figures are of its own windows."""
    reader = GpuReader()
    try:
        first = reader.sample()
    except NothingToSample as reason:
        pytest.skip(str(reason))
    time.sleep(1.1)
    yield [first, reader.sample()]
    reader.close()


def test_a_gpu_tells_what_can_be(samples: list[dict[str, Any]]) -> None:
    for before, after in zip(*(sample["gpus"] for sample in samples), strict=True):
        assert before["uuid"].startswith("GPU-")
        assert before["name"]
        if before["mig"] is None:
            assert 0 <= before["utilization_gpu_percent"] <= 100
        assert 0 <= before["memory_used_bytes"] <= before["memory_total_bytes"]
        assert 0 < before["power_w"] < 2 * before["power_limit_w"]
        assert 0 < before["temperature_c"] < 120
        assert before["clock_reasons"] >= 0
        energy_mj = after["energy_mj"] - before["energy_mj"]
        passed_s = (after["t_ns"] - before["t_ns"]) / 1e9
        assert 0 < energy_mj / 1000 < 2 * before["power_limit_w"] * passed_s


def test_asking_costs_little(samples: list[dict[str, Any]]) -> None:
    passed_ns = samples[1]["gpus"][0]["t_ns"] - samples[0]["gpus"][0]["t_ns"]
    assert samples[1]["call_ns"] - samples[0]["call_ns"] < 0.25 * passed_ns
