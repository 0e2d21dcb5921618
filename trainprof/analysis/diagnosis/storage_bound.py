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
smaller encoding.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.changed_inputs import not_read
from trainprof.analysis.diagnosis.gains import of_inputs
from trainprof.analysis.diagnosis.loader_change import WAITED_FROM, finding, made_anew, of_cause
from trainprof.analysis.diagnosis.waiting import STORAGE, reading_share
from trainprof.analysis.diagnosis.wording import size, span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "storage_bound"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = WAITED_FROM


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, STORAGE)
    fetch = None if fed is None else fed.loader.fetch
    if fed is None or fed.inputs is None or fed.measured is None or fetch is None:
        return None
    gain = of_inputs(case, fed, not_read(fed.inputs))
    if gain is None or fetch.wall_s is None or not fetch.reading_s:
        return None
    reading, line = reading_share(fetch), fed.hot_line()
    batch_bytes = (fetch.read_bytes or 0) / fetch.n
    rate = size(batch_bytes / fed.measured.step_s)
    title = (
        f"{percent(reading)} of making a batch is reading from disk, {size(batch_bytes)} a batch, "
        f"{rate}/s in all: training waits {span(fed.measured.wait_s)} of "
        f"{span(fed.measured.step_s)} a batch, {percent(fed.wait_share)} of training"
    )
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice="the data in memory or on a faster disk, or in fewer and larger files",
        also=made_anew(case, fed),
        evidence={"reading_share": reading, "read_bytes": fetch.read_bytes},
        site=line.site if line and not line.is_likely else None,
    )
