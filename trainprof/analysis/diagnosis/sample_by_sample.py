"""Batches are put together from cheap samples, each of which is asked for by itself.

What it means: the data lies in memory. torch asks the dataset for each sample of a batch, and puts
them together again: what that takes of Python is nearly all that a batch takes. Tensors and arrays
give out many of their rows at once in a fraction of it. Workers do not help: handing a batch over
costs as much.

How it is measured: the time inside `next` on the loader's iterator, as a share of the training
phase, and the making of a batch by its samples.

When it is wrong: where a sample needs work of its own after all (random augmentation, a lookup in a
dict), which a list of indices does not spare it.

What to do: let torch ask for whole batches, by the named arguments. The dataset's __getitem__ then
gets a list of indices; torch's TensorDataset takes one as it is, and the batches stay the same, in
the same order. A list of samples or a ConcatDataset takes none: one of tensors and numbers is made
a TensorDataset first, once; of others nothing is said. shuffle and drop_last have to go from the
call, for torch refuses them beside a sampler: the named ones do that. A sampler or generator that
the call has goes into them, and one that has set_epoch (DistributedSampler) is told the epoch by
itself from then on. Where the line builds other loaders, too (a function called for training and
for evaluation), the change is for the one alone: the others may not be shuffled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.loader_cautions import needed_first
from trainprof.analysis.diagnosis.loader_change import finding, of_cause
from trainprof.analysis.diagnosis.needless_workers import WITHOUT
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import (
    CHEAP_SAMPLE_S,
    SAMPLE_BY_SAMPLE,
    SAMPLE_BY_SAMPLE_SHARE,
)
from trainprof.analysis.diagnosis.whole_batches_call import (
    call_for_whole_batches,
    cautions_of_whole_batches,
)
from trainprof.analysis.diagnosis.wording import span, waited_of_batch
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "sample_by_sample"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = {
    "wait_share": Threshold(SAMPLE_BY_SAMPLE_SHARE, "of training: TraceML warns from there on"),
    "sample_s": Threshold(
        CHEAP_SAMPLE_S, "what a row of a tensor takes at most, with collating", is_upper=True
    ),
}


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, SAMPLE_BY_SAMPLE)
    if fed is None or fed.measured is None:
        return None
    loader, fetch = fed.loader, fed.loader.fetch
    if fetch is None or fetch.wall_s is None or not fetch.samples or not loader.whole_batches:
        return None
    each_s = fetch.wall_s.mean * fetch.n / fetch.samples
    title = (
        f"each batch is put together from {loader.batch_size} samples, asked for one by one, "
        f"{span(each_s)} each: training waits "
        f"{waited_of_batch(fed.measured, fed.wait_share)}, {percent(fed.wait_share)} of training"
    )
    alters = WITHOUT if loader.num_workers else {}
    workers = ", num_workers=0" if alters else ""
    first = "".join(f"{one}, then " for one in needed_first(loader, alters))
    waited_s = fed.wait_share * case.training_s
    started_s = fed.starts_s if loader.num_workers else 0.0
    return finding(
        case,
        # What is advised is for it alone.
        replace(fed, loader=replace(loader, also_builds=[])),
        ID,
        title,
        outside_steps(case, waited_s + started_s),
        advice=f"{first}{call_for_whole_batches(loader, workers)}",
        alters=alters,
        cautions=cautions_of_whole_batches(loader),
        evidence={"sample_s": each_s, "samples_a_batch": fetch.samples / fetch.n},
        is_of_making=False,
    )
