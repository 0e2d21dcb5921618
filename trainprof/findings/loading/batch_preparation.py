"""What a batch costs around its samples: drawing indices, fetching one by one, collating."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.loader import Loader
from trainprof.findings.gain import inputs_gain, outside_steps
from trainprof.findings.loading.loader_cautions import RANDOM_AGAIN, needed_first, others_of_line
from trainprof.findings.loading.loader_change import (
    WAITED_FROM,
    by_base,
    feeder_with_cause,
    loader_finding,
    not_taken,
    step_words,
    waits_words,
)
from trainprof.findings.loading.model_inputs import drawn_at_once, without_collate
from trainprof.findings.loading.waiting import (
    CHEAP_SAMPLE_S,
    COLLATE_SHARE,
    COLLATING,
    SAMPLE_BY_SAMPLE,
    SAMPLE_BY_SAMPLE_SHARE,
    SAMPLING,
    collate_share,
)
from trainprof.findings.loading.worker_restart import WITHOUT
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import place, share_of, span

_BY_SAMPLE: Final = "sample_by_sample"
_SLOW_COLLATE: Final = "slow_collate"
_SLOW_SAMPLER: Final = "slow_sampler"
_KEYS: Final = ["data_wait", "first_batch"]

# torch's samplers: with shuffle=True, and without it.
_SHUFFLES: Final = "RandomSampler"
_IN_ORDER: Final = "SequentialSampler"
# What the arguments have of the present call.
_HAS_NOW: Final = {"BatchSampler(sampler,": "sampler", "generator=...": "generator"}


def _sample_by_sample(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, _BY_SAMPLE, SAMPLE_BY_SAMPLE)
    if feeder is None or feeder.measured is None:
        return None
    loader, fetch = feeder.loader, feeder.loader.fetch
    if fetch is None or fetch.wall_s is None or not fetch.samples or not loader.whole_batches:
        return None
    each_s = fetch.wall_s.mean * fetch.n / fetch.samples
    alters = WITHOUT if loader.num_workers else {}
    first = "".join(f"{alter}, then " for alter in needed_first(loader, alters))
    started_s = feeder.starts_s if loader.num_workers else 0.0
    return loader_finding(
        context,
        # The advice is for this loader alone.
        replace(feeder, loader=replace(loader, also_builds=[])),
        _BY_SAMPLE,
        f"{loader.batch_size} samples per batch are fetched one by one, {span(each_s)} each: "
        f"{waits_words(context, feeder)}",
        outside_steps(context, feeder.wait_share * context.training_s + started_s),
        advice=f"{first}{call_for_whole_batches(loader)}",
        alters=alters,
        cautions=cautions_of_whole_batches(loader),
        also=[f"from torch.utils.data import {', '.join(_imports(loader))}"],
        evidence={"sample_s": each_s, "samples_a_batch": fetch.samples / fetch.n},
        is_of_making=False,
    )


def call_for_whole_batches(loader: Loader) -> str:
    """Returns the call with which torch fetches a batch at once from the dataset.

    Another loader of the same line may draw otherwise, or have a dataset that takes no list.
    """
    asked = f"{loader.whole_batches or ''}{', num_workers=0' if loader.num_workers else ''}"
    call = f"{loader.kind}(..., {asked})"
    if not_taken(loader, ("sampler", "batch_size")):
        call = f"{asked} {by_base(loader)}"
    stacked = "dataset = TensorDataset(*default_collate(list(dataset))), then "
    return f"{stacked if loader.is_stackable else ''}{call}"


def _imports(loader: Loader) -> list[str]:
    asked = loader.whole_batches or ""
    stacks = ["TensorDataset", "default_collate"] if loader.is_stackable else []
    return ["BatchSampler", *(x for x in (_SHUFFLES, _IN_ORDER) if f"{x}(" in asked), *stacks]


def cautions_of_whole_batches(loader: Loader) -> list[str]:
    """Returns what the call needs besides: torch refuses some arguments next to a sampler."""
    asked, words = loader.whole_batches or "", []
    gone = {"shuffle": f"{_SHUFFLES}(" in asked, "drop_last": "drop_last=True" in asked}
    if refused := " and ".join(name for name, is_gone in gone.items() if is_gone):
        words.append(f"remove {refused} from the call: torch refuses it next to a sampler")
    if not loader.is_stackable and not loader.holds_tensors:
        words.append(
            "__getitem__ then gets a list of indices: rewrite it to return self.x[indices]"
        )
    if loader.also_builds:
        words.append(f"the line also builds {others_of_line(loader)}, which should stay as it was")
    if kept := " and ".join(of for sign, of in _HAS_NOW.items() if sign in asked):
        words.append(f"pass the {kept} that the loader has now")
    if loader.sampler_takes_epoch:
        words.append("call set_epoch on that sampler, no longer on loader.sampler")
    if loader.is_stackable:
        words.append("later changes to the old dataset do not reach the tensors")
    return words


def _slow_sampler(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, _SLOW_SAMPLER, SAMPLING)
    if feeder is None or feeder.inputs is None or feeder.measured is None:
        return None
    gain = inputs_gain(context, feeder, drawn_at_once(feeder.inputs))
    if gain is None:
        return None
    drawn_s, line = feeder.inputs.sampler_s, context.hot_line("data_wait")
    takes = [] if line is None else [f"{place(line)} takes {share_of(line)} of the wait for data"]
    return loader_finding(
        context,
        feeder,
        _SLOW_SAMPLER,
        f"the sampler takes {span(drawn_s)} of each {step_words(context, feeder)}, in the training "
        "process",
        gain,
        advice="draw all indices of an epoch at once, with torch or numpy",
        cautions=[RANDOM_AGAIN],
        also=[*takes, "workers would not help: they do not draw indices"],
        evidence={"sampler_per_batch_s": drawn_s},
        site=None if line is None else line.site,
        is_of_making=False,
    )


def _slow_collate(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, _SLOW_COLLATE, COLLATING)
    fetch = None if feeder is None else feeder.loader.fetch
    if feeder is None or feeder.inputs is None or feeder.measured is None or fetch is None:
        return None
    part, prepared, worked_s = collate_share(fetch), fetch.wall_s, feeder.loader.receive_cpu_s
    received_s = None if worked_s is None else worked_s / max(feeder.loader.iterations, 1)
    gain = inputs_gain(context, feeder, without_collate(feeder.inputs, part, received_s))
    if gain is None or prepared is None:
        return None
    return loader_finding(
        context,
        feeder,
        _SLOW_COLLATE,
        f"collate_fn takes {span(part * prepared.mean)} of the {span(prepared.mean)} that a batch "
        f"takes to prepare ({percent(part)}): {waits_words(context, feeder)}",
        gain,
        advice="work on whole arrays in collate_fn: pad_sequence, torch.stack",
        evidence={"collate_share": part, "collate_per_batch_s": part * prepared.mean},
        site=_site_of_collate(feeder),
    )


def _site_of_collate(feeder: Feeder) -> str | None:
    """Returns the hottest line of the collate function, else where the function begins."""
    begins, line = feeder.loader.collate_site, feeder.hot_line()
    if line is None or begins is None:
        return begins
    file = begins.rpartition(":")[0]
    is_inside = any(x.rpartition(":")[0] == file for x in (line.site, *line.called_from))
    # What takes more than the dataset's share is the collate function, or called by it.
    is_its_own = line.share > 1 - collate_share(feeder.loader.fetch)
    return line.site if is_inside and is_its_own else begins


RULES: Final = (
    Rule(
        id=_BY_SAMPLE,
        thresholds={
            "wait_share": Threshold(
                SAMPLE_BY_SAMPLE_SHARE, "of training: TraceML warns from there on"
            ),
            "sample_s": Threshold(
                CHEAP_SAMPLE_S,
                "what a row of a tensor takes at most, with collating",
                is_upper=True,
            ),
        },
        find=_sample_by_sample,
        order=290,
        traits=RuleTraits(keys=_KEYS, action="Fetch each batch in one call"),
        explanation="""\
Batches are put together from cheap samples that are fetched one by one.

What it means: the data is in memory. torch asks the dataset for each sample of a batch and collates
them: this Python overhead is nearly all that a batch costs. Tensors and arrays return many rows at
once in a fraction of that time. Workers do not help: the IPC transfer of a batch costs the same.

How it is measured: trainprof times `next` on the loader's iterator, and divides the preparation of
a batch by its samples.

When it is wrong: a sample may need work of its own, such as random augmentation or a lookup in a
dict. A list of indices does not save that.

What to do: pass a BatchSampler as sampler=, with batch_size=None. The dataset's __getitem__ then
gets a list of indices. A TensorDataset takes it unchanged, and the batches stay the same, in the
same order. A list of samples or a ConcatDataset does not: convert it to a TensorDataset once.
Remove shuffle and drop_last, which torch refuses next to a sampler. Keep a DistributedSampler in a
variable of its own: loader.sampler then is the BatchSampler, which has no set_epoch.""",
    ),
    Rule(
        id=_SLOW_COLLATE,
        thresholds={
            **WAITED_FROM,
            "collate_share": Threshold(COLLATE_SHARE, "most of batch preparation"),
        },
        find=_slow_collate,
        order=300,
        traits=RuleTraits(keys=_KEYS, lines="always", action="Make the collate function faster"),
        explanation="""\
Collating samples into a batch takes longer than preparing the samples.

What it means: your collate function (padding, stacking, tokenizing in Python) is most of the work
on a batch. It runs in the workers, or between the steps with num_workers=0. A function counts only
if it is yours, also inside a collator of Hugging Face's Trainer.

How it is measured: the time from the call of the collate function to the end of each fetch, as a
share of the fetch. trainprof replays the recorded preparation of batches without it.

When it is wrong: the function may do what the dataset could not do faster, such as reading a batch
in one call.

What to do: work on whole arrays instead of single elements: pad_sequence, torch.stack, or one
tensor filled row by row. Do in the dataset, once, what does not depend on the other samples. Store
what stays the same each epoch. trainprof tune measures whether more workers help as well.""",
    ),
    Rule(
        id=_SLOW_SAMPLER,
        thresholds=WAITED_FROM,
        find=_slow_sampler,
        order=310,
        traits=RuleTraits(keys=_KEYS, action="Draw the epoch's indices at once"),
        explanation="""\
The sampler costs the training process time at each batch: workers do not draw indices.

What it means: the code of the sampler runs in the training process, whatever num_workers is. Slow
ones compute weights, shuffle a huge list, or sort batches by length.

How it is measured: the time of the sampler's iterator inside `next` on the loader's.

When it is wrong: only the first batch may be slow, as with a permutation drawn once per epoch. That
time counts as first batch, not here.

What to do: draw all indices of an epoch at once, with torch or numpy, and yield them one by one.
Draw again in each epoch what is random.""",
    ),
)
