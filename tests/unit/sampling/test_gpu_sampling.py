"""The real pynvml against a stub driver, one process per scenario: it loads its library once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from trainprof.analysis.system import system_summary
from trainprof.sampling.gpu import METRICS

MS = 1_000_000

# Reads confs from stdin, takes a sample under each, prints the samples and why they ended.
SAMPLE_GPUS = """
import json, os, sys
from trainprof.sampling.gpu import GpuReader
from trainprof.sampling.loop import NothingToSample

reader, samples, ended = GpuReader(), [], None
for conf in json.load(sys.stdin):
    path = os.environ["STUB_NVML_CONF"]
    with open(path + ".new", "w") as file:
        file.write(conf)
    os.replace(path + ".new", path)
    try:
        samples.append(reader.sample()["gpus"])
    except NothingToSample as reason:
        ended = str(reason)
        break
reader.close()
print(json.dumps([samples, ended]))
"""


@pytest.fixture
def sample_gpus(nvml_environment):
    def run(*confs, **environment):
        done = subprocess.run(
            [sys.executable, "-c", SAMPLE_GPUS],
            input=json.dumps(confs),
            env={**nvml_environment, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


def test_no_library_is_normal(sample_gpus, tmp_path):
    assert sample_gpus("", LD_LIBRARY_PATH=str(tmp_path)) == [
        [],
        "NVML: NVML Shared Library Not Found",
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(18, "RM has detected an NVML/RM version mismatch."), (9, "Driver Not Loaded"), (4, "Insuff")],
)
def test_a_driver_that_does_not_start_is_normal(sample_gpus, code, reason):
    samples, ended = sample_gpus(f"fail.nvmlInitWithFlags={code}\n")
    assert samples == []
    assert ended.startswith(f"NVML: {reason}")


def test_no_gpu_is_normal(sample_gpus):
    assert sample_gpus("gpus=0\n") == [[], "NVML shows no GPU"]


def test_every_metric_of_one_gpu(sample_gpus):
    ((device,),), ended = sample_gpus("clock=virtual\nnow_ms=2250\n")
    assert ended is None
    assert device == {
        "index": 0,
        "uuid": "GPU-00000000-0000-4000-8000-000000000000",
        "name": "Stub GPU 80GB",
        "power_limit_w": 700.0,
        "utilization_gpu_percent": 96,
        "utilization_memory_percent": 32,
        "memory_used_bytes": 10 * 2**30,  # without what the driver reserves
        "memory_total_bytes": 80 * 2**30,
        "power_w": 650.0,
        "temperature_c": 41,
        "energy_mj": 650 * 1250 + 70 * 1000,
    }


def test_eight_gpus_whatever_cuda_visible_devices_says(sample_gpus):
    (devices,), _ = sample_gpus("gpus=8\ngpu5.temp=77\n", CUDA_VISIBLE_DEVICES="3")
    assert [device["index"] for device in devices] == list(range(8))
    assert len({device["uuid"] for device in devices}) == 8
    assert [device["temperature_c"] for device in devices] == [41] * 5 + [77] + [41] * 2


def test_an_old_driver_lacks_functions(sample_gpus, nvml_libraries):
    ((device,),), _ = sample_gpus("", LD_LIBRARY_PATH=str(nvml_libraries["old"]))
    assert device["memory_used_bytes"] == 10 * 2**30 + 2**29  # the old call counts the reserved
    assert device["temperature_c"] == 41
    assert "not_observed" not in device


@pytest.mark.parametrize(
    ("code", "reason"), [(3, "Not Supported"), (4, "Insufficient Permissions")]
)
def test_a_metric_that_is_not_offered_is_asked_for_once(sample_gpus, tmp_path, code, reason):
    conf = f"clock=virtual\nfail.nvmlDeviceGetTotalEnergyConsumption={code}\n"
    (first, second), _ = sample_gpus(conf, conf)
    assert first[0]["energy_mj"] is None
    assert first[0]["not_observed"] == {"energy": reason}
    assert second[0] == {key: first[0][key] for key in first[0] if key != "not_observed"}
    assert (tmp_path / "log").read_text().count("TotalEnergyConsumption") == 1


def test_a_metric_that_fails_for_a_moment_is_asked_for_again(sample_gpus):
    failing = "fail.nvmlDeviceGetPowerUsage=999\n"
    (first, second), _ = sample_gpus(failing, "")
    assert first[0]["power_w"] is None
    assert first[0]["not_observed"] == {"power": "Unknown Error"}
    assert second[0]["power_w"] is not None


def test_a_gpu_that_is_lost_is_left_alone(sample_gpus, tmp_path):
    # Each device: name, uuid and limit once, five metrics a sample.
    conf = "gpus=2\ngpu1.lost_after=16\n"
    (first, second, third), ended = sample_gpus(conf, conf, conf)
    assert ended is None
    assert first[1]["utilization_gpu_percent"] is not None
    assert second[1]["not_observed"] == {"utilization": "GPU is lost"}
    assert [second[1][metric] for metric in METRICS] == [None] * len(METRICS)
    assert third[0]["power_w"] is not None
    assert "not_observed" not in third[1]


def test_when_all_gpus_are_lost_sampling_ends(sample_gpus):
    samples, ended = sample_gpus(*["lost_after=8\n"] * 4)
    assert [device["power_w"] is None for (device,) in samples] == [False, True]
    assert ended == "every GPU is lost"


def test_a_gpu_that_gives_no_handle_does_not_hide_the_others(sample_gpus):
    conf = "gpus=2\nfail.nvmlDeviceGetHandleByIndex_v2=15\nfailN.nvmlDeviceGetHandleByIndex_v2=2\n"
    (devices,), _ = sample_gpus(conf)
    assert devices[0]["power_w"] is not None
    assert devices[1]["uuid"] is None
    assert devices[1]["not_observed"] == {"handle": "GPU is lost"}


@pytest.fixture
def square_wave(sample_gpus):
    """20 s of a wave with 50 % duty, sampled every 130 ms, as the summary shows it."""

    def sampled(more=""):
        times_ms = range(0, 20_000, 130)
        confs = [f"clock=virtual\nnow_ms={now_ms}\n{more}" for now_ms in times_ms]
        samples, _ = sample_gpus(*confs)
        lines = [
            {"t_ns": now_ms * MS, "gpus": devices}
            for now_ms, devices in zip(times_ms, samples, strict=True)
        ]
        system = system_summary(
            *([], [], lines),
            start_ns=0,
            end_ns=lines[-1]["t_ns"],
            main_pid=None,
            interval_s=0.13,
            usable_cores=None,
            memory_limit_bytes=None,
        )
        span_h = lines[-1]["t_ns"] / 1e9 / 3600
        return system.gpus[0], span_h

    return sampled


def test_a_square_wave_is_recovered(square_wave):
    gpu, span_h = square_wave()
    assert gpu["utilization"]["mean"] == pytest.approx(48, rel=0.05)
    assert (gpu["utilization"]["min"], gpu["utilization"]["max"]) == (0, 96)
    assert gpu["energy_wh"] == pytest.approx(360 * span_h, rel=0.01)
    assert gpu["energy_source"] == "counter"


def test_energy_without_a_counter_is_estimated(square_wave):
    gpu, span_h = square_wave("fail.nvmlDeviceGetTotalEnergyConsumption=3\n")
    assert gpu["energy_wh"] == pytest.approx(360 * span_h, rel=0.05)
    assert gpu["energy_source"] == "estimated"
    assert gpu["not_observed"] == {"energy": "Not Supported"}


# A sampler whose driver never answers; `asked` tells that its thread is inside the call.
STOP_WITH_A_HUNG_DRIVER = """
import sys, threading
from pathlib import Path
import pynvml
from trainprof.record.run_directory import RunDirectory
from trainprof.sampling.gpu import GpuReader
from trainprof.sampling.sampler import Sampler

asked = threading.Event()

class Announcing:
    def __getattr__(self, name):
        if name == "nvmlDeviceGetUtilizationRates":
            asked.set()
        return getattr(pynvml, name)

directory = RunDirectory(Path(sys.argv[1]))
directory.create()
sampler = Sampler(directory, 1, gpu_reader=GpuReader(Announcing))
sampler.start()
asked.wait()
sampler.stop()
print("stopped", sampler.is_alive, (directory.samples / "gpus.jsonl").exists())
"""


def test_a_hung_driver_blocks_neither_stop_nor_exit(nvml_environment, tmp_path):
    an_hour_us = 3600 * 1_000_000
    (tmp_path / "conf").write_text(f"delay_us.nvmlDeviceGetUtilizationRates={an_hour_us}\n")
    done = subprocess.run(
        [sys.executable, "-c", STOP_WITH_A_HUNG_DRIVER, str(tmp_path / "run")],
        env=nvml_environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("stopped True False\n", "")
