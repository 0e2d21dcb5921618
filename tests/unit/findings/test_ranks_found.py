"""Ranks that wait for one another, and code that is compiled again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of
from support.found import compiled, found, hot_line, only

from trainprof.analysis.summary.code import Collective, Compilation
from trainprof.analysis.summary.finding import LIKELY
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext


def late(rank: int, phase: str, seconds: float) -> dict[str, Any]:
    return {"rank": rank, "phase": phase, "share_of_steps": 0.5, "seconds": seconds}


def ranks(*rows: dict[str, Any], rank: int = 1, **changes: Any) -> RunContext:
    """Two seconds and more of training; the case is that of one rank."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    context = case_of(healthy, stragglers=list(rows), **changes)
    run = replace(context.summary.run, world_size=2, rank=rank)
    return replace(
        context, summary=replace(context.summary, run=run, part_lines=[hot_line("other")])
    )


@pytest.mark.parametrize(
    ("phases", "site"),
    [
        (("data_wait", "first_batch"), "train.py:41"),
        (("checkpoint",), "train.py:70"),
        (("other",), "data.py:12"),
        (("evaluation",), None),
    ],
)
def test_a_rank_that_the_others_wait_for(phases: tuple[str, ...], site: str | None) -> None:
    finding = only(ranks(*(late(1, phase, 0.6 / len(phases)) for phase in phases)))
    assert (finding.id, finding.site, finding.is_at_most) == ("slow_rank", site, True)
    assert "rank 1" in finding.title
    assert finding.recoverable_s == pytest.approx(0.6)


@pytest.mark.parametrize("called_at", ["train.py:62", None])
def test_a_rank_that_evaluates_alone(called_at: str | None) -> None:
    """`if rank == 0: evaluate()`: not where its loader is built, and not too long by itself."""
    context = ranks(late(1, "evaluation", 0.6))
    sites = {"train.py:50": 0.2, "train.py:51": 0.5}
    loaders = [
        replace(
            Planted(role="evaluation").loader, site=site, evaluation_s=spent_s, called_at=called_at
        )
        for site, spent_s in sites.items()
    ]
    [feeder] = context.feeding
    context = replace(context, evaluating=[replace(feeder, loader=loader) for loader in loaders])
    finding = next(x for x in diagnose(context).findings if x.id == "slow_rank")
    assert finding.site == (called_at or "train.py:51")
    assert finding.advice.startswith("let all ranks share it")
    in_turn = replace(
        context.summary, stragglers=[late(1, "evaluation", 0.4), late(0, "evaluation", 0.3)]
    )
    finding = only(replace(context, summary=in_turn))
    assert finding.advice == "do it less often"


def test_a_rank_that_evaluates_alone_over_no_loader() -> None:
    context = ranks(late(1, "evaluation", 0.6))
    lines = [replace(hot_line("evaluation"), site="rollout.py:9", called_from=["train.py:62"])]
    lines.append(replace(hot_line("forward"), site="model.py:3"))
    finding = only(replace(context, summary=replace(context.summary, part_lines=lines)))
    assert finding.site == "train.py:62"


def test_what_one_rank_computes_longer_others_take_over() -> None:
    context = ranks(late(1, "forward", 0.6))
    finding = only(context)
    assert finding.site is None
    assert "order[rank::world_size]" in finding.advice
    # Of two ranks each would compute a half of it.
    assert finding.recoverable_s == pytest.approx(0.3)
    passes_on = [Collective("train.py:30", "send", 60, 0.01)]
    stages = replace(context, summary=replace(context.summary, collectives=passes_on))
    assert found(stages) == []


def test_ranks_that_wait_for_one_another_in_turn() -> None:
    finding = only(ranks(late(1, "data_wait", 0.4), late(0, "data_wait", 0.3)))
    assert "rank 1" not in finding.title
    assert finding.recoverable_s == pytest.approx(0.7)


@pytest.mark.parametrize(("cores", "are_told"), [(4.0, True), (2.0, False)])
def test_ranks_without_a_core_are_late_in_turn(cores: float, are_told: bool) -> None:
    system = summaries.system(cpu={"cores_usable": cores, "ranks": 4})
    both = (late(1, "data_wait", 0.4), late(0, "data_wait", 0.3))
    assert ("slow_rank" in found(ranks(*both, system=system))) is are_told
    # What one alone does is its own, whatever the cores are.
    finding = only(ranks(late(1, "data_wait", 0.6), system=system))
    assert finding.id == "slow_rank"


def test_what_ranks_hardly_wait_for_is_no_finding() -> None:
    assert found(ranks(late(1, "data_wait", 0.05))) == []
    assert found(ranks()) == []


def recompiled(*known: Compilation) -> RunContext:
    context = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02))
    return replace(context, summary=replace(context.summary, compilations=list(known)))


def test_code_that_is_compiled_again_and_again() -> None:
    context = recompiled(compiled(1, 0.2), replace(compiled(3, 1.3), site="train.py:60"))
    finding = only(context)
    assert (finding.id, finding.site, finding.is_at_most) == ("recompiling", "train.py:60", True)
    assert finding.recoverable_s == pytest.approx(1.5)
    assert finding.evidence["again"] == 4
    assert finding.advice.startswith("torch.compile(..., dynamic=True), or one shape for all")
    [caution] = finding.cautions
    assert "not where a model is evaluated" in caution
    assert "padded places have to be masked" in caution
    assert finding.also == []
    assert finding.evidence[LIKELY] == pytest.approx(1 / (1 - 1.5 / context.training_s))
    [finding] = diagnose(recompiled(compiled(7, 1.5, versions=8))).findings
    assert "runs it uncompiled" in finding.also[0]


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        (["number"], "hold the number that changes in a tensor"),
        (["shape"], "torch.compile(..., dynamic=True), or one shape"),
        ([], "torch.compile(..., dynamic=True), or one shape"),
    ],
)
def test_the_advice_is_about_what_changed(changed: list[str], advice: str) -> None:
    finding = only(recompiled(replace(compiled(7, 1.5), again_for=changed)))
    assert finding.advice.startswith(advice)
    assert bool(finding.cautions) is (changed != ["number"])


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([compiled(0, 0.0)], id="once"),
        pytest.param([compiled(1, 1.5)], id="one more version"),
        pytest.param([compiled(2, 0.15)], id="a small part"),
        pytest.param([], id="nothing"),
    ],
)
def test_compiling_that_is_no_fault(told: list[Compilation]) -> None:
    assert found(recompiled(*told)) == []
