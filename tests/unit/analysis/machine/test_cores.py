"""The cores of a process that is bound behind trainprof's back, and of ranks beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun

from trainprof.analysis.machine.cores import Cores, cores_of
from trainprof.analysis.run.recording import read_recording
from trainprof.analysis.run.training_process import training_processes
from trainprof.analysis.summary.free_cores import shared_cpu
from trainprof.findings.summarize import context_of, summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Topic

# Eight processors on four cores.
HOST = {
    "name": "here",
    "usable_cores": 8.0,
    "physical_cores": 4.0,
    "core_numbers": list(range(8)),
    "core_of": [0, 1, 2, 3, 0, 1, 2, 3],
}
SEEN = Cores(8.0, 4.0, tuple(range(8)))


def trainer(*bound: str | None, pid: int = 20, rank: int | None = None) -> FakeRun:
    run = FakeRun(pid=pid, role="child", header={"rank": None if rank is None else str(rank)})
    loader, optimizer = run.loader(num_workers=0), run.optimizer()
    for numbers in bound:
        run.text(Topic.ENVIRONMENT, {"torch_threads": 2, "cores": numbers})
    run.iterate(loader)
    for _ in range(40):
        run.next(loader, 5 * MS)
        run.learn(optimizer, forward=10 * MS, backward=10 * MS, update=MS)
    run.stop(loader)
    return run


def worker(cores: str | None) -> FakeRun:
    run = FakeRun(pid=30, role="child", header={"forked_from": 20, "ppid": 20})
    run.text(Topic.ENVIRONMENT, {"cores": cores})
    run.fetch(MS, 4)
    return run


def cores(directory: Path, *processes: FakeRun, host: dict[str, Any] | None = None) -> Cores:
    for process in reversed(processes):
        written = process.write(directory, host=HOST if host is None else host)
    recording = read_recording(written)
    return cores_of(recording.section("host"), training_processes(recording)[0])


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ((), SEEN),
        ((None,), SEEN),
        (("0-7",), SEEN),
        (("0,4",), Cores(2.0, 1.0, (0, 4))),
        (("0-1",), Cores(2.0, 2.0, (0, 1))),
        # The last one counts.
        (("0-7", "2,3,6"), Cores(3.0, 2.0, (2, 3, 6))),
        # More than the supervisor was let: which are of one core is not known.
        (("0-9",), Cores(10.0, None, tuple(range(10)))),
        # Damage.
        (("0-",), SEEN),
        (("0-99999",), SEEN),
        ((17,), SEEN),
    ],
)
def test_a_process_may_be_bound_to_fewer_cores(
    tmp_path: Path, bound: tuple[Any, ...], expected: Cores
) -> None:
    assert cores(tmp_path, trainer(*bound)) == expected


def host_without(*names: str, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in HOST.items() if name not in names} | changes


@pytest.mark.parametrize(
    ("host", "bound", "expected"),
    [
        # A quota stays.
        (host_without(usable_cores=1.5, physical_cores=1.5), "0-3", Cores(1.5, 1.5, (0, 1, 2, 3))),
        # A host that told less.
        (host_without("core_of"), "0-1", Cores(2.0, None, (0, 1))),
        ({"usable_cores": 4.0}, "0-5", Cores(4.0, None, tuple(range(6)))),
        ({}, None, Cores()),
    ],
)
def test_what_a_host_tells_of_its_cores(
    tmp_path: Path, host: dict[str, Any], bound: str | None, expected: Cores
) -> None:
    assert cores(tmp_path, trainer(bound), host=host) == expected


def sampled(
    directory: RunDirectory, run: FakeRun, *, cores_busy: Sequence[float], own_percent: float
) -> None:
    """Writes samples: how busy each of the host's cores is, and the run's tree; 1 is a core."""
    host, tree = [], []
    span_ns = run.now - run.start
    for share in (0.0, 0.5, 1.0):
        t_ns, passed = run.start + round(span_ns * share), span_ns * share
        busy = [round(cores * passed) for cores in cores_busy]
        cpu = {"user_ns": sum(busy), "idle_ns": round(len(busy) * passed) - sum(busy)}
        host.append(
            {
                "t_ns": t_ns,
                "cpu": cpu,
                "cores_busy_ns": busy,
                "pressure": {"cpu": {"some_us": 0.4 * passed / 1000}},
            }
        )
        used = round(own_percent / 100 * passed)
        process = {"pid": run.pid, "started_ns": 1, "user_ns": used, "system_ns": 0, "reaped_ns": 0}
        tree.append({"t_ns": t_ns, "processes": [process | {"rss_bytes": 1 << 20, "threads": 1}]})
    for name, lines in (("host", host), ("processes", tree)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory.samples / f"{name}.jsonl").write_text(text)


def ranks_apart(
    top: Path,
    *,
    busy: Sequence[float],
    own: Sequence[float],
    bound: Sequence[str | None],
    hosts: Sequence[str] = ("here", "here"),
) -> RunDirectory:
    """Ranks with a trainprof each."""
    for rank, (percent, cores) in enumerate(zip(own, bound, strict=True)):
        run = trainer(cores, rank=rank)
        manifest = {"rank": rank, "world_size": len(own), "host": HOST | {"name": hosts[rank]}}
        written = run.write_rank(top, str(rank), **manifest)
        if percent >= 0:
            sampled(written, run, cores_busy=busy, own_percent=percent)
    return RunDirectory(top)


@pytest.mark.parametrize(
    ("how", "expected", "others_share"),
    [
        # Ranks of a run do not disturb one another.
        ({"own": (360.0, 350.0)}, {"other_ranks_percent": pytest.approx(350.0)}, 0.9 - 7.1 / 8),
        # A rank that was not sampled leaves it unknown.
        ({"own": (360.0, -1.0)}, {"other_ranks_percent": None}, None),
        # A rank on another host is not here.
        ({"busy": [0.5] * 8, "own": (400.0, 400.0), "hosts": ("here", "there")}, {}, 0.0),
        # Ranks bound to their own cores are counted there alone.
        (
            {"busy": [0.9] * 4 + [0.5] * 4, "own": (360.0, 200.0), "bound": ("0-3", "4-7")},
            {"cores_usable": 4.0, "core_numbers": [0, 1, 2, 3]},
            0.0,
        ),
    ],
)
def test_ranks_with_a_trainprof_each(
    tmp_path: Path, how: dict[str, Any], expected: dict[str, Any], others_share: float | None
) -> None:
    directory = ranks_apart(tmp_path, **{"busy": [0.9] * 8, "bound": (None, None)} | how)
    cpu = summarize(directory).system.cpu
    assert cpu["tree_percent"]["mean"] == pytest.approx(how["own"][0])  # the first rank's
    assert ("other_ranks_percent" in cpu) is ("other_ranks_percent" in expected)
    assert {name: cpu[name] for name in expected} == expected
    shared = shared_cpu(cpu)
    known = None if others_share is None else pytest.approx(others_share)
    assert (shared and shared.others_share) == known
    # A rank's own findings rest on the same.
    assert shared_cpu(context_of(directory).summary.system.cpu) == shared


def one_recording(tmp_path: Path, *bound: str | None) -> RunDirectory:
    """Ranks that one trainprof recorded, together busy on the first four cores."""
    runs = [trainer(cores, pid=20 + rank, rank=rank) for rank, cores in enumerate(bound)]
    for run in runs:
        directory = run.write(tmp_path, host=HOST, script_pid=9)
    sampled(directory, runs[0], cores_busy=[0.9] * 4 + [0.0] * 4, own_percent=360.0)
    return directory


@pytest.mark.parametrize("bound", [(None, None), ("0-7", "0-7"), (None,), ("0-1", "2-3")])
def test_processes_of_one_recording(tmp_path: Path, bound: tuple[str | None, ...]) -> None:
    cpu = summarize(one_recording(tmp_path, *bound)).system.cpu
    if bound == ("0-1", "2-3"):  # a launcher binds its ranks
        assert (cpu["cores_usable"], cpu["core_numbers"]) == (2.0, [0, 1])
        assert cpu["recorded_on"] == [0, 1, 2, 3]
        shared = shared_cpu(cpu)
        assert (shared.cores, shared.is_whole) == (4, True)
        assert shared.others_share == pytest.approx(0.0)
        return
    assert (cpu["cores_usable"], cpu["cores_physical"]) == (8.0, 4.0)
    assert cpu["core_numbers"] == list(range(8))
    assert not {"recorded_on", "other_ranks_percent"} & cpu.keys()
