"""The machine over the run, from planted samples with known truth."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from support.sampled_system import sampled_system as summary

from trainprof.analysis.machine.processes import MAX_PROCESSES
from trainprof.analysis.machine.system import samples_between
from trainprof.analysis.run.metadata import MAX_NUMBER
from trainprof.analysis.run.recording import read_samples

S = 1_000_000_000
MB = 1 << 20


def host(t_s, **counters):
    return {"t_ns": int(t_s * S), **counters}


def cpu(busy_s, idle_s, iowait_s=0.0):
    return {
        "user_ns": int(busy_s * S / 2),
        "system_ns": int(busy_s * S / 2),
        "idle_ns": int(idle_s * S),
        "iowait_ns": int(iowait_s * S),
    }


def process(pid, cpu_s=0.0, rss=MB, **more):
    return {
        "pid": pid,
        "started_ns": 7,
        "name": f"p{pid}",
        "state": "S",
        "user_ns": int(cpu_s * S),
        "system_ns": 0,
        "reaped_ns": 0,
        "rss_bytes": rss,
        "threads": 1,
        **more,
    }


def tree(t_s, *processes):
    return {"t_ns": int(t_s * S), "processes": list(processes)}


def gpus(t_s, *devices):
    return {"t_ns": int(t_s * S), "gpus": list(devices)}


class TestTimeWeighting:
    @pytest.mark.parametrize(
        ("samples", "expected"),
        [
            # A gauge holds since the sample before.
            (((1, 100), (2, 200), (10, 1000)), {"mean": 830, "min": 100, "p5": 100, "p50": 1000}),
            (((5, 1), (10, 2)), {"p50": 1, "p95": 2}),  # at the exact boundary
            (((9, 1), (10.5, 999)), {"max": 1}),  # after the end it is another time's
            (((0, 5),), {"mean": 5}),  # a single one at the start stands for itself
        ],
    )
    def test_a_gauge(self, samples, expected):
        lines = [host(t, memory_available_bytes=size) for t, size in samples]
        gauge = summary(lines).memory["host_available_bytes"]
        assert {name: gauge[name] for name in expected} == expected

    @pytest.mark.parametrize(
        ("samples", "start_s", "expected"),
        [
            # Samples outside the run count only for their part in it.
            (((0, 0), (8, 800), (16, 8800), (20, None)), 4, {"mean": (4 * 100 + 2 * 1000) / 6}),
            # A counter that goes back leaves its span out.
            (((0, 1000), (1, 2000), (2, 5), (3, 3005)), 0, {"mean": 2000, "max": 3000}),
            (((0, 5),), 0, None),
        ],
    )
    def test_a_counter(self, samples, start_s, expected):
        lines = [host(t, disk_read_bytes=size) for t, size in samples]
        rate = summary(lines, start_s=start_s).disk["read_bytes_per_s"]
        assert (rate and {name: rate[name] for name in expected}) == expected


class TestHost:
    def test_cpu_is_the_share_of_all_cores(self):
        lines = [
            host(0, cpu=cpu(100, 100, 10)),
            host(1, cpu=cpu(101, 101, 10)),
            host(4, cpu=cpu(107, 101, 10)),
        ]
        system = summary(lines, end_s=4)
        assert system.cpu["host_percent"]["mean"] == (1 * 50 + 3 * 100) / 4
        assert system.cpu["iowait_share"] == 0
        assert system.cpu["cores_usable"] == 1.5
        assert system.cpu["cores_physical"] == 1.0

    def test_cores_one_by_one(self):
        lines = [
            host(0, cores_busy_ns=[0, None, 50 * S]),
            host(5, cores_busy_ns=[4 * S, None, 50 * S]),
            host(10, cores_busy_ns=[5 * S, None, 60 * S + 1]),
        ]
        assert summary(lines).cpu["per_core_percent"] == [50, None, 100]

    def test_pressure_and_switches(self):
        stalled = [
            host(0, pressure={"cpu": {"some_us": 0}, "io": {"some_us": 9}}, context_switches=0),
            host(10, pressure={"cpu": {"some_us": 5_000_000}, "io": {}}, context_switches=70),
        ]
        system = summary(stalled)
        assert system.cpu["pressure_some_share"] == 0.5
        assert system.disk["pressure_some_share"] is None
        assert system.cpu["context_switches_per_s"] == 7

    def test_what_takes_the_cpu_away(self):
        before, after = ({"idle_ns": 9 * ns, "user_ns": ns, "steal_ns": 5 * ns} for ns in (0, S))
        lines = [
            host(0, cpu=before, cores_busy_ns=[0, 0]),
            host(10, cpu=after, cores_busy_ns=[0, 0], throttled_us=1),
            host(20, throttled_us=2_000_001, cpu_mhz=2500.0),
        ]
        system = summary(lines, end_s=20)
        assert system.cpu["stolen_share"] == 0.25
        assert system.cpu["throttled_share"] == 0.2
        assert system.cpu["cpu_mhz"]["mean"] == 2500

    def test_the_samplers_own_cost(self):
        lines = [host(1, sampler_cpu_ns=0), host(11, sampler_cpu_ns=S // 100)]
        assert summary(lines).cost == {"share_of_core": 0.001, "samples": 2}


class TestProcesses:
    def test_biggest_cpu_user_first(self):
        lines = [
            tree(0, process(100, 1), process(200, 0)),
            tree(2, process(100, 2), process(200, 4, threads=9)),
            tree(4, process(100, 2), process(200, 5)),
        ]
        first, second = summary([], lines, end_s=4).processes
        assert (first["pid"], first["role"], first["threads"]) == (200, "child", 9)
        assert (second["pid"], second["role"], second["name"]) == (100, "main", "p100")
        assert first["cpu_percent"]["mean"] == 125
        assert (first["cpu_percent"]["min"], first["cpu_percent"]["max"]) == (50, 200)
        assert (first["first_s"], first["last_s"]) == (0, 4)

    @pytest.mark.parametrize(
        ("before", "after", "percent"),
        [
            # It adds up.
            ((process(100), process(200)), (process(100, 1), process(200, 2)), 300),
            # A child that ends is counted once.
            ((process(100), process(200, 3)), (process(100, 0.5, reaped_ns=int(3.25 * S)),), 75),
            # Children between two samples are seen in their parent.
            ((process(100),), (process(100, reaped_ns=2 * S),), 200),
            # A child that nobody waits for takes nothing away.
            ((process(100), process(200, 3)), (process(100, 0.5),), 50),
        ],
    )
    def test_tree_percent(self, before, after, percent):
        lines = [tree(0, *before), tree(1, *after)]
        assert summary([], lines).cpu["tree_percent"]["mean"] == percent

    def test_the_list_is_bounded_and_keeps_the_main_process(self):
        children = [process(1000 + i, 1) for i in range(2 * MAX_PROCESSES)]
        system = summary([], [tree(0, process(100), *children)])
        assert len(system.processes) == MAX_PROCESSES + 1
        assert system.processes[-1]["role"] == "main"

    def test_memory_of_the_tree(self):
        lines = [
            tree(1, process(100, rss=10, pss_bytes=6), process(200, rss=5, pss_bytes=4)),
            tree(2, process(100, rss=20), process(200, rss=0, state="Z")),
            tree(3, process(100, rss=20, pss_bytes=1), process(200, rss=5)),
            tree(4, process(100, rss=20, pss_bytes=6), process(200, rss=5, pss_bytes=4)),
        ]
        memory = summary([], lines, end_s=4).memory
        assert memory["tree_rss_bytes"]["mean"] == (15 + 20 + 25 + 25) / 4
        assert memory["tree_pss_bytes"]["mean"] == 10
        # One reading, at the start of a short run, tells nothing of the rest.
        assert summary([], lines[:3], end_s=3).memory["tree_pss_bytes"] is None


class TestLastSample:
    def test_state_and_growth_before_the_end(self):
        lines = [
            tree(t, process(100, rss=100 * t * MB), process(200, rss=t * MB), process(201, rss=MB))
            for t in range(1, 10)
        ]
        lines.append(tree(9.5, process(100, rss=0, state="Z"), process(201, rss=MB)))
        hosts = [host(t, memory_available_bytes=1000 - t) for t in range(1, 11)]
        assert summary(hosts, lines, start_s=0.5).last_sample == {
            "at_s": 8.5,
            "main_rss_bytes": 900 * MB,
            "children_rss_bytes": 10 * MB,
            "host_available_bytes": 991,
            "grown_bytes": {"main": 700 * MB, "children": 7 * MB},
        }


# Half of all cores busy until 5 s, none later; one process that takes half a core.
HOSTS = [host(t, cpu=cpu(min(t, 5), max(t, 2 * t - 5)), disk_read_bytes=100 * t) for t in range(11)]
TREES = [tree(t, process(100, 0.5 * t, rss=t * MB)) for t in range(11)]


class TestSamplesBetween:
    def test_means_inside_the_window(self):
        assert samples_between(HOSTS, TREES, 4 * S, 6 * S) == {
            "host_cpu_percent": 25,
            "tree_cpu_percent": 50,
            "iowait_share": 0,
            "disk_read_bytes_per_s": 100,
            "tree_rss_bytes": 5.5 * MB,
        }

    def test_a_window_outside_the_samples_or_far_shorter_is_not_known(self):
        assert samples_between(HOSTS, TREES, int(4.4 * S), int(4.6 * S)) is None
        assert samples_between(HOSTS, TREES, 20 * S, 30 * S) is None
        assert samples_between([], [], 0, S) is None


class TestReadSamples:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "host.jsonl"

    def test_damaged_lines_are_left_out(self, path):
        path.write_bytes(
            b'{"t_ns":2,"a":NaN,"b":1e999}\n'
            b"[]\n5\nnull\n\xff\xfe\n\n{}\n"
            b'{"t_ns":"2"}\n{"t_ns":true}\n{"t_ns":-1}\n{"t_ns":NaN}\n{"t_ns":'
            + b"9" * 5000
            + b"}\n"
            + b"[" * 100_000
            + b'\n{"t_ns":1}\n{"t_ns":3'
        )
        lines = read_samples(path)
        assert [line["t_ns"] for line in lines] == [1, 2]
        assert lines[1]["a"] is None

    def test_a_file_may_be_cut_at_any_byte(self, path):
        whole = b"".join(
            json.dumps(host(t, cpu=cpu(t, t), cores_busy_ns=[t])).encode() + b"\n" for t in range(3)
        )
        for cut in range(len(whole)):
            path.write_bytes(whole[:cut])
            lines = read_samples(path)
            assert len(lines) == whole[:cut].count(b"\n")
            summary(lines)

    def test_a_large_file_is_thinned_and_keeps_its_last_line(self, path):
        path.write_text("".join(f'{{"t_ns":{i}}}\n' for i in range(10, 99)))
        lines = read_samples(path, max_bytes=path.stat().st_size // 4)
        assert 15 <= len(lines) <= 25
        assert (lines[0]["t_ns"], lines[-1]["t_ns"]) == (10, 98)

    def test_one_endless_line_is_passed_over(self, path):
        path.write_bytes(b"x" * (3 << 20) + b'\n{"t_ns":1}\n' + b"\0" * (2 << 20))
        assert read_samples(path) == [{"t_ns": 1}]


MIG = {"uuid": "MIG-1", "memory_bytes": 1, "logical_index": 0}


def damaged(value, chance):
    """Returns a copy in which some values are what no sampler writes."""
    odd = (None, True, "x", [], {}, -1, 0, 1e300, float(MAX_NUMBER), 10**400, [None], {"a": 1})
    if chance.random() < 0.15:
        return chance.choice(odd)
    if isinstance(value, dict):
        return {key: damaged(item, chance) for key, item in value.items()}
    if isinstance(value, list):
        return [damaged(item, chance) for item in value]
    return value


def test_no_damage_inside_the_lines_raises():
    chance = random.Random(7)
    hosts = [
        host(t, cpu=cpu(t, t), cores_busy_ns=[t, t], pressure={"cpu": {"some_us": t}})
        | {"memory_total_bytes": 9, "memory_available_bytes": t, "sampler_cpu_ns": t}
        for t in range(10)
    ]
    trees = [tree(t, process(100, t, pss_bytes=5), process(200 + t)) for t in range(10)]
    metrics = ("power_w", "energy_mj", "utilization_gpu_percent", "clock_reasons", "temperature_c")
    device = {"index": 0, "uuid": "GPU-0", "processes": [{"pid": 1, "bytes": 2}], "mig": [MIG]}
    device |= {"is_visible": True, "logical_index": 4, "not_observed": {"power": "why"}}
    devices = [gpus(t, {**device, **dict.fromkeys(metrics, t), "t_ns": t * S}) for t in range(10)]

    def damage(lines):
        broken = [damaged(line, chance) for line in lines]
        return [
            {**(values if isinstance(values, dict) else {}), "t_ns": line["t_ns"]}
            for values, line in zip(broken, lines, strict=True)
        ]

    for _ in range(300):
        host_lines, process_lines, gpu_lines = damage(hosts), damage(trees), damage(devices)
        system = summary(host_lines, process_lines, gpu_lines)
        json.dumps(dataclasses.asdict(system))
        samples_between(host_lines, process_lines, 2 * S, 5 * S)
