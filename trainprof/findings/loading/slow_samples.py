"""A few samples, or batches, take long to prepare, and the batches behind them are late.

What it means: on average the workers keep up with training. But batches are delivered in order: a
slow one delays all that are ready behind it. Each worker keeps prefetch_factor batches ahead, 2 by
default.

How it is measured: the slowest samples against the median sample. Those that open a new file or
shard do not count. trainprof replays the recorded preparation without the slow ones, and most of
the wait goes. If no single samples are slow, it replays them with more batches ahead.

When it is wrong: a disk that sleeps, or another program that takes the cores for a moment, slows
other samples next time. If slow batches come close together, no buffer is long enough.

What to do: inspect the samples that the report lists (size, encoding, a retry, a missing file), and
fix or drop them. Shorten or cache those that are only large. For slow batches set prefetch_factor,
which needs memory, or sort lengths into buckets. in_order=False delivers what is ready first, in
another order.
"""

from __future__ import annotations

import shlex
from typing import Final

import numpy as np

from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.loader import unusual_samples
from trainprof.findings.gain import inputs_gain
from trainprof.findings.loading.loader_change import (
    WAITED_FROM,
    call_with,
    feeder_with_cause,
    gain_of_cause,
    loader_finding,
    waits_words,
)
from trainprof.findings.loading.model_inputs import like_the_usual
from trainprof.findings.loading.waiting import SLOW_SAMPLES, SLOW_SAMPLES_SHARE, UNEVEN
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span


def find(context: RunContext) -> Finding | None:
    return _of_samples(context) or _of_batches(context)


def _of_batches(context: RunContext) -> Finding | None:
    """Returns that prefetching more batches would bridge the slow ones."""
    feeder = feeder_with_cause(context, RULE.id, UNEVEN)
    gain = None if feeder is None else gain_of_cause(context, feeder)
    if feeder is None or feeder.inputs is None or feeder.cause is None or gain is None:
        return None
    assert feeder.cause.setting is not None
    usual_s, long_s = np.quantile(feeder.inputs.fetch_s, (0.5, 0.95)).tolist()
    change = {"prefetch_factor": feeder.cause.setting.prefetch}
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"batch preparation is uneven (median {span(usual_s)}, 5 % over {span(long_s)}): "
        f"{waits_words(context, feeder)}",
        gain,
        action="Prefetch more batches",
        advice=call_with(feeder.loader, change),
        change=change,
        evidence={"usual_batch_s": usual_s, "long_batch_s": long_s},
    )


def _of_samples(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, SLOW_SAMPLES)
    fetch = None if feeder is None else feeder.loader.fetch
    if feeder is None or feeder.inputs is None or fetch is None:
        return None
    gain = inputs_gain(context, feeder, like_the_usual(feeder.inputs))
    slow, typical_s = unusual_samples(fetch), fetch.typical_sample_s
    if gain is None or not slow or not typical_s:
        return None
    index, slowest_s = known(slow[0].get("index")), known(slow[0].get("seconds")) or 0.0
    name = "one" if index is None else f"dataset[{index:.0f}]"
    title = (
        f"a few slow samples delay all batches behind them: {name} takes {span(slowest_s)}, "
        f"{slowest_s / typical_s:.0f}x a typical sample"
    )
    indices, run = [known(sample.get("index")) for sample in slow], context.summary.run
    return loader_finding(
        context,
        feeder,
        RULE.id,
        title,
        gain,
        advice="list them: trainprof report "
        f"{shlex.quote(run.directory or run.name)} --loader {feeder.loader.id}",
        evidence={
            "slowest_s": slowest_s,
            "typical_sample_s": typical_s,
            "slow_indices": [int(x) for x in indices if x is not None],
        },
    )


RULE: Final = Rule(
    id="slow_samples",
    thresholds={
        **WAITED_FROM,
        "excess_share": Threshold(
            SLOW_SAMPLES_SHARE, "of all batch preparation; without it most batches must be in time"
        ),
    },
    find=find,
    explanation=__doc__,
    order=60,
    by_timing=True,
    traits=RuleTraits(keys=["data_wait", "first_batch"], action="Fix or drop the slow samples"),
    explained_by=("thread_count",),
    old_names=("uneven_batches",),
)
