"""What is reported of a run, and parts of runs that findings are about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.cases import Planted, case_of

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import LIKELY, Finding
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


@dataclass(frozen=True)
class Row:
    """A run, and the finding that is expected of it.

    Attributes:
        fields: `saved_s`, `low`, `high` and `likely` times as fast; other fields, or evidence by
            its name. Numbers are about so, within `rel`; tuples are their ends.
        is_only: There is no other finding.
    """

    run: Planted | RunContext
    site: str | None
    fields: dict[str, Any]
    rel: float
    is_only: bool

    def check(self, rule: str) -> None:
        findings = diagnose(context_of(self.run)).findings
        assert not self.is_only or [x.id for x in findings] == [rule]
        finding = next(x for x in findings if x.id == rule)
        low, high = finding.predicted_speedup or (None, None)
        known = {**finding.evidence, "saved_s": finding.recoverable_s, "low": low, "high": high}
        known |= {"likely": finding.evidence.get(LIKELY), "site": finding.site}
        for name, expected in {"site": self.site, **self.fields}.items():
            value = known[name] if name in known else getattr(finding, name)
            if isinstance(expected, tuple):
                assert expected[0] <= value <= expected[1], (name, value)
            elif type(expected) is float:
                assert value == pytest.approx(expected, rel=self.rel), name
            else:
                assert value == expected, name


def row(
    run: Planted | RunContext,
    site: str | None = "train.py:41",
    *,
    rel: float = 0.02,
    is_only: bool = True,
    **fields: Any,
) -> Row:
    return Row(run, site, fields, rel, is_only)


def reports(rule: str, rows: Mapping[str, Row]) -> Callable[[Row], None]:
    """Returns a test that each run has a finding of the rule, as its row has it."""

    @pytest.mark.parametrize("row", rows.values(), ids=rows)
    def test(row: Row) -> None:
        row.check(rule)

    return test


def is_silent(rule: str, rows: Mapping[str, Planted | RunContext]) -> Callable[..., None]:
    """Returns a test that no run has a finding of the rule."""

    @pytest.mark.parametrize("run", rows.values(), ids=rows)
    def test(run: Planted | RunContext) -> None:
        assert rule not in reported(context_of(run))

    return test


def context_of(run: Planted | RunContext) -> RunContext:
    return case_of(run) if isinstance(run, Planted) else run


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
