"""What is found in a run, and parts of runs that findings are about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.cases import Planted

from trainprof.analysis.model.torch_settings import LoopedOptimizer, TorchSettings
from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import Compilation, HotLine
from trainprof.analysis.summary.finding import Finding
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext


def found(case: RunContext) -> list[str]:
    return [finding.id for finding in diagnose(case).findings]


def only(case: RunContext) -> Finding:
    [finding] = diagnose(case).findings
    return finding


def hot_line(part: str, share: float = 0.9) -> HotLine:
    return HotLine(part, "data.py:12", "decode", ["train.py:50"], 100, share, 1.0)


def minded(finding: Finding) -> str:
    return " ".join(finding.cautions)


WHOLE = "sampler=BatchSampler(RandomSampler(dataset), 32, drop_last=False), batch_size=None"


def in_rows(**changes: Any) -> Planted:
    """Batches of 32 rows, 10 us each, on steps of 0.5 ms."""
    planted = Planted(**{"fetch_s": 0.00032, "running": 1.0, "compute_s": 0.0005, **changes})
    planted.loader = replace(planted.loader, whole_batches=WHOLE, holds_tensors=True)
    return planted


def handed_over(**changes: Any) -> Planted:
    """Batches of 0.1 ms from two workers, 1 ms to take each over, for steps of 0.5 ms."""
    plain = {"fetch_s": 0.0001, "running": 1.0, "compute_s": 0.0005, "workers": 2, "cores": 4}
    receiving = {"receive_s": Interval.exactly(0.001)}
    return Planted(**{**plain, **receiving, "is_persistent": True, **changes})


def with_slow_starts(each_s: float, sampler_s: float, **changes: Any) -> Planted:
    """Ten passes that take so long to begin, some of it for the sampler."""
    planted = Planted(**{"passes": 10, "compute_s": 0.01, "fetch_s": 0.0002, **changes})
    loader = planted.loader
    assert loader.first_batch_s is not None
    first_s = loader.first_batch_s.mean + each_s
    first = replace(loader.first_batch_s, mean=first_s, p50=first_s)
    planted.loader = replace(
        loader,
        first_batch_s=first,
        later_starts_s=9 * first.mean,
        sampler_starts_s=9 * sampler_s,
    )
    return planted


def looped(name: str = "AdamW", spent_s: float = 1.0) -> TorchSettings:
    one = LoopedOptimizer(name, 120, "train.py:60", spent_s=spent_s)
    return TorchSettings(threads=1, looped=[one])


def compiled(again: int, again_s: float, versions: int = 4) -> Compilation:
    return Compilation("train.py:50", again + 2, again_s + 3.0, again, again_s, versions)
