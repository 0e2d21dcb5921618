"""A few samples take so long that the batches behind them wait.

What it means: most samples are made fast enough. A few take many times longer, and since batches
are handed out in order, all that follow wait for them.

How it is measured: the time of single samples in fetches that took long, against the median of all
samples (those that begin a file of many are none); and the recorded making of batches played again
without those: the wait is mostly gone.

When it is wrong: where the slow ones are slow for another reason than themselves (a disk that
sleeps, a neighbour that takes the cores for a moment): then other samples are slow the next time.

What to do: look at the named samples (size, encoding, a retry, a missing file) and mend or leave
them out; shorten or cache those that are only large. Else `in_order=False` hands out what is ready,
in another order.
"""

from __future__ import annotations

import shlex
from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.changed_inputs import like_the_usual
from trainprof.analysis.diagnosis.gains import of_inputs
from trainprof.analysis.diagnosis.loader_change import WAITED_FROM, call_with, finding, of_cause
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import (
    SLOW_SAMPLES,
    SLOW_SAMPLES_SHARE,
)
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.facts import known
from trainprof.analysis.finding import Finding
from trainprof.analysis.loader_troubles import unusual_samples
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_samples"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = {
    **WAITED_FROM,
    "excess_share": Threshold(
        SLOW_SAMPLES_SHARE, "of all making; batches must mostly be in time without it"
    ),
}
_LEFT_OUT: Final = (
    "samples that are only large (long recordings) are missed where they are left out: shorten or "
    "cache those"
)


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, SLOW_SAMPLES)
    if fed is None or fed.inputs is None or fed.measured is None or fed.loader.fetch is None:
        return None
    gain = of_inputs(case, fed, like_the_usual(fed.inputs))
    slow, typical_s = unusual_samples(fed.loader.fetch), fed.loader.fetch.typical_sample_s
    if gain is None or not slow or not typical_s:
        return None
    index, slowest_s = known(slow[0].get("index")), known(slow[0].get("seconds")) or 0.0
    name = "one" if index is None else f"dataset[{index:.0f}]"
    title = (
        f"a few slow samples hold up all batches behind them: {name} takes {span(slowest_s)}, "
        f"{slowest_s / typical_s:.0f} x a typical one; training waits {percent(fed.wait_share)} of "
        "its time"
    )
    indices = [known(sample.get("index")) for sample in slow]
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice="mend or leave out the slow samples: "
        f"trainprof report {_name_of(case)} --loader {fed.loader.id} lists them",
        cautions=[_LEFT_OUT],
        also=_may_be_hidden(fed),
        evidence={
            "slowest_s": slowest_s,
            "typical_sample_s": typical_s,
            "slow_indices": [int(one) for one in indices if one is not None],
        },
    )


def _name_of(case: Case) -> str:
    """Returns how a command names the run."""
    run = case.summary.run
    return shlex.quote(run.directory or run.name)


def _may_be_hidden(fed: LoaderCase) -> list[str]:
    if fed.cause is None or fed.cause.setting is None:
        return []
    call = call_with(fed.loader, {"prefetch_factor": fed.cause.setting.prefetch})
    return [f"more batches ahead would hide most of them: {call}"]
