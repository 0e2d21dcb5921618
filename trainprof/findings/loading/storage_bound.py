"""Batches wait for the disk or the network file system that their data is read from.

What it means: the making of batches spends most of its time in the kernel, waiting for reads (or
much of it, with neither workers nor cores short), and more workers would not make them come faster.

How it is measured: the kernel's own account of the time that each fetch waited for block devices
(kernel.task_delayacct) or, where it keeps none, how often the process was met waiting for storage
during fetches that read, 25 times a second. Without bytes read, storage is never named.

When it is wrong: in the first epoch over data that afterwards stays in memory: look at the second.
File systems in user space (FUSE: many mounts of object stores) let a process sleep instead: their
reading is told as sleep.

What to do: keep the data in memory or on a faster disk, in fewer and larger files, or stored in a
smaller encoding. The line that most of the making goes to is named.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits
from trainprof.analysis.summary.levels import percent, size
from trainprof.analysis.summary.loader import Fetch, worker_totals
from trainprof.findings.gain import inputs_gain
from trainprof.findings.loading.loader_change import WAITED_FROM, feeder_with_cause, loader_finding
from trainprof.findings.loading.model_inputs import not_read
from trainprof.findings.loading.waiting import STORAGE, reading_share
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import waited_of_batch

# So many files are small (datapath-doctor: 16 to 64 KiB a read).
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
    advice = "the data in memory, on a faster disk, or smaller (another encoding)"
    if each is not None and each <= _SMALL_READ_BYTES:
        small = f"a read brings {each / 1024:.0f} KiB"
        advice = f"fewer and larger reads, for {small}: small files as one (tar, LMDB, Parquet)"
    title = (
        f"{percent(reading)} of making a batch is reading from disk, {size(batch_bytes)} a batch, "
        f"{rate}/s in all: training waits "
        f"{waited_of_batch(feeder.measured, feeder.wait_share)}, "
        f"{percent(feeder.wait_share)} of training"
    )
    return loader_finding(
        context,
        feeder,
        RULE.id,
        title,
        gain,
        advice=advice,
        evidence={
            "reading_share": reading,
            "read_bytes": fetch.read_bytes,
            "a_read_brings_bytes": each,
        },
        site=line.site if line else None,
    )


def _bytes_a_read(fetch: Fetch) -> float | None:
    """Returns what a call that reads brings from storage on average, by samples of the workers."""
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
    traits=RuleTraits(keys=["data_wait", "first_batch"]),
)
