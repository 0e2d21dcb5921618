"""What is reported of a run, and parts of runs that findings are about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.cases import Planted

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

ROWS = "sampler=BatchSampler(RandomSampler(dataset), 32, drop_last=False), batch_size=None"


def reported(context: RunContext) -> list[str]:
    return [finding.id for finding in diagnose(context).findings]


def only(context: RunContext) -> Finding:
    [finding] = diagnose(context).findings
    return finding


def finding_of(rule: str, context: RunContext) -> Finding | None:
    """Returns the finding of a rule, None where it has none."""
    return next((x for x in diagnose(context).findings if x.id == rule), None)


def high_of(finding: Finding) -> float:
    """Returns how many times as fast training would be at most."""
    assert finding.predicted_speedup is not None
    return finding.predicted_speedup[1]


def hot_line(part: str, share: float = 0.9, **changes: Any) -> HotLine:
    line = HotLine(part, "data.py:12", "decode", ["train.py:50"], 100, share, 1.0)
    return replace(line, **changes)


def in_rows(**changes: Any) -> Planted:
    """Batches of 32 rows, 10 us each, on steps of 0.5 ms."""
    planted = Planted(**{"fetch_s": 0.00032, "running": 1.0, "compute_s": 0.0005, **changes})
    return planted.having(whole_batches=ROWS, holds_tensors=True)


def handed_over(**changes: Any) -> Planted:
    """Batches of 0.1 ms from two workers, 1 ms to take each over, for steps of 0.5 ms."""
    plain = {"fetch_s": 0.0001, "running": 1.0, "compute_s": 0.0005, "workers": 2, "cores": 4}
    receiving = {"receive_s": Interval.exactly(0.001)}
    return Planted(**{**plain, **receiving, "is_persistent": True, **changes})


def with_slow_starts(each_s: float, sampler_s: float, **changes: Any) -> Planted:
    """Ten passes that take so long to begin, some of it for the sampler."""
    planted = Planted(**{"passes": 10, "compute_s": 0.01, "fetch_s": 0.0002, **changes})
    first = planted.loader.first_batch_s
    assert first is not None
    begins_s = first.mean + each_s
    return planted.having(
        first_batch_s=replace(first, mean=begins_s, p50=begins_s),
        later_starts_s=9 * begins_s,
        sampler_starts_s=9 * sampler_s,
    )
