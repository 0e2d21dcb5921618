"""The training process prepares each batch itself, and trains nothing during that time.

What it means: the loader has num_workers=0. Loading a batch and training on it take turns, though
other CPU cores are free.

How it is measured: trainprof times `next` on the loader's iterator. It replays the recorded
preparation of each batch with 1, 2, 3, ... workers on the cores that the run may use. The start of
the workers counts against the gain. Loaders that one line builds one after the other count as one.

When it is wrong: the prediction is a model. A batch can cost more in a worker: large batches are
copied, and some libraries are not safe to fork. Where batches wait for a disk, a server or a lock,
only an upper bound is reported. Each rank, and each loader of the same line, starts workers of its
own: they need memory and room in /dev/shm (docker gives 64 MiB).

What to do: set num_workers as shown. persistent_workers=True keeps the workers between epochs.
Workers get copies of the dataset: a change that the training process makes later does not reach
them. They draw other random numbers, and with persistent workers so does shuffling from the second
epoch on. torch seeds only the global generators: seed one that the dataset keeps in worker_init_fn.
Split an IterableDataset by get_worker_info(), which returns nothing in the training process. Open
files and connections in __getitem__. Move .to(device) into the training loop. If training needs all
cores, make the samples cheaper instead: open or parse no file twice, and cache what stays the same.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits
from trainprof.findings.loading.loader_change import WAITED_FROM, feeder_with_cause, waits_words
from trainprof.findings.loading.more_workers import more_workers
from trainprof.findings.loading.waiting import SERIAL
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext


def find(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, SERIAL)
    if feeder is None or feeder.measured is None:
        return None
    waits = waits_words(context, feeder)
    title = f"the loader runs in the training process (num_workers=0): {waits}"
    return more_workers(context, feeder, RULE, title)


RULE: Final = Rule(
    id="serial_loading",
    thresholds=WAITED_FROM,
    find=find,
    explanation=__doc__,
    order=10,
    traits=RuleTraits(
        keys=["data_wait", "first_batch"],
        lines="without_change",
        action="Load data in worker processes",
    ),
)
