"""A few samples, or batches, take so long that the batches behind them wait.

What it means: on average the workers keep up with training. But batches are handed out in order, so
that one which takes long holds up all that are made behind it, and what was ready is used up
meanwhile. Each worker keeps prefetch_factor batches ahead (2, where nothing is said).

How it is measured: the time of single samples in fetches that took long, against the median of all
samples (those that begin a file of many are none); and the recorded making of batches played again
without those: the wait is mostly gone. Where no few samples are slow: with the same workers and
more batches ahead most of the wait goes.

When it is wrong: where the slow ones are slow for another reason than themselves (a disk that
sleeps, a neighbour that takes the cores for a moment): then other samples are slow the next time.
Where long batches come close together, no buffer lasts.

What to do: look at the named samples (size, encoding, a retry, a missing file) and mend or leave
them out; shorten or cache those that are only large. Of long batches: the named prefetch_factor,
which takes memory for those that wait; or batches of more even cost (lengths sorted into buckets).
Else `in_order=False` hands out what is ready, in another order.
"""

from __future__ import annotations

import shlex
from typing import Final

import numpy as np

from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.loader import unusual_samples
from trainprof.findings.gain import inputs_gain
from trainprof.findings.loading.loader_change import (
    WAITED_FROM,
    call_with,
    feeder_with_cause,
    gain_of_cause,
    loader_finding,
)
from trainprof.findings.loading.model_inputs import like_the_usual
from trainprof.findings.loading.waiting import SLOW_SAMPLES, SLOW_SAMPLES_SHARE, UNEVEN
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span


def find(context: RunContext) -> Finding | None:
    return _of_samples(context) or _of_batches(context)


def _of_batches(context: RunContext) -> Finding | None:
    """Returns that more batches ahead would bridge the long ones."""
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
        f"batches take unevenly long to make (half of them under {span(usual_s)}, one in twenty "
        f"over {span(long_s)}), and those kept ready run out: training waits "
        f"{percent(feeder.wait_share)} of its time",
        gain,
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
        f"a few slow samples hold up all batches behind them: {name} takes {span(slowest_s)}, "
        f"{slowest_s / typical_s:.0f} x a typical one; training waits {percent(feeder.wait_share)} "
        "of its time"
    )
    indices, run = [known(sample.get("index")) for sample in slow], context.summary.run
    return loader_finding(
        context,
        feeder,
        RULE.id,
        title,
        gain,
        advice="mend or leave out the slow samples: "
        f"trainprof report {shlex.quote(run.directory or run.name)} --loader {feeder.loader.id} "
        "lists them",
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
            SLOW_SAMPLES_SHARE, "of all making; batches must mostly be in time without it"
        ),
    },
    find=find,
    explanation=__doc__,
    order=60,
    by_timing=True,
    traits=RuleTraits(keys=["data_wait", "first_batch"]),
    explained_by=("thread_count",),
    old_names=("uneven_batches",),
)
