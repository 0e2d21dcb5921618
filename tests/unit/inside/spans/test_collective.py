"""What is recorded of calls of torch.distributed."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
from support.session import Recorder

from trainprof.inside.spans.collective import CollectiveProbe
from trainprof.record.schema import COLLECTIVES, Kind


@pytest.mark.usefixtures("group")
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
