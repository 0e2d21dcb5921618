"""GPUs over the run, from planted samples with known truth."""

from __future__ import annotations

import pytest
from support.sampled_system import sampled_system

S = 1_000_000_000
WH = 3_600_000  # in mJ


def device(index=0, **metrics):
    return {"index": index, "uuid": f"GPU-{index}", "name": "H", **metrics}


def gpus(t_s, *devices, **more):
    return {"t_ns": int(t_s * S), "gpus": list(devices), **more}


def system(lines, *, pids=(), **how):
    trees = [{"t_ns": 0, "processes": [{"pid": pid, "started_ns": 7} for pid in pids]}]
    return sampled_system([], trees if pids else [], lines, **how)


def only(lines, **how):
    (gpu,) = system(lines, **how).gpus
    return gpu


def each(name, *pairs):
    return [gpus(t, device(**{name: value})) for t, value in pairs]


def process(pid, size, here=True):
    return {"pid": pid, "bytes": size, "is_here": here}


def test_each_device_has_its_own():
    lines = [
        gpus(
            t,
            device(1, utilization_gpu_percent=100, memory_used_bytes=5),
            device(0, utilization_gpu_percent=10 * t, memory_total_bytes=80, power_limit_w=700),
        )
        for t in (1, 2)
    ]
    first, second = system(lines, end_s=2).gpus
    assert (first.index, first.uuid, first.name) == (0, "GPU-0", "H")
    assert (first.utilization.mean, second.utilization.mean) == (15, 100)
    assert (first.memory_bytes, second.memory_bytes["max"]) == (None, 5)
    assert (first.memory_total_bytes, first.power_limit_w) == (80, 700)


@pytest.mark.parametrize(
    ("masks", "share"), [((0x1, 0x4, 0x44, 0x0), 0.5), ((0x103, 0x4000), 0), ((None,), None)]
)
def test_only_limits_throttle(masks, share):
    lines = each("clock_reasons", *((t + 1, mask) for t, mask in enumerate(masks)))
    assert only(lines, end_s=len(masks)).throttled_share == share


def test_the_first_sample_holds_for_the_run_and_reasons_are_kept():
    first = device(logical_index=3, is_visible=True, is_number_assumed=False)
    gpu = only([gpus(1, first), gpus(2, device(not_observed={"energy": "Not Supported"}))])
    assert (gpu.logical_index, gpu.is_visible, gpu.is_number_assumed) == (3, True, False)
    assert gpu.not_observed == {"energy": "Not Supported"}
    assert (gpu.utilization, gpu.power_w, gpu.is_used, gpu.processes, gpu.mig) == (None,) * 5
    assert (gpu.throttled_share, gpu.energy_wh, gpu.energy_source) == (None,) * 3


@pytest.mark.parametrize(
    ("processes", "pids", "roles", "is_used"),
    [
        ([process(100, 5), process(7, 90)], (100,), {7: "other", 100: "own"}, True),
        ([process(4711, 5, here=False)], (), {4711: "unknown"}, None),
        ([process(7, None)], (), {7: "other"}, False),
        ([], (), {}, False),
    ],
)
def test_whose_processes_are_on_it(processes, pids, roles, is_used):
    gpu = only([gpus(1, device(processes=processes))], pids=pids)
    assert {process["pid"]: process["role"] for process in gpu.processes} == roles
    assert gpu.is_used is is_used


@pytest.mark.parametrize(
    ("counter", "power", "joules", "source"),
    [
        pytest.param((0, 2 * WH, 6 * WH), (1, 1, 1), 6 * 3600, "counter", id="by the counter"),
        pytest.param((0, None, 6 * WH), (1, 1, 1), 6 * 3600, "counter", id="once not read"),
        pytest.param((None,) * 3, (0, 100, 100), 500, "estimated", id="by power"),
        pytest.param((9, 5, 400_005), (0, 100, 100), 500, "estimated", id="it goes back"),
        pytest.param((None,) * 3, (-1, 100, 100), 400, "estimated", id="damage"),
        pytest.param((None,) * 3, (None, 100, None), None, None, id="neither"),
    ],
)
def test_energy_is_the_counters_or_an_estimate(counter, power, joules, source):
    lines = [
        gpus(t, device(energy_mj=mj, power_w=w))
        for t, mj, w in zip((0, 2, 6), counter, power, strict=True)
    ]
    gpu = only(lines)
    assert gpu.energy_wh == (None if joules is None else pytest.approx(joules / 3600))
    assert gpu.energy_source == source


def test_energy_is_cut_at_the_runs_ends_by_the_devices_own_time():
    lines = each("energy_mj", (0, 0), (10, 10 * WH))
    assert only(lines, start_s=2, end_s=7).energy_wh == pytest.approx(5)
    late = [
        gpus(0, device(energy_mj=0, t_ns=1 * S)),
        gpus(4, device(energy_mj=8 * WH, t_ns=10**18)),  # damage
    ]
    assert only(late, end_s=2.5).energy_wh == pytest.approx(4)
    assert only(each("power_w", (0, 5), (90, 5)), end_s=90).energy_wh is None  # a long gap


@pytest.mark.parametrize(
    ("devices", "counted", "wh"),
    [
        ([{"is_visible": True, "processes": []}, {"processes": [process(100, 1)]}], [1], 2),
        ([{"is_visible": False}, {"is_visible": True}, {"is_visible": None}], [1, 2], 4),
    ],
)
def test_the_scripts_energy_is_of_what_it_was_on_or_sees(devices, counted, wh):
    lines = [
        gpus(t, *(device(i, energy_mj=t * WH, **more) for i, more in enumerate(devices)))
        for t in (0, 2)
    ]
    energy = system(lines, samples=500).energy
    assert (energy.gpus, energy.wh, energy.source) == (counted, pytest.approx(wh), "counter")
    assert energy.samples_per_wh == pytest.approx(500 / wh)
