"""Workers make batches more slowly than training takes them, and there is room for more of them.

What it means: all workers together make fewer batches a second than training could use, while cores
are free or the workers mostly sleep (waiting for a disk, a network, a lock).

How it is measured: the time inside `next` on the loader's iterator, as a share of the training
phase, and the recorded making of each batch played through torch's pipeline with more workers on
the cores that the run may use, of which several ranks on a host have a part each. Of workers that
have nothing to do: how many batches each made; the gain is that of batches spread evenly.

When it is wrong: where all workers share what they wait for (one disk, one server, one lock): more
of them then wait longer. There only the upper end of the gain is told. Each worker takes memory of
its own.

What to do: give the loader the named number of workers. Where training keeps the cores busy itself,
more of them may take as much from it as they give: then make samples cheaper, the named function
first. Where each step asks several loaders, the gain is that with the others as they are. What
has to be done first, what is minded, and how loaders are counted: as serial_loading says. Of a
stream: at least as many shards as workers, of one size, or every n-th sample for each worker, by
get_worker_info().
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
from trainprof.findings.wording import waited_of_batch


def find(context: RunContext) -> Finding | None:
    return _of_workers(context) or _of_shares(context)


def _of_shares(context: RunContext) -> Finding | None:
    """Returns that one worker makes nearly all batches of a stream."""
    feeder = feeder_with_cause(context, RULE.id, IDLE_WORKERS)
    gain = None if feeder is None else gain_of_cause(context, feeder)
    if feeder is None or gain is None:
        return None
    made = batches_by_worker(feeder.loader)
    most = max(made.values()) / sum(made.values())
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"one of {feeder.loader.num_workers} workers makes {percent(most)} of the batches, the "
        f"dataset gives the others little: training waits {percent(feeder.wait_share)} of its time",
        gain,
        advice="share the data out evenly: as many shards as workers, or every n-th sample, by "
        "get_worker_info()",
        evidence={"batches_by_worker": {str(number): n for number, n in made.items()}},
    )


def _of_workers(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, TOO_FEW_WORKERS)
    if feeder is None or feeder.measured is None:
        return None
    workers = feeder.loader.num_workers
    has = "1 worker makes" if workers == 1 else f"{workers} workers make"
    title = (
        f"{has} batches more slowly than training takes them: it waits "
        f"{waited_of_batch(feeder.measured, feeder.wait_share)}, "
        f"{percent(feeder.wait_share)} of training"
    )
    return more_workers(context, feeder, RULE, title)


RULE: Final = Rule(
    id="too_few_workers",
    thresholds={
        **WAITED_FROM,
        "fair_shares": Threshold(FAIR_SHARES, "of the batches, made by one worker"),
    },
    find=find,
    explanation=__doc__,
    order=30,
    by_timing=True,
    traits=RuleTraits(keys=["data_wait", "first_batch"], lines="without_change"),
    explained_by=("thread_count",),
    old_names=("idle_workers",),
)
