"""Ranks that wait for one another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import summaries
from support.cases import Planted, healthy, with_run, with_summary
from support.findings import hot_line, is_silent, reports, row

from trainprof.analysis.summary.code import Collective, HotLine
from trainprof.findings.run_context import RunContext


def late(rank: int, phase: str, seconds: float) -> dict[str, Any]:
    return {"rank": rank, "phase": phase, "share_of_steps": 0.5, "seconds": seconds}


def ranks(*rows: dict[str, Any], lines: tuple[HotLine, ...] = (), cores: float = 8.0) -> RunContext:
    """Two seconds and more of training, as rank 1 of four has it."""
    system = summaries.system(cpu={"cores_usable": cores, "ranks": 4})
    context = with_run(healthy(stragglers=[*rows], system=system), world_size=2, rank=1)
    return with_summary(context, part_lines=[*(lines or [hot_line("other")])])


def evaluating(*rows: dict[str, Any], called_at: str | None = None) -> RunContext:
    """`if rank == 0: evaluate()`, over two loaders: that of train.py:51 takes longer."""
    context = ranks(*rows)
    [feeder] = context.feeding
    loaders = [
        Planted(role="evaluation").having(site=site, evaluation_s=s, called_at=called_at).loader
        for site, s in (("train.py:50", 0.2), ("train.py:51", 0.5))
    ]
    return replace(context, evaluating=[replace(feeder, loader=loader) for loader in loaders])


IN_TURN = (late(1, "data_wait", 0.4), late(0, "data_wait", 0.3))
LOADING = (late(1, "data_wait", 0.3), late(1, "first_batch", 0.3))
LATE = late(1, "evaluation", 0.6)
CALLS_FOR_IT = (
    hot_line("evaluation", site="rollout.py:9", called_from=["train.py:62"]),
    hot_line("forward", site="model.py:3"),
)
OTHERS: dict[str, Any] = {"is_only": False}
STAGES = with_summary(
    ranks(late(1, "forward", 0.6)), collectives=[Collective("train.py:30", "send", 60, 0.01)]
)

test_slow_rank = reports(
    "slow_rank",
    {
        "loading": row(ranks(*LOADING), saved_s=0.6, is_at_most=True),
        # What one alone does is its own, whatever the cores are.
        "loading, without a core": row(ranks(*LOADING, cores=2.0), saved_s=0.6),
        "saving": row(ranks(late(1, "checkpoint", 0.6)), "train.py:70", saved_s=0.6),
        "Python": row(ranks(late(1, "other", 0.6)), "data.py:12", saved_s=0.6),
        # Of two ranks each would compute a half of it.
        "computing": row(ranks(late(1, "forward", 0.6)), None, saved_s=0.3),
        "in turn": row(ranks(*IN_TURN), saved_s=0.7),
        "evaluation": row(ranks(LATE), None, saved_s=0.6),
        "evaluation by its call": row(
            evaluating(LATE, called_at="train.py:62"), "train.py:62", saved_s=0.6, **OTHERS
        ),
        "evaluation by its loader": row(evaluating(LATE), "train.py:51", saved_s=0.6, **OTHERS),
        "evaluation over no loader": row(ranks(LATE, lines=CALLS_FOR_IT), "train.py:62"),
    },
)
test_ranks_that_hardly_wait = is_silent(
    "slow_rank",
    {
        "a little": ranks(late(1, "data_wait", 0.05)),
        "nothing": ranks(),
        "stages of a model": STAGES,
        "in turn, without a core": ranks(*IN_TURN, cores=2.0),
    },
)
