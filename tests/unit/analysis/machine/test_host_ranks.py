"""What ranks of one host have of its cores, and what is told of workers for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.events import MS, FakeRun

from trainprof.findings import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind

STEPS = 40


def serial(pid: int, rank: int | None) -> FakeRun:
    """A process that makes each batch in 20 ms of its core, and computes with it for 21."""
    header = {"ancestors": [1], "rank": None if rank is None else str(rank)}
    run = FakeRun(pid=pid, role="child", header=header)
    loader, optimizer = run.loader(num_workers=0), run.optimizer()
    run.iterate(loader)
    for number in range(STEPS):
        with run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
            start, cpu_ns = run.now, 20 * MS
            run.fetch(cpu_ns, 4)
            run.record(Kind.FETCH_CPU, start, start + cpu_ns, value=cpu_ns, flags=1)
        run.learn(optimizer, forward=10 * MS, backward=10 * MS, update=1 * MS)
    run.stop(loader)
    run.mark(Kind.PROCESS_END)
    return run


def each(top: Path, hosts: list[dict[str, Any]], **manifest: Any) -> RunDirectory:
    """Ranks that each had a trainprof of its own, and what that saw of its host."""
    for rank, host in enumerate(hosts):
        own = {"rank": rank, "world_size": len(hosts), "name": "whole", "host": host}
        serial(20, rank).write_rank(top, str(rank), **own, **manifest)
    return RunDirectory(top)


def shared(directory: RunDirectory) -> tuple[float, int]:
    inputs = summarize.context_of(directory).feeding[0].inputs
    return inputs.cores, inputs.ranks


@pytest.mark.parametrize(
    ("ranks", "has", "finding", "workers"),
    [
        ((0, 1), (1.0, 2), "saturated_cpu", None),  # nothing is promised of workers
        ((None,), (2.0, 1), "serial_loading", 1),  # one process alone has all cores
        ((None, None), (2.0, 1), "serial_loading", 1),  # these are no ranks
    ],
)
def test_two_processes_on_two_cores(tmp_path, ranks, has, finding, workers):
    host = {"name": "here", "usable_cores": 2.0}
    for number, rank in enumerate(ranks):
        directory = serial(20 + number, rank).write(tmp_path, host=host, script_pid=9)
    assert shared(directory) == has
    findings = [x for x in summarize.summarize(directory).findings if x.site == "train.py:41"]
    assert [(x.id, x.change.get("num_workers")) for x in findings] == [(finding, workers)]


HERE = {"name": "here", "usable_cores": 8.0}


@pytest.mark.parametrize(
    ("hosts", "manifest", "expected"),
    [
        ([HERE, HERE], {}, (4.0, 2)),
        ([HERE, HERE | {"name": "there"}], {}, (8.0, 1)),
        # Of the others of this host nobody knows but the launcher.
        ([HERE, HERE | {"name": "there"}], {"local_world_size": 4}, (2.0, 4)),
        ([HERE], {"local_world_size": 4}, (2.0, 4)),
        # Each is bound to cores of its own, or two and two are.
        ([HERE | {"core_numbers": [8 * k, 8 * k + 1]} for k in range(2)], {}, (8.0, 1)),
        (
            [HERE | {"core_numbers": [8 * (k // 2), 8 * (k // 2) + 1]} for k in range(4)],
            {"local_world_size": 4},
            (4.0, 2),
        ),
        ([HERE | {"core_numbers": [0, 1]}] * 2, {"local_world_size": 2}, (4.0, 2)),
        ([HERE], {"local_world_size": "x"}, (8.0, 1)),
        ([HERE], {"local_world_size": -3}, (8.0, 1)),
        ([HERE], {"local_world_size": 1 << 50}, (8.0, 1)),
    ],
)
def test_ranks_with_a_trainprof_each(tmp_path, hosts, manifest, expected):
    assert shared(each(tmp_path / "whole", hosts, **manifest)) == expected
