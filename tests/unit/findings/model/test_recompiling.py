"""Code that torch.compile compiles again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.findings import only, reported

from trainprof.analysis.summary.code import Compilation
from trainprof.analysis.summary.finding import LIKELY


def compiled(again: int, again_s: float, versions: int = 4, **changes: Any) -> Compilation:
    plain = Compilation("train.py:60", again + 2, again_s + 3.0, again, again_s, versions)
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("known", "is_of_shapes"),
    [
        pytest.param(
            [compiled(1, 0.2, site="train.py:50"), compiled(3, 1.3)], True, id="two lines"
        ),
        pytest.param([compiled(7, 1.5, 8)], True, id="at torch's limit"),
        pytest.param([compiled(7, 1.5, again_for=["shape"])], True, id="shapes"),
        pytest.param([compiled(7, 1.5, again_for=["number"])], False, id="a number"),
    ],
)
def test_recompiling(known: list[Compilation], is_of_shapes: bool) -> None:
    context = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02), compilations=known)
    finding = only(context)
    assert (finding.id, finding.site, finding.is_at_most) == ("recompiling", "train.py:60", True)
    assert finding.recoverable_s == pytest.approx(1.5)
    assert finding.evidence["again"] == sum(x.again for x in known)
    assert finding.evidence[LIKELY] == pytest.approx(1 / (1 - 1.5 / context.training_s))
    assert bool(finding.cautions) is is_of_shapes
    assert bool(finding.also) is any(x.most_versions == 8 for x in known)


@pytest.mark.parametrize(
    "known",
    [[compiled(0, 0.0)], [compiled(1, 1.5)], [compiled(2, 0.15)], []],
    ids=["once", "one more version", "a small part", "nothing"],
)
def test_compiling_that_is_no_fault(known: list[Compilation]) -> None:
    planted = Planted(workers=2, fetch_s=0.002, compute_s=0.02)
    assert reported(case_of(planted, compilations=known)) == []
