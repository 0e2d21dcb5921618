"""The workers prepare batches more slowly than training uses them, and more workers would help.

What it means: all workers together prepare fewer batches a second than training could use. Cores
are free, or the workers mostly sleep: they wait for a disk, a network or a lock.

How it is measured: trainprof times `next` on the loader's iterator. It replays the recorded
preparation of each batch with more workers on the cores that the run may use. It counts the batches
of each worker: where one prepares most of them, the gain is that of an even split.

When it is wrong: workers that share one disk, server or lock wait longer when there are more of
them. Only an upper bound of the gain is reported then. Each worker needs memory of its own.

What to do: set num_workers as shown. If training needs the cores too, make the samples cheaper
instead. Give a stream one shard of equal size or more per worker, or every n-th sample to each
worker by get_worker_info(). serial_loading says what else changes with workers.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.findings.loading.loader_change import (
    WAITED_FROM,
    feeder_with_cause,
    gain_of_cause,
    loader_finding,
    waits_words,
)
from trainprof.findings.loading.more_workers import more_workers
from trainprof.findings.loading.waiting import (
    FAIR_SHARES,
    IDLE_WORKERS,
    TOO_FEW_WORKERS,
    batches_by_worker,
)
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import number_of


def find(context: RunContext) -> Finding | None:
    return _of_workers(context) or _of_shares(context)


def _of_shares(context: RunContext) -> Finding | None:
    """Returns that one worker prepares nearly all batches of a stream."""
    feeder = feeder_with_cause(context, RULE.id, IDLE_WORKERS)
    gain = None if feeder is None else gain_of_cause(context, feeder)
    if feeder is None or gain is None:
        return None
    prepared = batches_by_worker(feeder.loader)
    most = max(prepared.values()) / sum(prepared.values())
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"one of {feeder.loader.num_workers} workers prepares {percent(most)} of the batches: "
        f"{waits_words(context, feeder)}",
        gain,
        action="Split the data evenly across workers",
        advice="use at least N shards for N workers, or every N-th sample by get_worker_info()",
        evidence={"batches_by_worker": {str(number): n for number, n in prepared.items()}},
    )


def _of_workers(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, TOO_FEW_WORKERS)
    if feeder is None or feeder.measured is None:
        return None
    workers = number_of(feeder.loader.num_workers or 0, "worker")
    title = f"{workers} cannot keep up: {waits_words(context, feeder)}"
    return more_workers(context, feeder, RULE, title)


RULE: Final = Rule(
    id="too_few_workers",
    thresholds={
        **WAITED_FROM,
        "fair_shares": Threshold(FAIR_SHARES, "times an even share of the batches, by one worker"),
    },
    find=find,
    explanation=__doc__,
    order=30,
    by_timing=True,
    traits=RuleTraits(
        keys=["data_wait", "first_batch"],
        lines="without_change",
        action="Use more DataLoader workers",
    ),
    explained_by=("thread_count",),
    old_names=("idle_workers",),
)
