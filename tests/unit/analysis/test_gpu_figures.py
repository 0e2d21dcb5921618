"""GPUs over the run, from planted samples with known truth."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest

from trainprof.analysis.gpu_usage import phases_of
from trainprof.analysis.system import system_summary
from trainprof.analysis.system_gpus import GpuContext

S = 1_000_000_000


def device(index=0, **metrics):
    return {"index": index, "uuid": f"GPU-{index}", "name": "H", **metrics}


def gpus(t_s, *devices, **more):
    return {"t_ns": int(t_s * S), "gpus": list(devices), **more}


def system(lines, *, start_s=0.0, end_s=10.0, context=None, pids=()):
    trees = [{"t_ns": 0, "processes": [{"pid": pid, "started_ns": 7} for pid in pids]}]
    return system_summary(
        *([], trees if pids else [], lines),
        start_ns=int(start_s * S),
        end_ns=int(end_s * S),
        main_pid=100,
        interval_s=0.5,
        usable_cores=None,
        memory_limit_bytes=None,
        gpu_context=context,
    )


def only(lines, **how):
    (gpu,) = system(lines, **how).gpus
    return gpu


def spans(*pairs_s):
    return np.array(pairs_s, dtype=np.int64).reshape(-1, 2) * S


class TestStatistics:
    def test_each_device_has_its_own(self):
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

    def test_what_is_asked_seldom_holds_since_it_was_asked_before(self):
        lines = [
            gpus(1, device(temperature_c=40, power_w=1)),
            gpus(2, device(power_w=2)),
            gpus(9, device(power_w=3)),
            gpus(10, device(temperature_c=70, power_w=4)),
        ]
        gpu = only(lines)
        assert gpu.temperature_c["mean"] == (1 * 40 + 9 * 70) / 10
        assert gpu.power_w["mean"] == (1 * 1 + 1 * 2 + 7 * 3 + 1 * 4) / 10

    def test_what_failed_is_a_hole(self):
        lines = [gpus(t, device(power_w=w)) for t, w in ((1, 10), (5, None), (10, 20))]
        assert only(lines).power_w["mean"] == (1 * 10 + 5 * 20) / 6

    def test_a_devices_own_time_counts_where_it_can_be_true(self):
        lines = [
            gpus(0, device(energy_mj=0, t_ns=1 * S)),
            gpus(4, device(energy_mj=3_600_000, t_ns=5 * S)),
            gpus(8, device(energy_mj=7_200_000, t_ns=10**18)),
        ]
        assert only(lines).energy_s == pytest.approx(8 - 1)

    def test_reasons_are_kept(self):
        lines = [gpus(1, device(not_observed={"energy": "Not Supported"})), gpus(2, device())]
        assert only(lines).not_observed == {"energy": "Not Supported"}

    def test_facts_of_the_first_sample_hold_for_the_run(self):
        first = device(
            logical_index=3,
            is_visible=True,
            is_number_assumed=False,
            sm_clock_max_mhz=1980,
            pcie_max_generation=5,
            pcie_max_width=16,
            pcie_generation=1,
            pcie_width=16,
        )
        gpu = only([gpus(1, first), gpus(2, device(pcie_generation=4, pcie_width=8))])
        assert (gpu.logical_index, gpu.is_visible, gpu.is_number_assumed) == (3, True, False)
        assert gpu.sm_clock_max_mhz == 1980
        assert gpu.pcie_link == {
            "generation": 4,
            "width": 16,
            "max_generation": 5,
            "max_width": 16,
        }

    def test_what_nobody_told_is_not_observed(self):
        gpu = only([gpus(1, device()), gpus(2, device())])
        assert (gpu.utilization, gpu.utilization_by_phase, gpu.power_w) == (None, {}, None)
        assert (gpu.is_visible, gpu.is_used, gpu.processes, gpu.mig) == (None, None, None, None)
        assert (gpu.throttled_share, gpu.clock_reasons) == (None, None)
        assert (gpu.energy_wh, gpu.energy_source) == (None, None)


class TestUtilization:
    def busy(self, *values, **how):
        lines = [
            gpus(t + 1, device(utilization_gpu_percent=value)) for t, value in enumerate(values)
        ]
        return only(lines, end_s=len(values), **how)

    def test_shares_of_time_with_their_bounds(self):
        told = self.busy(0, 9, 10, 90, 91, 100, 100, 50).utilization
        assert (told.share_below_10, told.share_10_to_90, told.share_above_90) == (
            2 / 8,
            3 / 8,
            3 / 8,
        )

    def test_the_histogram_has_a_bin_for_a_hundred_percent(self):
        told = self.busy(0, 9, 10, 89, 90, 99, 100, 100).utilization
        assert told.histogram == [2 / 8, 1 / 8, *[0] * 6, 1 / 8, 2 / 8, 2 / 8]
        assert sum(told.histogram) == 1

    def test_shares_are_of_time_not_of_samples(self):
        lines = [
            gpus(t, device(utilization_gpu_percent=percent))
            for t, percent in ((1, 0), (2, 0), (3, 0), (10, 100))
        ]
        told = only(lines).utilization
        assert told.share_below_10 == 0.3
        assert told.histogram[-1] == 0.7

    def test_by_phase_with_evaluation_taken_out_of_training(self):
        phases = phases_of((0, 8 * S), (1 * S, 7 * S), spans((2, 3), (5, 6)))
        gpu = self.busy(10, 100, 50, 100, 100, 60, 100, 0, context=GpuContext(phases=phases))
        means = {phase: told.mean for phase, told in gpu.utilization_by_phase.items()}
        assert means == {
            "initialization": 10,
            "training": 100,
            "evaluation": 55,
            "finalization": 0,
        }

    def test_a_sample_across_a_boundary_counts_on_both_sides(self):
        phases = phases_of((0, 4 * S), (1 * S, 4 * S), spans())
        lines = [
            gpus(t, device(utilization_gpu_percent=percent)) for t, percent in ((2, 40), (4, 80))
        ]
        gpu = only(lines, end_s=4, context=GpuContext(phases=phases))
        assert gpu.utilization_by_phase["initialization"].mean == 40
        assert gpu.utilization_by_phase["training"].mean == pytest.approx((40 + 2 * 80) / 3)
        assert set(gpu.utilization_by_phase) == {"initialization", "training"}

    def test_a_single_sample_at_the_start_stands_for_itself(self):
        gpu = only([gpus(0, device(utilization_gpu_percent=30))])
        assert gpu.utilization.mean == 30

    def test_a_sample_after_the_end_is_another_times(self):
        lines = [gpus(t, device(utilization_gpu_percent=v)) for t, v in ((9, 10), (10.5, 100))]
        assert only(lines).utilization.max == 10


class TestThrottling:
    def test_reasons_by_name_and_the_limits_among_them(self):
        masks = (0x1, 0x4, 0x44, 0x0)
        lines = [gpus(t + 1, device(clock_reasons=mask)) for t, mask in enumerate(masks)]
        gpu = only(lines, end_s=4)
        assert gpu.clock_reasons == {
            "gpu_idle": 0.25,
            "power_cap": 0.5,
            "hardware_thermal_slowdown": 0.25,
        }
        assert gpu.throttled_share == 0.5

    def test_idle_and_chosen_clocks_are_no_limit(self):
        lines = [gpus(t, device(clock_reasons=0x103)) for t in (1, 2)]
        gpu = only(lines)
        assert gpu.throttled_share == 0
        assert set(gpu.clock_reasons) == {"gpu_idle", "application_clocks", "display_clocks"}

    def test_a_reason_that_we_do_not_know_is_shown_by_its_bit(self):
        lines = [gpus(t, device(clock_reasons=0x4000)) for t in (1, 2)]
        assert only(lines).clock_reasons == {"reason 0x4000": 1}

    def test_nothing_in_the_way(self):
        lines = [gpus(t, device(clock_reasons=0)) for t in (1, 2)]
        gpu = only(lines)
        assert (gpu.clock_reasons, gpu.throttled_share) == ({}, 0)


class TestProcesses:
    def line(self, t, *processes):
        told = [{"pid": pid, "bytes": size, "is_here": here} for pid, size, here in processes]
        return gpus(t, device(processes=told))

    def test_ours_by_the_process_tree_and_others(self):
        lines = [
            self.line(1, (100, 5, True), (7, 90, True)),
            self.line(2, (100, 50, True), (200, 8, True)),
        ]
        gpu = only(lines, pids=(100, 200))
        assert gpu.processes == [
            {"pid": 7, "role": "other", "bytes": 90, "share_of_samples": 0.5},
            {"pid": 100, "role": "own", "bytes": 50, "share_of_samples": 1},
            {"pid": 200, "role": "own", "bytes": 8, "share_of_samples": 0.5},
        ]
        assert gpu.is_used is True

    def test_a_pid_of_another_namespace_is_nobodys(self):
        gpu = only([self.line(1, (4711, 5, False))])
        assert gpu.processes[0]["role"] == "unknown"
        assert gpu.is_used is None

    def test_a_gpu_that_others_alone_are_on_is_not_used(self):
        assert only([self.line(1, (7, 5, True))]).is_used is False
        assert only([self.line(1)]).is_used is False

    def test_memory_that_is_not_told_is_none(self):
        assert only([self.line(1, (7, None, True))]).processes[0]["bytes"] is None


class TestEnergy:
    def test_the_counter_is_cut_at_the_runs_ends(self):
        lines = [gpus(t, device(energy_mj=t * 3_600_000)) for t in (0, 10)]
        gpu = only(lines, start_s=2, end_s=7)
        assert (gpu.energy_wh, gpu.energy_source, gpu.energy_s) == (pytest.approx(5), "counter", 5)
        assert gpu.energy_estimated_share == 0

    @pytest.mark.parametrize(
        ("counter", "joules", "estimated"),
        [((None, None, None), 2 * 50 + 4 * 100, 1), ((9, 5, 400_005), 2 * 50 + 400, 1 / 3)],
    )
    def test_a_part_from_power_makes_it_an_estimate(self, counter, joules, estimated):
        lines = [
            gpus(t, device(energy_mj=mj, power_w=w))
            for t, mj, w in zip((0, 2, 6), counter, (0, 100, 100), strict=True)
        ]
        gpu = only(lines)
        assert gpu.energy_wh == pytest.approx(joules / 3600)
        assert gpu.energy_source == "estimated"
        assert gpu.energy_estimated_share == pytest.approx(estimated)

    def test_one_sample_of_power_is_no_energy(self):
        gpu = only([gpus(1, device(power_w=5))])
        assert (gpu.energy_wh, gpu.energy_source) == (None, None)

    def test_epochs_have_their_part_whole_samples_or_not(self):
        lines = [gpus(t, device(energy_mj=t * 3_600_000)) for t in (0, 3, 6, 9)]
        context = GpuContext(epochs_ns=spans((1, 4), (4, 8)))
        assert only(lines, context=context).epoch_energy_wh == pytest.approx([3, 4])

    def test_an_epoch_that_is_too_short_or_hardly_observed_has_none(self):
        lines = [gpus(t, device(energy_mj=t * 3_600_000)) for t in (0, 5)]
        bounds_ns = np.array([[0, S - 1], [0, S], [3 * S, 7 * S], [3 * S, 7 * S + 1]])
        told = only(lines, context=GpuContext(epochs_ns=bounds_ns)).epoch_energy_wh
        assert told == [None, pytest.approx(1), pytest.approx(2), None]


class TestEnergyOfTheScript:
    def line(self, t, *devices):
        told = [device(index, energy_mj=t * 3_600_000, **more) for index, more in devices]
        return gpus(t, *told)

    def test_it_counts_what_the_script_was_on(self):
        own = {"processes": [{"pid": 100, "bytes": 1, "is_here": True}]}
        lines = [self.line(t, (0, {"is_visible": True, "processes": []}), (1, own)) for t in (0, 2)]
        told = system(lines, context=GpuContext(samples=500)).energy
        assert (told.gpus, told.wh, told.source) == ([1], pytest.approx(2), "counter")
        assert told.samples_per_wh == pytest.approx(250)

    def test_else_what_it_can_see(self):
        visible = [(0, {"is_visible": False}), (1, {"is_visible": True}), (2, {"is_visible": None})]
        lines = [self.line(t, *visible) for t in (0, 2)]
        context = GpuContext(epochs_ns=spans((0, 1)))
        told = system(lines, context=context).energy
        assert (told.gpus, told.wh) == ([1, 2], pytest.approx(4))
        assert told.epoch_wh == [pytest.approx(2)]
        assert told.samples_per_wh is None

    def test_what_one_of_them_lacks_is_not_left_out_silently(self):
        lines = [gpus(t, device(0, energy_mj=t), device(1)) for t in (0, 2)]
        assert system(lines).energy is None

    def test_a_power_estimate_makes_the_sum_one(self):
        lines = [gpus(t, device(0, energy_mj=t), device(1, power_w=5)) for t in (0, 2)]
        assert system(lines).energy.source == "estimated"


class TestCost:
    def test_it_is_that_of_the_calls_after_the_first_sample(self):
        lines = [
            gpus(0, device(), calls=40, call_ns=2 * S),
            gpus(1, device(), calls=50, call_ns=2 * S + 3_000_000, slowed_s={"processes": 4}),
            gpus(4, device(), calls=60, call_ns=2 * S + 8_000_000, slowed_s={"processes": 2}),
        ]
        assert system(lines).cost["gpus"] == {
            "seconds_per_sample": 0.004,
            "share": 0.002,
            "calls": 20,
            "slowed_s": {"processes": 4},
        }

    def test_one_sample_tells_no_cost(self):
        assert system([gpus(0, device(), calls=1, call_ns=5)]).cost["gpus"] is None


ODD = [None, True, -1, 0, 2**62, 2**63, 10**400, 1e308, "x", [], {}, [None], [{}], {"pid": []}]


def damaged(value, chance):
    """The same value, anything in any place of it with some chance."""
    if chance.random() < 0.1:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {key: damaged(item, chance) for key, item in value.items()}
    if isinstance(value, list):
        return [damaged(item, chance) for item in value]
    return value


def test_damaged_samples_give_figures_or_none():
    whole = device(
        **dict.fromkeys(("energy_mj", "power_w", "utilization_gpu_percent", "clock_reasons"), 5),
        **dict.fromkeys(("temperature_c", "pcie_generation", "logical_index", "sm_clock_mhz"), 4),
        is_visible=True,
        processes=[{"pid": 100, "bytes": 7, "is_here": True}],
        mig=[{"uuid": "MIG-1", "gpu_instance": 1, "logical_index": 0}],
        not_observed={"power": "why"},
    )
    chance = random.Random(0)
    phases = phases_of((0, 10 * S), (1 * S, 9 * S), spans((2, 3)))
    context = GpuContext(phases=phases, epochs_ns=spans((1, 4), (4, 9)), samples=10)
    for _ in range(200):
        lines = [gpus(t, {**whole, "t_ns": t * S}, calls=t, call_ns=t) for t in range(8)]
        broken = [
            {**told, "t_ns": line["t_ns"]}
            for line in lines
            if isinstance(told := damaged(line, chance), dict)
        ]
        found = system(broken, context=context, pids=(100,))
        for gpu in found.gpus:
            json.dumps(dataclasses.asdict(gpu), allow_nan=False)
