"""One rank is slower than the others, which wait for it.

What it means: ranks that average gradients take each step together, at the pace of the slowest one.
Such a straggler waits longer for data, computes longer (longer sequences), or evaluates, saves or
logs alone.

How it is measured: step by step, trainprof compares what ranks spend on loading, copies,
checkpoints, evaluation and garbage collection. A difference counts from a tenth of a usual step on.
Python between the parts of a step counts where the other ranks' forward, backward or collectives
are longer by half of it. A longer forward counts where that rank also reaches backward later, and
mostly the same rank does. Its backward then counts in proportion, as the others wait inside theirs.

When it is wrong: where batches differ in cost, each rank is last in turn. A rank may compute longer
because its core is slower or shared. With more ranks than cores only what is mostly one rank's is
reported. Computing is not compared where ranks use send and recv, as pipeline stages do. On a GPU
stragglers are not looked for.

What to do: give all ranks the same load: shards of one size, samples of similar length, equal
workers and disks. Do what only one rank does less often, or in a thread or process. Evaluate on all
ranks with DistributedSampler, which repeats some samples if they don't divide evenly. If one rank
computes longer, sharing that work gains less than its whole excess.
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

# Of the waiting for one cause: from here on a single rank is the straggler.
_MOSTLY: Final = 0.7
_LOADING: Final = "loading"
_COMPUTING: Final = "forward"
_EVALUATING: Final = "evaluation"
_FROM_ONE_TO_ONE: Final = ("send", "recv")
_WORDS: Final = {
    _LOADING: "loading data",
    _COMPUTING: "forward and backward",
    "transfer": "copies",
    "checkpoint": "checkpoints",
    _EVALUATING: "evaluation",
    "gc": "garbage collection",
    "other": "Python in the loop",
}


def find(context: RunContext) -> Finding | None:
    """Returns the worst cause of waiting between ranks, by the summary's stragglers."""
    least = RULE.threshold(context.settings, "share")
    by_cause: dict[str, list[dict[str, Any]]] = {}
    passes_on = any(
        collective.function in _FROM_ONE_TO_ONE for collective in context.summary.collectives
    )
    for row in context.summary.stragglers:
        if passes_on and row["phase"] == _COMPUTING:
            continue  # stages of a pipeline compute different things
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
    excess = f"{span(spent_s / max(context.summary.training.steps, 1))} more per step"
    waiting = f"wait ({percent(part)} of training)"
    title = f"in turn, a rank spends {excess} on {_WORDS[cause]}, and the others {waiting}"
    if is_one:
        title = f"straggler: rank {rank} spends {excess} on {_WORDS[cause]}; the others {waiting}"
    action, advice = _advice(cause, is_one=is_one)
    site, takes = _place(context, cause)
    return plain_finding(
        RULE.id,
        title,
        outside_steps(context, spent_s * _recoverable_share(context, cause)),
        site=site,
        action=action,
        advice=advice,
        also=takes,
        evidence={
            "held_up_s": spent_s,
            "held_up_share": part,
            "late_in_share_of_steps": {
                f"rank {row['rank']}": row["share_of_steps"] for row in rows
            },
        },
    )


def _are_cores_short(context: RunContext) -> bool:
    """Whether there are more ranks than cores, as far as that is known."""
    cpu, cores = context.summary.system.cpu if context.summary.system else {}, context.cores()
    ranks = number_at(cpu, "ranks")
    return ranks is not None and cores is not None and ranks > cores


def _recoverable_share(context: RunContext, cause: str) -> float:
    """Returns the share that is gained: computing is only spread over all ranks."""
    ranks = _ranks(context)
    return (ranks - 1) / ranks if cause == _COMPUTING else 1.0


def _ranks(context: RunContext) -> int:
    return max(len(context.summary.ranks), context.summary.run.world_size or 0, 2)


def _cause(row: dict[str, Any]) -> str:
    phase = str(row["phase"])
    return _LOADING if phase in LOADER_KEYS else phase


def _seconds(rows: list[dict[str, Any]]) -> float:
    return float(sum(row["seconds"] for row in rows))


def _advice(cause: str, *, is_one: bool) -> tuple[str, str]:
    """Returns what to do, in short and in full."""
    if cause == _LOADING:
        equal = "shards of one size, and equal workers and disks on all ranks"
        varying = "batches of similar cost on all ranks, or a larger prefetch_factor"
        return "Balance data loading across ranks", equal if is_one else varying
    if cause == _COMPUTING:
        dealt = "sort samples by length and take order[rank::world_size]"
        return "Balance batches across ranks", dealt
    if is_one and cause == _EVALUATING:
        return (
            "Share evaluation among all ranks",
            "DistributedSampler(dataset, shuffle=False), then all_reduce the results",
        )
    return "", f"do this work less often{', or in a thread or process' if is_one else ''}"


def _place(context: RunContext, cause: str) -> tuple[str | None, list[str]]:
    """Returns the line where that rank spends it, and what that line takes."""
    if cause == _LOADING and context.feeding:
        return context.feeding[0].loader.site, []
    if cause == _EVALUATING:
        return _evaluated_at(context), []
    if cause == "checkpoint":
        return context.checkpoints.site, []
    line = python_line(context.summary) if cause == "other" else None
    if line is None or line.is_end:
        return None, []
    return line.site, [takes_of_it(line)]


def _evaluated_at(context: RunContext) -> str | None:
    """Returns the line that calls evaluation; where that is unknown, that of its loader."""
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
    traits=RuleTraits(
        gain_if="all ranks took the same time",
        of_all_parts=True,
        action="Balance the work of all ranks",
    ),
)
