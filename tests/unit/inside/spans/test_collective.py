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
    events = recorder.read().of(Kind.COLLECTIVE)
    names = [COLLECTIVES[event.flags] for event in events]
    assert names == ["all_reduce", "all_gather_object", "all_reduce", "wait"]
    lines = [int(event.line.partition(":")[2]) - line for event in events]
    assert lines == [0, 2, 3, 4]
