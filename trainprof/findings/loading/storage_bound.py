"""Batch preparation waits for the disk or the network file system that holds the data.

What it means: most of batch preparation is waiting for reads, or much of it while neither workers
nor cores are short. More workers would not help.

How it is measured: the kernel reports how long each fetch waited for block devices
(kernel.task_delayacct). Without that, trainprof samples 25 times a second whether the process waits
for storage. Storage is never named unless bytes were read.

When it is wrong: the first epoch may read data that stays in memory afterwards: see the second one.
With FUSE file systems (many mounts of object stores) the process sleeps instead: reads count as
sleep.

What to do: keep the data in memory or on a faster disk, in fewer and larger files, or in a smaller
encoding. The finding names the line that takes most of the preparation.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits
from trainprof.analysis.summary.levels import percent, size
from trainprof.analysis.summary.loader import Fetch, worker_totals
from trainprof.findings.gain import inputs_gain
from trainprof.findings.loading.loader_change import (
    WAITED_FROM,
    feeder_with_cause,
    loader_finding,
    waits_words,
)
from trainprof.findings.loading.model_inputs import not_read
from trainprof.findings.loading.waiting import STORAGE, reading_share
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

# Up to here reads are small (datapath-doctor: 16 to 64 KiB a read).
_SMALL_READ_BYTES: Final = 64 << 10


def find(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, STORAGE)
    fetch = None if feeder is None else feeder.loader.fetch
    if feeder is None or feeder.inputs is None or feeder.measured is None or fetch is None:
        return None
    gain = inputs_gain(context, feeder, not_read(feeder.inputs))
    if gain is None or fetch.wall_s is None or not fetch.reading_s:
        return None
    reading, line = reading_share(fetch), feeder.hot_line()
    batch_bytes = (fetch.read_bytes or 0) / fetch.n
    rate = size(batch_bytes / feeder.measured.step_s)
    each = _bytes_a_read(fetch)
    action, advice = "", "keep the data in memory, on a faster disk, or in a smaller encoding"
    if each is not None and each <= _SMALL_READ_BYTES:
        action = "Read fewer, larger files"
        advice = f"pack small files into one (tar, LMDB, Parquet): a read is {each / 1024:.0f} KiB"
    title = (
        f"{percent(reading)} of batch preparation is disk reads, {size(batch_bytes)} a batch at "
        f"{rate}/s: {waits_words(context, feeder)}"
    )
    return loader_finding(
        context,
        feeder,
        RULE.id,
        title,
        gain,
        action=action,
        advice=advice,
        evidence={
            "reading_share": reading,
            "read_bytes": fetch.read_bytes,
            "a_read_brings_bytes": each,
        },
        site=line.site if line else None,
    )


def _bytes_a_read(fetch: Fetch) -> float | None:
    """Returns the bytes from storage per call that reads, a mean by samples of the workers."""
    rows = worker_totals(fetch.per_worker)
    read, calls = (
        sum(row.figures[name] or 0.0 for row in rows)
        for name in ("read_bytes_per_s", "read_calls_per_s")
    )
    return read / calls if read > 0 and calls > 0 else None


RULE: Final = Rule(
    id="storage_bound",
    thresholds=WAITED_FROM,
    find=find,
    explanation=__doc__,
    order=50,
    by_timing=True,
    traits=RuleTraits(keys=["data_wait", "first_batch"], action="Read the data faster"),
)
