"""The real pynvml against a stub driver, one process per scenario: it loads its library once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
from support.sampled_system import sampled_system

from trainprof.sampling.gpu_metrics import METRICS

MS = 1_000_000
S = 1000 * MS
STEP_MS = 500
GPUS = "GPUs, by a stand-in for their driver"

# Reads [[now_ms, conf], ...] from stdin, takes a sample under each, prints the samples and why they
# ended. Time is the test's, and the wave's too, unless it is to be the machine's.
SAMPLE_GPUS = """
import json, os, sys
from trainprof.sampling.clock import Clock
from trainprof.sampling.gpu import GpuReader
from trainprof.sampling.loop import NothingToSample

now_ms = 0
own_time = {} if "REAL_TIME" in os.environ else {"now_ns": lambda: now_ms * 1_000_000}
reader, samples, ended = GpuReader(environ=os.environ, clock=Clock(**own_time)), [], None
for now_ms, conf in json.load(sys.stdin):
    path = os.environ["STUB_NVML_CONF"]
    with open(path + ".new", "w") as file:
        file.write(f"clock=virtual\\nnow_ms={now_ms}\\n{conf}")
    os.replace(path + ".new", path)
    try:
        samples.append(reader.sample())
    except NothingToSample as reason:
        ended = str(reason)
        break
reader.close()
print(json.dumps([samples, ended]))
"""


def run_python(code, environment, *arguments, text=""):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def sample_lines(nvml_environment):
    """Takes samples under confs, half a second apart; returns whole samples and why they ended."""

    def run(*confs, times_ms=None, **environment):
        times_ms = times_ms or range(0, STEP_MS * len(confs), STEP_MS)
        text = json.dumps(list(zip(times_ms, confs, strict=True)))
        return json.loads(run_python(SAMPLE_GPUS, {**nvml_environment, **environment}, text=text))

    return run


@pytest.fixture
def sample_gpus(sample_lines):
    """The same, of each sample the devices alone."""

    def run(*confs, **environment):
        samples, ended = sample_lines(*confs, **environment)
        return [sample["gpus"] for sample in samples], ended

    return run


@pytest.fixture
def calls(tmp_path):
    """Counts the calls that the driver got, by function."""

    def count():
        lines = (tmp_path / "log").read_text().splitlines()
        return Counter(line.split()[1].removeprefix("nvmlDeviceGet") for line in lines)

    return count


@pytest.mark.proves(GPUS, "no library")
def test_no_library_is_normal(sample_gpus, tmp_path):
    outcome = sample_gpus("", LD_LIBRARY_PATH=str(tmp_path))
    assert outcome == ([], "NVML: NVML Shared Library Not Found")


@pytest.mark.proves(GPUS, "a driver that does not start")
@pytest.mark.parametrize(
    ("code", "reason"),
    [(18, "RM has detected an NVML/RM version mismatch."), (9, "Driver Not Loaded")],
)
def test_a_driver_that_does_not_start_is_normal(sample_gpus, code, reason):
    assert sample_gpus(f"fail.nvmlInitWithFlags={code}\n") == ([], f"NVML: {reason}")


@pytest.mark.proves(GPUS, "no GPU")
def test_no_gpu_is_normal(sample_gpus):
    assert sample_gpus("gpus=0\n") == ([], "NVML lists no GPU")


def test_every_metric_of_one_gpu(sample_lines):
    (first, second), ended = sample_lines("throttle=0x44\n", "", times_ms=(2250, 2750))
    assert ended is None
    identity = {
        "index": 0,
        "uuid": "GPU-00000000-0000-4000-8000-000000000000",
        "name": "Stub GPU 80GB",
    }
    assert first["gpus"] == [
        {
            **identity,
            "t_ns": 2250 * MS,
            "energy_mj": 650 * 1250 + 70 * 1000,
            "power_w": 650.0,
            "utilization_gpu_percent": 96,
            "memory_used_bytes": 10 * 2**30,  # without what the driver reserves
            "memory_total_bytes": 80 * 2**30,
            "temperature_c": 41,
            "power_limit_w": 700.0,
            "clock_reasons": 0x44,
            "processes": [],
            "mig": None,
            "logical_index": 0,
            "is_visible": True,
            "is_number_assumed": False,
        }
    ]
    # Half a second later: what is asked for at every sample, and nothing repeated.
    assert second["gpus"] == [
        {
            **identity,
            "t_ns": 2750 * MS,
            "energy_mj": 650 * 1500 + 70 * 1250,
            "power_w": 70.0,
            "utilization_gpu_percent": 0,
            "memory_used_bytes": 10 * 2**30,
            "memory_total_bytes": 80 * 2**30,
        }
    ]
    assert second["calls"] == first["calls"] + 4


@pytest.mark.proves(GPUS, "eight of them, numbered as the script sees them")
def test_eight_gpus_whatever_the_script_sees(sample_gpus):
    conf = "gpus=8\ngpu5.temp=77\n"
    (devices,), _ = sample_gpus(conf, CUDA_VISIBLE_DEVICES="GPU-00000003,GPU-00000001")
    assert [device["index"] for device in devices] == list(range(8))
    assert len({device["uuid"] for device in devices}) == 8
    assert [device["temperature_c"] for device in devices] == [41] * 5 + [77] + [41] * 2
    numbers = [device["logical_index"] for device in devices]
    assert numbers == [None, 1, None, 0, *[None] * 4]
    assert [device["is_visible"] for device in devices] == [n is not None for n in numbers]
    assert {device["is_number_assumed"] for device in devices} == {False}


@pytest.mark.proves(GPUS, "processes of ours and of others")
def test_processes_of_ours_and_of_others(sample_gpus):
    nobody = 2**22 + 1  # above any pid of Linux
    (((device,),), _) = sample_gpus(f"procs=self:1000,1:2000,{nobody}:-1\n")
    own, init, hidden = device["processes"]
    assert own["pid"] not in (init["pid"], nobody)
    assert (own["bytes"], own["is_here"]) == (1000, True)
    assert init == {"pid": 1, "bytes": 2000, "is_here": True}
    assert hidden == {"pid": nobody, "bytes": None, "is_here": False}


@pytest.mark.proves(GPUS, "an old driver")
def test_an_old_driver_lacks_functions(sample_gpus, nvml_libraries, calls):
    conf = "procs=1:5\nthrottle=4\n"
    old = str(nvml_libraries["old"])
    ((device,), (again,), (later,)), _ = sample_gpus(conf, conf, conf, LD_LIBRARY_PATH=old)
    assert device["memory_used_bytes"] == 10 * 2**30 + 2**29  # counts the reserved
    assert device["temperature_c"] == 41
    assert device["processes"] == [{"pid": 1, "bytes": 5, "is_here": True}]
    assert device["clock_reasons"] == 4
    assert "not_observed" not in device
    assert again["memory_used_bytes"] == device["memory_used_bytes"]
    assert later["clock_reasons"] == 4


@pytest.mark.proves(GPUS, "two MIG instances")
def test_mig_lists_the_instances_and_says_what_is_missing(sample_gpus):
    conf = "gpus=2\ngpu1.mig=1\ngpu1.mig_count=2\n"
    name = "MIG-00000000-0000-4000-8000-000000000102"
    ((whole, divided),), _ = sample_gpus(conf, CUDA_VISIBLE_DEVICES=name)
    assert whole["mig"] is None
    assert whole["is_visible"] is False
    assert [
        (part["uuid"], part["gpu_instance"], part["compute_instance"], part["logical_index"])
        for part in divided["mig"]
    ] == [(name[:-1] + "1", 1, 0, None), (name, 2, 0, 0)]
    assert divided["is_visible"] is True
    assert divided["utilization_gpu_percent"] is None
    assert divided["not_observed"] == {"utilization": "Not Supported (MIG is on)"}
    assert divided["power_w"] is not None


# Each metric's calls, all the ways to ask: what a driver may lack or refuse.
CALLS = {
    "energy": ["TotalEnergyConsumption"],
    "power": ["PowerUsage"],
    "utilization": ["UtilizationRates"],
    "memory": ["MemoryInfo_v2", "MemoryInfo"],
    "temperature": ["Temperature", "TemperatureV"],
    "power_limit": ["EnforcedPowerLimit"],
    "clock_reasons": ["CurrentClocksEventReasons", "CurrentClocksThrottleReasons"],
    "processes": ["ComputeRunningProcesses_v3", "ComputeRunningProcesses_v2"],
}


def keys_of(*metrics):
    return [key for metric in METRICS if metric.name in metrics for key in metric.keys]


@pytest.mark.proves(GPUS, "any metric not supported")
@pytest.mark.parametrize("metric", CALLS)
def test_a_metric_that_is_not_offered_is_asked_for_once(sample_gpus, calls, metric):
    conf = "".join(f"fail.nvmlDeviceGet{function}=3\n" for function in CALLS[metric])
    ((first,), _, (later,)), _ = sample_gpus(conf, conf, conf)
    assert first["not_observed"] == {metric: "Not Supported"}
    assert [first[key] for key in keys_of(metric)] == [None] * len(keys_of(metric))
    others = keys_of(*{each.name for each in METRICS} - {metric})
    assert all(device[key] is not None for device in (first, later) for key in others)
    assert not any(key in later for key in (*keys_of(metric), "not_observed"))
    assert [calls()[function] for function in CALLS[metric]] == [1] * len(CALLS[metric])


@pytest.mark.proves(GPUS, "no permission to list processes")
def test_no_permission_is_not_asked_for_twice(sample_gpus, calls):
    conf = "fail.nvmlDeviceGetComputeRunningProcesses_v3=4\n"
    ((first,), _, (later,)), _ = sample_gpus(conf, conf, conf)
    assert first["processes"] is None
    assert first["not_observed"] == {"processes": "Insufficient Permissions"}
    assert "processes" not in later
    assert calls()["ComputeRunningProcesses_v3"] == 1


@pytest.mark.proves(GPUS, "one of several is lost")
def test_a_gpu_that_is_lost_is_left_alone(sample_gpus, calls):
    lost = "gpus=2\ngpu1.lost_after=0\n"
    samples, ended = sample_gpus("gpus=2\n", lost, lost, lost)
    assert ended is None
    assert samples[0][1]["utilization_gpu_percent"] is not None
    assert samples[1][1]["not_observed"] == {"gpu": "GPU is lost"}
    assert [len(devices) for devices in samples] == [2, 2, 1, 1]
    assert samples[3][0]["power_w"] is not None
    assert calls()["TotalEnergyConsumption"] == 2 + 2 + 1 + 1


def test_when_all_gpus_are_lost_sampling_ends(sample_gpus):
    samples, ended = sample_gpus("", *["fail.nvmlDeviceGetPowerUsage=15\n"] * 3)
    assert ["not_observed" in device for (device,) in samples] == [False, True]
    assert ended == "all GPUs are lost"


@pytest.mark.proves(GPUS, "call rates within their tiers")
def test_calls_keep_to_their_tiers(sample_lines, calls):
    sample_lines(*["gpus=2\n"] * 41)  # 20 s
    counted = calls()
    for name in ("TotalEnergyConsumption", "PowerUsage", "UtilizationRates", "MemoryInfo_v2"):
        assert counted[name] == 2 * 41, name
    for name in ("Temperature", "EnforcedPowerLimit", "ComputeRunningProcesses_v3"):
        assert counted[name] == 2 * 21, name
    for name in ("Name", "UUID", "MigMode"):
        assert counted[name] == 2, name


@pytest.mark.proves(GPUS, "a driver that takes 300 ms to answer")
def test_a_slow_call_is_made_less_often(sample_lines, calls):
    conf = "delay_us.nvmlDeviceGetUtilizationRates=300000\n"
    samples, _ = sample_lines(*[conf] * 4, REAL_TIME="1")
    assert calls()["UtilizationRates"] == 2
    assert "utilization_gpu_percent" not in samples[2]["gpus"][0]
    assert samples[-1]["call_ns"] >= 600 * MS


@pytest.fixture
def sampled(sample_lines):
    """20 s of a wave with 50 % duty, sampled every 130 ms, as the summary shows it."""

    def run(confs=None):
        times_ms = range(0, 20_000, 130)
        confs = [""] * len(times_ms) if confs is None else [confs(now_ms) for now_ms in times_ms]
        samples, _ = sample_lines(*confs, times_ms=times_ms)
        lines = [
            {"t_ns": now_ms * MS, **sample}
            for now_ms, sample in zip(times_ms, samples, strict=True)
        ]
        end_s = lines[-1]["t_ns"] / 1e9
        return sampled_system([], [], lines, end_s=end_s).gpus[0], end_s / 3600

    return run


@pytest.mark.proves(GPUS, "a wave of 50 % duty within 5 %")
def test_a_square_wave_is_recovered(sampled):
    gpu, span_h = sampled()
    assert gpu.utilization.mean == pytest.approx(48, rel=0.05)
    assert (gpu.utilization.min, gpu.utilization.max) == (0, 96)
    assert gpu.energy_wh == pytest.approx(360 * span_h, rel=0.01)
    assert gpu.energy_source == "counter"


@pytest.mark.proves(GPUS, "energy without a counter")
def test_energy_without_a_counter_is_estimated(sampled):
    gpu, span_h = sampled(lambda now_ms: "fail.nvmlDeviceGetTotalEnergyConsumption=3\n")
    assert gpu.energy_wh == pytest.approx(360 * span_h, rel=0.05)
    assert gpu.energy_source == "estimated"
    assert gpu.not_observed == {"energy": "Not Supported"}


@pytest.mark.proves(GPUS, "an energy counter that goes back")
def test_a_counter_that_goes_back_costs_one_stretch(sampled):
    gpu, span_h = sampled(
        lambda now_ms: f"energy_offset_mj={-3_500_000 if now_ms > 10_000 else 0}\n"
    )
    assert gpu.energy_wh == pytest.approx(360 * span_h, rel=0.01)
    assert gpu.energy_source == "estimated"


FORK = """
import os
from trainprof.sampling.gpu import GpuReader

reader = GpuReader()
power = [reader.sample()["gpus"][0]["power_w"]]
if (child := os.fork()) == 0:
    outcome = reader.sample()["gpus"][0]
    os._exit(0 if outcome["power_w"] is None and "power" in outcome["not_observed"] else 1)
status = os.waitpid(child, 0)[1]
power.append(reader.sample()["gpus"][0]["power_w"])
print(status, None in power)
"""


@pytest.mark.proves(GPUS, "a fork")
def test_a_fork_leaves_the_parents_sampling_alone(nvml_environment, tmp_path):
    (tmp_path / "conf").write_text("fork_strict=1\n")
    assert run_python(FORK, nvml_environment) == "0 False\n"
