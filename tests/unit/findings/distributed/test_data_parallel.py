"""Models in nn.DataParallel."""

from __future__ import annotations

from support.cases import healthy, noted
from support.findings import is_silent, reports, row

from trainprof.findings.distributed.data_parallel.probe import DataParallelNote
from trainprof.findings.run_context import RunContext


def parallel(devices: int, least: float = 2.0) -> RunContext:
    notes = noted(DataParallelNote(1, devices), places=("train.py:12",))
    return healthy(notes=notes, settings={"data_parallel.devices": least})


test_data_parallel = reports("data_parallel", {"four": row(parallel(4), "train.py:12", high=None)})
test_others = is_silent(
    "data_parallel",
    {"one": parallel(1), "fewer than the user asks for": parallel(4, 8.0), "none": healthy()},
)
