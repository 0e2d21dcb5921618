"""Ranks wait for one of them, which does something longer, or alone.

What it means: ranks that average their gradients take each step together, so that it lasts as long
as that of the slowest. One that waits longer for its batches, computes longer (longer sequences
than those of the others), or alone evaluates, saves or logs, holds all others up by that time.

How it is measured: step by step, what a rank spends on loading, copies, checkpoints, evaluation and
collected garbage beyond all others, from a tenth of a usual step on; and Python between the parts
of a step, where the others' forward, backward and calls of torch.distributed, in which they wait,
are longer by half of it. So is a forward that is longer, where that rank is as late by all that
comes ahead of backward, and the others wait in backward: of it mostly one rank has to be the cause,
and its backward counts in proportion, for whoever waits, waits in the midst of theirs.

When it is wrong: where batches differ in what they take, each rank is last in turn; over many steps
that may be nobody's fault. A rank may compute longer because its core is slower or shared. With
more ranks than cores only what is mostly one rank's is reported. Where ranks send to one another,
as stages of a model do, computing is not compared. On a GPU it is not looked for.

What to do: give all ranks alike: shards of one size and samples of like lengths, the same workers,
the same disk. What only one of them does: less often, or in a thread or process of its own.
Evaluation: by all of them, each a part of its samples (DistributedSampler gives some twice where
they cannot be shared out evenly). What one computes longer the others would have to compute: what
is left of it when it is shared out is gained.
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.run.evidence import called_for_at
from trainprof.analysis.run.metadata import number_at
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.timeline.ledger import LOADER_KEYS
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.loop.python_in_loop import python_line
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span, takes_of_it

# Of what all ranks are waited for because of the same thing: who has so much of it is the one.
_MOSTLY: Final = 0.7
_LOADING: Final = "loading"
_COMPUTING: Final = "forward"
_EVALUATING: Final = "evaluation"
_FROM_ONE_TO_ONE: Final = ("send", "recv")
_WORDS: Final = {
    _LOADING: "loading its batches",
    _COMPUTING: "computing, forward and backward",
    "transfer": "copying",
    "checkpoint": "saving and loading checkpoints",
    _EVALUATING: "evaluating",
    "gc": "collecting garbage",
    "other": "Python code between the parts of a step",
}


def find(context: RunContext) -> Finding | None:
    """Looks at the ranks' stragglers in the summary; the case is that of the worst of them."""
    least = RULE.threshold(context.settings, "share")
    by_cause: dict[str, list[dict[str, Any]]] = {}
    passes_on = any(
        collective.function in _FROM_ONE_TO_ONE for collective in context.summary.collectives
    )
    for row in context.summary.stragglers:
        if passes_on and row["phase"] == _COMPUTING:
            continue  # stages of one model compute what they are there for
        by_cause.setdefault(_cause(row), []).append(row)
    if not by_cause or context.training_s <= 0:
        return None
    cause = max(by_cause, key=lambda name: _seconds(by_cause[name]))
    rows = by_cause[cause]
    spent_s = _seconds(rows)
    part = spent_s / context.training_s
    if part < least:
        return None
    rank = context.summary.run.rank
    own = [row for row in rows if row["rank"] == rank]
    is_one = _seconds(own) >= _MOSTLY * spent_s
    if not is_one and _are_cores_short(context):
        return None
    words = f"{span(spent_s)}, {percent(part)} of training"
    if is_one:
        title = f"the other ranks wait for rank {rank}, which is longer at {_WORDS[cause]}: {words}"
    else:
        title = f"ranks wait in turn for one that is longer at {_WORDS[cause]}: {words}"
    site, where = _place(context, cause)
    return plain_finding(
        RULE.id,
        title,
        outside_steps(context, spent_s * _given_up(context, cause)),
        site=site,
        advice=_advice(cause, is_one=is_one) + where,
        evidence={
            "held_up_s": spent_s,
            "held_up_share": part,
            "late_in_share_of_steps": {
                f"rank {row['rank']}": row["share_of_steps"] for row in rows
            },
        },
    )


def _are_cores_short(context: RunContext) -> bool:
    """Whether more ranks share the cores than there are, as far as that is known."""
    cpu, cores = context.summary.system.cpu if context.summary.system else {}, context.cores()
    ranks = number_at(cpu, "ranks")
    return ranks is not None and cores is not None and ranks > cores


def _given_up(context: RunContext, cause: str) -> float:
    """Returns the share that is gained: what one rank computes longer others take over."""
    ranks = _ranks(context)
    return (ranks - 1) / ranks if cause == _COMPUTING else 1.0


def _ranks(context: RunContext) -> int:
    return max(len(context.summary.ranks), context.summary.run.world_size or 0, 2)


def _cause(row: dict[str, Any]) -> str:
    phase = str(row["phase"])
    return _LOADING if phase in LOADER_KEYS else phase


def _seconds(rows: list[dict[str, Any]]) -> float:
    return float(sum(row["seconds"] for row in rows))


def _advice(cause: str, *, is_one: bool) -> str:
    if cause == _LOADING:
        if is_one:
            return "make loading the same on all ranks: shards of one size, workers, disk"
        return "batches of the same cost on all ranks, or more of them ahead (prefetch_factor)"
    if cause == _COMPUTING:
        return (
            "batches of like cost on all ranks at a time: samples sorted by length dealt out in "
            "turn (order[rank::world_size]), not in blocks, or batches of like lengths for all"
        )
    if is_one and cause == _EVALUATING:
        return (
            "let all ranks share it (sampler=DistributedSampler(dataset, shuffle=False)), and add "
            "up what they find by all_reduce; or do it less often"
        )
    return f"do it less often{', or in a thread or process of its own' if is_one else ''}"


def _place(context: RunContext, cause: str) -> tuple[str | None, str]:
    """Returns the line where that rank spends it, and words to put behind the advice."""
    if cause == _LOADING and context.feeding:
        return context.feeding[0].loader.site, ""
    if cause == _EVALUATING:
        return _evaluated_at(context), ""
    if cause == "checkpoint":
        return context.checkpoints.site, ""
    line = python_line(context.summary) if cause == "other" else None
    if line is None or line.is_end:
        return None, ""
    return line.site, f"; {takes_of_it(line)}"


def _evaluated_at(context: RunContext) -> str | None:
    """Returns the line that calls for evaluation; where nobody knows it, that of its loader."""
    loaders = [
        feeder.loader
        for feeder in (*context.evaluating, *context.feeding)
        if feeder.loader.evaluation_s
    ]
    longest = max(loaders, key=lambda loader: loader.evaluation_s, default=None)
    if longest is None:
        return called_for_at(context.summary.part_lines)
    return longest.called_at or longest.site


RULE: Final = Rule(
    id="slow_rank",
    thresholds={"share": Threshold(0.05, "of training: as for other waits (XProf)")},
    find=find,
    explanation=__doc__,
    order=240,
    by_timing=True,
    traits=RuleTraits(gain_if="all ranks took as long", of_all_parts=True),
)
