"""What ranks of one host have of its cores, and what is told of workers for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of
from support.events import MS, FakeRun

from trainprof.analysis.pipeline.bounds import PipelineInputs
from trainprof.analysis.summary.finding import Finding
from trainprof.findings import summarize
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import Kind

STEPS = 40


def serial(pid: int, rank: int | None, *, delay_ms: int = 0) -> FakeRun:
    """A process that makes each batch in 20 ms of its core, and computes with it for 21."""
    told = {"ancestors": [1], "rank": None if rank is None else str(rank)}
    run = FakeRun(pid=pid, role="child", header=told)
    loader, optimizer = run.loader(num_workers=0), run.optimizer()
    run.iterate(loader)
    for number in range(STEPS):
        with run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
            start, cpu_ns = run.now, 20 * MS
            run.fetch((20 + delay_ms) * MS, 4)
            delay_us = delay_ms * 1000
            run.record(Kind.FETCH_CPU, start, start + cpu_ns, site=delay_us, value=cpu_ns, flags=1)
        run.learn(optimizer, forward=10 * MS, backward=10 * MS, update=1 * MS)
    run.stop(loader)
    run.mark(Kind.PROCESS_END)
    return run


def together(tmp_path: Path, ranks: int, cores: float, **plain: Any) -> RunDirectory:
    """Ranks that one trainprof recorded."""
    host = {"name": "here", "usable_cores": cores}
    for rank in range(ranks):
        directory = serial(20 + rank, rank, **plain).write(tmp_path, host=host, script_pid=9)
    return directory


def each(top: Path, hosts: list[dict[str, Any]], **manifest: Any) -> RunDirectory:
    """Ranks that each had a trainprof of its own, and what that saw of its host."""
    for rank, host in enumerate(hosts):
        own = {"rank": rank, "world_size": len(hosts), "name": "whole", "host": host}
        directory = serial(20, rank).write(top / "written" / str(rank), **own, **manifest)
        (top / "ranks").mkdir(parents=True, exist_ok=True)
        directory.path.rename(top / "ranks" / str(rank))
    return RunDirectory(top)


def inputs_of(directory: RunDirectory) -> PipelineInputs:
    case = summarize.context_of(directory)
    inputs = case.feeding[0].inputs
    assert inputs is not None
    return inputs


def shared(directory: RunDirectory) -> tuple[float, int]:
    inputs = inputs_of(directory)
    return inputs.cores, inputs.ranks


def test_two_ranks_on_two_cores_are_promised_nothing_of_workers(tmp_path):
    directory = together(tmp_path, 2, 2.0)
    assert shared(directory) == (1.0, 2)
    [finding] = [x for x in summarize.summarize(directory).findings if x.site == "train.py:41"]
    assert finding.id == "saturated_cpu"
    assert finding.change == {}


def test_one_process_alone_has_all_cores(tmp_path):
    host = {"name": "here", "usable_cores": 2.0}
    directory = serial(20, None).write(tmp_path, host=host)
    assert shared(directory) == (2.0, 1)
    [finding] = [x for x in summarize.summarize(directory).findings if x.site == "train.py:41"]
    assert (finding.id, finding.change["num_workers"]) == ("serial_loading", 1)
    assert not any("rank" in one for one in finding.cautions)


def test_processes_that_are_no_ranks_are_not_counted(tmp_path):
    host = {"name": "here", "usable_cores": 2.0}
    for pid in (20, 21):
        directory = serial(pid, None).write(tmp_path, host=host, script_pid=9)
    assert shared(directory) == (2.0, 1)


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


def test_a_rank_seen_alone_knows_of_the_others_by_its_launcher(tmp_path):
    directory = serial(20, 0).write(tmp_path, host=HERE, local_world_size=2)
    assert shared(directory) == (4.0, 2)


def test_more_ranks_than_cores_have_one_together(tmp_path):
    # Each waits for the core as long as it has it.
    inputs = inputs_of(together(tmp_path, 4, 2.0, delay_ms=20))
    assert (inputs.cores, inputs.ranks, inputs.ranks_per_core) == (1.0, 4, 2.0)
    assert inputs_of(together(tmp_path / "cut", 2, 0.5)).cores == 0.5


# What is said of it


def of_ranks(ranks: int, **planted: Any):
    plain = {"fetch_s": 0.03, "running": 0.6, "compute_s": 0.01, "cores": 4.0}
    return Planted(**plain | planted, ranks=ranks)


def test_ranks_that_outnumber_the_cores_get_no_more_workers():
    one_each = {"cores": 1.0, "running": 0.2, "fetch_s": 0.01, "compute_s": 0.01}
    changes = [
        [
            one.change
            for one in diagnose(case_of(of_ranks(8, ranks_per_core=n, **one_each))).findings
        ]
        for n in (1.0, 2.0)
    ]
    assert [any(changes[0]), any(changes[1])] == [True, False]


def of_system(*planted: Planted, memory: dict[str, Any] | None = None, **cpu: Any) -> RunContext:
    plain = summaries.system()
    changed = replace(plain, cpu={**plain.cpu, **cpu}, memory={**plain.memory, **(memory or {})})
    return case_of(*planted, system=changed)


def first(case: RunContext) -> Finding:
    return diagnose(case).findings[0]
