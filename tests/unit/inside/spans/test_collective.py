"""What is recorded of calls of torch.distributed."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.session import Recorder
from torch.distributed import distributed_c10d as members

from trainprof.inside.catalogue import default_probes
from trainprof.inside.spans.collective import CollectiveProbe
from trainprof.record.schema import COLLECTIVES, Kind


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
def test_the_same_with_and_without(same_with_us: Callable[..., Any]) -> None:
    def communicate() -> Any:
        one, all_of_it = torch.ones(3), [torch.zeros(3)]
        dist.all_reduce(one)
        dist.all_gather(all_of_it, one)
        objects = [None]
        dist.all_gather_object(objects, {"a": 1})
        work = dist.broadcast(one, 0, async_op=True)
        return work.wait(), all_of_it[0].tolist(), objects, dist.barrier()

    assert same_with_us(communicate, *default_probes())[0] == "returned"


@pytest.mark.usefixtures("_group")
def test_exceptions_look_the_same(same_with_us: Callable[..., Any]) -> None:
    assert same_with_us(lambda: dist.all_reduce("x"), CollectiveProbe())[0] == "raised"
    assert same_with_us(lambda: dist.broadcast(torch.ones(1)), CollectiveProbe())[0] == "raised"


def test_without_a_group_looks_the_same(same_with_us: Callable[..., Any]) -> None:
    assert same_with_us(dist.barrier, CollectiveProbe())[0] == "raised"


@pytest.mark.usefixtures("_group")
def test_the_outermost_call_is_recorded_with_its_line(recorder: Recorder) -> None:
    recorder.start(CollectiveProbe())
    dist.all_reduce(torch.ones(2))
    line = sys._getframe().f_lineno - 1
    dist.all_gather_object([None], "x")  # which gathers sizes and bytes
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    told = [one for one in recorder.read().events if one.kind == Kind.COLLECTIVE]
    names = [COLLECTIVES[one.flags] for one in told]
    assert names == ["all_reduce", "all_gather_object", "all_reduce", "wait"]
    lines = [line, line + 2, line + 3, line + 4]
    assert [one.line for one in told] == [f"test_collective.py:{number}" for number in lines]
    assert all(one.end >= one.start for one in told)


def test_pickle_finds_the_function(recorder: Recorder) -> None:
    recorder.start(CollectiveProbe())
    assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce is members.all_reduce


def test_nothing_of_ours_stays(recorder: Recorder) -> None:
    before = dist.all_reduce, members.Work.wait
    recorder.start(CollectiveProbe())
    assert dist.all_reduce is not before[0]
    recorder.stop()
    assert (dist.all_reduce, members.Work.wait) == before
