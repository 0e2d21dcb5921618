"""The training process makes each batch itself, and computes nothing meanwhile.

What it means: the loader has num_workers=0. Reading, decoding and augmenting a batch, and training
on it, take turns, though other cores are free.

How it is measured: the time inside `next` on the loader's iterator, as a share of the training
phase, and the recorded making of each batch played through torch's pipeline with 1, 2, 3, ...
workers on the cores that the run may use, of which several ranks on a host have a part each; where
a GPU trains, for steps no shorter than it takes. What workers take to start is charged to the whole
run, by the way in which they are started (spawn: seconds).

What is counted: loaders of one line over many files, one after the other, as one. Of a loader that
feeds a part of the steps only, the gain is told of all steps.

When it is wrong: where making a batch on a worker costs more than it does here (large batches that
have to be copied, datasets that cannot be pickled or forked, libraries that are not safe to fork).
The prediction is a model of this run, not a measurement: where batches wait for a disk, or mostly
sleep, only its upper end is told, for nobody knows what a disk, a server or a lock gives to more
workers at once.

What to do: give the loader the named number of workers; persistent_workers=True keeps them from
being started again in each epoch. Where training keeps the cores busy itself, workers may take as
much from it as they give: then make samples cheaper, the named function first: a query without an
index, a file that is opened or parsed again for each sample. Where each step asks several loaders,
the gain is that with the others as they are.

What has to be done first is said, and no patch is made then. Where an iterator is made for each
step (next(iter(loader))): one iterator, kept. Where each worker of an IterableDataset would give
all of it, for the script nowhere asks get_worker_info(): a share for each; a loader that repeats
its samples so already is said to. Where the dataset holds a file, a video or a connection open
(h5py, zip, cv2, sqlite3, psycopg and the like): open it in __getitem__, for forked workers would
share its place. Where workers are spawned: make a lambda or a local class picklable. Where the
dataset or the collate function copies to the device: move that into the loop, for a forked worker
cannot, and what is on a device cannot be pinned.

What is noted: a random generator that the dataset keeps (self.rng), of which workers have equal
copies, as torch seeds the global ones alone. A stream of Hugging Face's gets no more workers than
it has shards. Where training changes the dataset between epochs, workers are not advised to be
persistent (see worker_restart). A loader class of the script's own that does not take an argument
is given it where its constructor calls its base's. No run is searched for the rest: each rank, and
each loader that the same line builds, has workers of its own, with their memory and batches in
/dev/shm (docker gives 64 MiB); workers have copies of the dataset; and a sampler that learns from
training is ahead of it by the batches that wait.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits
from trainprof.analysis.summary.levels import percent
from trainprof.findings.loading.loader_change import WAITED_FROM, feeder_with_cause
from trainprof.findings.loading.more_workers import more_workers
from trainprof.findings.loading.waiting import SERIAL
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import waited_of_batch


def find(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, SERIAL)
    if feeder is None or feeder.measured is None:
        return None
    title = (
        f"the training process makes its batches itself (num_workers=0) and waits "
        f"{waited_of_batch(feeder.measured, feeder.wait_share)} for it, "
        f"{percent(feeder.wait_share)} of training"
    )
    return more_workers(context, feeder, RULE, title)


RULE: Final = Rule(
    id="serial_loading",
    thresholds=WAITED_FROM,
    find=find,
    explanation=__doc__,
    order=10,
    traits=RuleTraits(keys=["data_wait", "first_batch"], lines="without_change"),
)
