"""Ranks that wait for one another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries
from support.cases import Planted, healthy, with_run, with_summary
from support.findings import finding_of, hot_line, only, reported

from trainprof.analysis.summary.code import Collective
from trainprof.findings.run_context import RunContext


def late(rank: int, phase: str, seconds: float) -> dict[str, Any]:
    return {"rank": rank, "phase": phase, "share_of_steps": 0.5, "seconds": seconds}


IN_TURN = (late(1, "data_wait", 0.4), late(0, "data_wait", 0.3))


PYTHON = hot_line("other")


def ranks(*rows: dict[str, Any], lines: Any = (PYTHON,), **changes: Any) -> RunContext:
    """Two seconds and more of training, as rank 1 has it."""
    context = with_run(healthy(stragglers=[*rows], **changes), world_size=2, rank=1)
    return with_summary(context, part_lines=[*lines])


def evaluating(*rows: dict[str, Any], called_at: str | None = None) -> RunContext:
    """Over two loaders: that of train.py:51 takes longer."""
    context = ranks(*rows)
    [feeder] = context.feeding
    loaders = [
        Planted(role="evaluation").having(site=site, evaluation_s=s, called_at=called_at).loader
        for site, s in (("train.py:50", 0.2), ("train.py:51", 0.5))
    ]
    return replace(context, evaluating=[replace(feeder, loader=loader) for loader in loaders])


CALLS_FOR_IT = (
    hot_line("evaluation", site="rollout.py:9", called_from=["train.py:62"]),
    hot_line("forward", site="model.py:3"),
)
LATE_AT_EVALUATION = late(1, "evaluation", 0.6)


@pytest.mark.parametrize(
    ("context", "site", "saved_s"),
    [
        pytest.param(
            ranks(late(1, "data_wait", 0.3), late(1, "first_batch", 0.3)),
            *("train.py:41", 0.6),
            id="loading",
        ),
        pytest.param(ranks(late(1, "checkpoint", 0.6)), "train.py:70", 0.6, id="saving"),
        pytest.param(ranks(late(1, "other", 0.6)), "data.py:12", 0.6, id="Python"),
        # Of two ranks each would compute a half of it.
        pytest.param(ranks(late(1, "forward", 0.6)), None, 0.3, id="computing"),
        pytest.param(ranks(*IN_TURN), "train.py:41", 0.7, id="in turn"),
        pytest.param(ranks(LATE_AT_EVALUATION), None, 0.6, id="evaluation"),
        # `if rank == 0: evaluate()`: not where its loader is built.
        pytest.param(
            evaluating(LATE_AT_EVALUATION, called_at="train.py:62"),
            *("train.py:62", 0.6),
            id="evaluation by its call",
        ),
        pytest.param(
            evaluating(LATE_AT_EVALUATION), "train.py:51", 0.6, id="evaluation by its loader"
        ),
        pytest.param(
            evaluating(late(1, "evaluation", 0.4), late(0, "evaluation", 0.3)),
            *("train.py:51", 0.7),
            id="evaluation in turn",
        ),
        pytest.param(
            ranks(LATE_AT_EVALUATION, lines=CALLS_FOR_IT),
            *("train.py:62", 0.6),
            id="evaluation over no loader",
        ),
    ],
)
def test_slow_rank(context: RunContext, site: str | None, saved_s: float) -> None:
    finding = finding_of("slow_rank", context)
    assert finding is not None
    assert (finding.site, finding.is_at_most) == (site, True)
    assert finding.recoverable_s == pytest.approx(saved_s)


PASSES_ON = [Collective("train.py:30", "send", 60, 0.01)]


@pytest.mark.parametrize(
    "context",
    [
        ranks(late(1, "data_wait", 0.05)),
        ranks(),
        with_summary(ranks(late(1, "forward", 0.6)), collectives=PASSES_ON),
    ],
    ids=["a little", "nothing", "stages of a model"],
)
def test_ranks_that_hardly_wait(context: RunContext) -> None:
    assert reported(context) == []


@pytest.mark.parametrize(("cores", "is_reported"), [(4.0, True), (2.0, False)])
def test_ranks_without_a_core_are_late_in_turn(cores: float, is_reported: bool) -> None:
    system = summaries.system(cpu={"cores_usable": cores, "ranks": 4})
    in_turn = finding_of("slow_rank", ranks(*IN_TURN, system=system))
    assert (in_turn is not None) is is_reported
    # What one alone does is its own, whatever the cores are.
    assert only(ranks(late(1, "data_wait", 0.6), system=system)).id == "slow_rank"
