"""A device that waits for launches while most of its memory is free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of, healthy, on_device, with_summary
from support.findings import finding_of, is_silent, reports, row

from trainprof.analysis.summary.code import PythonInModel
from trainprof.analysis.summary.device import DeviceMemory
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

GIB = 1 << 30


def waiting(
    reserved: int | None = 20 * GIB,
    limit: int | None = 80 * GIB,
    context: RunContext | None = None,
    **idle_s: float,
) -> RunContext:
    """A device of 80 GiB waits for launches for 1 of 2 s."""
    context = on_device(context or healthy(), **{"launch_s": 1.0, **idle_s})
    [device] = context.summary.devices or ()
    nothing = dict.fromkeys(DeviceMemory.__dataclass_fields__)
    memory = DeviceMemory(
        **{
            **nothing,
            "readings": 9,
            "is_peak_sampled": False,
            "limit_bytes": limit,
            "peak_reserved_bytes": reserved,
            "not_observed": {},
        }
    )
    return with_summary(context, devices=[replace(device, memory=memory)])


AT: dict[str, Any] = {"is_only": False, "launching_share": 0.5}
SLOW_LOADER = case_of(Planted(workers=2, fetch_s=0.002))

test_small_batch = reports(
    "small_batch",
    {
        # 80 % of 80 GiB are 3.2 times 20 GiB.
        "a quarter of memory": row(waiting(), saved_s=1.0, likely=2.0, **AT),
        # 1.6 times: of each sample's 10 ms at least 6.25 are left.
        "half of memory": row(waiting(40 * GIB), saved_s=0.75, likely=1.6, **AT),
        "nearly nothing": row(waiting(GIB // 8), saved_s=1.0, **AT),
        "waits for the loader a little": row(waiting(loader_s=0.1), saved_s=1.0, **AT),
    },
)
test_healthy_runs = is_silent(
    "small_batch",
    {
        "memory is full": waiting(60 * GIB),
        "memory is not known": waiting(None),
        "nor the device's": waiting(limit=None),
        "waits for the loader": waiting(loader_s=0.5),
        "hardly waits for launches": waiting(launch_s=0.2),
        "on a CPU": SLOW_LOADER,
    },
)


def test_it_saves_the_same_time_as_compiling() -> None:
    diagnosis = diagnose(waiting())
    assert [x.id for x in diagnosis.findings] == ["launch_bound", "small_batch"]


def test_what_has_another_cause_is_left_out() -> None:
    python = PythonInModel(samples=100, held=20, seconds={"forward": 0.4}, lines=[])
    finding = finding_of("small_batch", with_summary(waiting(), python_in_model=python))
    assert finding is not None
    assert finding.recoverable_s == pytest.approx(0.6)
