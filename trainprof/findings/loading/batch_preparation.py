"""Preparing a batch around its samples: drawing its indices, asking for rows, putting together."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.loader import Loader
from trainprof.findings.gain import inputs_gain, outside_steps
from trainprof.findings.loading.loader_cautions import DRAWN_ANEW, needed_first, others_of_line
from trainprof.findings.loading.loader_change import (
    WAITED_FROM,
    by_base,
    feeder_with_cause,
    loader_finding,
    not_taken,
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
from trainprof.findings.wording import place, share_of, span, waited_of_batch

_BY_SAMPLE: Final = "sample_by_sample"
_SLOW_COLLATE: Final = "slow_collate"
_SLOW_SAMPLER: Final = "slow_sampler"
_TRAITS: Final = RuleTraits(keys=["data_wait", "first_batch"])

# torch's own samplers: that of shuffle=True, and that without it.
_SHUFFLES: Final = "RandomSampler"
_IN_ORDER: Final = "SequentialSampler"
# What stands in the arguments for something that the call as it is has.
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
        # What is advised is for it alone.
        replace(feeder, loader=replace(loader, also_builds=[])),
        _BY_SAMPLE,
        f"each batch is put together from {loader.batch_size} samples, asked for one by one, "
        f"{span(each_s)} each: training waits "
        f"{waited_of_batch(feeder.measured, feeder.wait_share)}, "
        f"{percent(feeder.wait_share)} of training",
        outside_steps(context, feeder.wait_share * context.training_s + started_s),
        advice=f"{first}{call_for_whole_batches(loader)}",
        alters=alters,
        cautions=cautions_of_whole_batches(loader),
        evidence={"sample_s": each_s, "samples_a_batch": fetch.samples / fetch.n},
        is_of_making=False,
    )


def call_for_whole_batches(loader: Loader) -> str:
    """Returns the call with which torch asks the dataset for a batch at once.

    With what has to go from the call as it is, for torch refuses it beside a sampler. Another
    loader of the same line may draw otherwise, or be of a dataset that takes no list.
    """
    asked = f"{loader.whole_batches or ''}{', num_workers=0' if loader.num_workers else ''}"
    named = [name for name in (_SHUFFLES, _IN_ORDER) if f"{name}(" in asked]
    kept = [f", with the {of} that it has now" for sign, of in _HAS_NOW.items() if sign in asked]
    gone = {"shuffle": _SHUFFLES in named, "drop_last": "drop_last=True" in asked}
    refused = " and ".join(name for name, is_gone in gone.items() if is_gone)
    call = f"{loader.kind}(..., {asked})"
    if not_taken(loader, ("sampler", "batch_size")):
        call = f"{asked} {by_base(loader)}"
    alone, stacked, stacks = "", "", list[str]()
    if loader.also_builds:
        alone = f"for this loader alone, as its line builds {others_of_line(loader)} too: "
    if loader.is_stackable:
        stacked = "dataset = TensorDataset(*default_collate(list(dataset))), once, then "
        stacks = ["TensorDataset", "default_collate"]
    imports = ", ".join(["BatchSampler", *named, *stacks])
    without = f", without {refused}" if refused else ""
    return (
        f"{alone}{stacked}{call}{''.join(kept)}{without} (from torch.utils.data import {imports})"
    )


def cautions_of_whole_batches(loader: Loader) -> list[str]:
    words = []
    if loader.is_stackable:
        words.append(
            "the samples are in memory twice then, unless the old dataset goes, and what changes "
            "in that later does not reach the tensors"
        )
    elif not loader.holds_tensors:
        words.append(
            "__getitem__ then gets a list of indices: self.x[indices] takes all of them at once; "
            "what it does to one sample has to be written for all"
        )
    if loader.sampler_takes_epoch:
        words.append(
            "loader.sampler is the BatchSampler then, which has no set_epoch: keep the sampler "
            "itself in a variable, and call set_epoch on that"
        )
    return words


def _slow_sampler(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, _SLOW_SAMPLER, SAMPLING)
    if feeder is None or feeder.inputs is None or feeder.measured is None:
        return None
    gain = inputs_gain(context, feeder, drawn_at_once(feeder.inputs))
    if gain is None:
        return None
    drawn_s, line = feeder.inputs.sampler_s, context.hot_line("data_wait")
    where = "" if line is None else f"; {place(line)} takes {share_of(line)} of the wait for data"
    return loader_finding(
        context,
        feeder,
        _SLOW_SAMPLER,
        f"drawing the indices of a batch takes {span(drawn_s)} of {span(feeder.measured.step_s)} "
        f"in the training process; training waits {percent(feeder.wait_share)} of its time",
        gain,
        advice=f"a sampler that works out beforehand what it needs; workers do not draw{where}",
        cautions=[DRAWN_ANEW],
        evidence={"sampler_per_batch_s": drawn_s},
        site=None if line is None else line.site,
        is_of_making=False,
    )


def _slow_collate(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, _SLOW_COLLATE, COLLATING)
    fetch = None if feeder is None else feeder.loader.fetch
    if feeder is None or feeder.inputs is None or feeder.measured is None or fetch is None:
        return None
    part, made, worked_s = collate_share(fetch), fetch.wall_s, feeder.loader.receive_cpu_s
    received_s = None if worked_s is None else worked_s / max(feeder.loader.iterations, 1)
    gain = inputs_gain(context, feeder, without_collate(feeder.inputs, part, received_s))
    if gain is None or made is None:
        return None
    return loader_finding(
        context,
        feeder,
        _SLOW_COLLATE,
        f"putting samples together takes {span(part * made.mean)} of the {span(made.mean)} that a "
        f"batch is made in, {percent(part)}; training waits {percent(feeder.wait_share)} "
        "of its time",
        gain,
        advice="a collate function that works on whole arrays",
        evidence={"collate_share": part, "collate_per_batch_s": part * made.mean},
        site=_site_of_collate(feeder),
    )


def _site_of_collate(feeder: Feeder) -> str | None:
    """Returns the line of the collate function that was met most, else where it begins."""
    begins, line = feeder.loader.collate_site, feeder.hot_line()
    if line is None or begins is None:
        return begins
    file = begins.rpartition(":")[0]
    is_inside = any(x.rpartition(":")[0] == file for x in (line.site, *line.called_from))
    # Who takes more than is left for the dataset is the collate function, or called by it.
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
        traits=_TRAITS,
        explanation="""\
Batches are put together from cheap samples, each of which is asked for by itself.

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
a TensorDataset first, once. shuffle and drop_last have to go from the call, for torch refuses them
beside a sampler: the named ones do that. A sampler that has set_epoch (DistributedSampler) is told
the epoch by itself from then on.""",
    ),
    Rule(
        id=_SLOW_COLLATE,
        thresholds={
            **WAITED_FROM,
            "collate_share": Threshold(COLLATE_SHARE, "most of making a batch"),
        },
        find=_slow_collate,
        order=300,
        traits=replace(_TRAITS, lines="always"),
        explanation="""\
Putting samples together into a batch takes longer than making the samples.

What it means: the loader's own collate function (padding, stacking, tokenizing in Python) is most
of the work on a batch. It runs where the batch is made: in the workers, or without them between the
steps. Only a function of the script's own counts, also where Hugging Face's Trainer keeps it in a
collator of its own.

How it is measured: the time from the call of the collate function to the end of each fetch, against
all of the fetch; and the recorded making of batches played again without it.

When it is wrong: where the function does what the dataset could not do any cheaper (reading a batch
in one go): then it is the batch that is slow, and not the putting together.

What to do: work on whole arrays instead of element by element (pad_sequence, torch.stack, one
tensor filled row by row), do once in the dataset what does not depend on the other samples, and
store what comes out the same each epoch.
trainprof tune tries whether more workers help as well.""",
    ),
    Rule(
        id=_SLOW_SAMPLER,
        thresholds=WAITED_FROM,
        find=_slow_sampler,
        order=310,
        traits=_TRAITS,
        explanation="""\
Drawing the indices of a batch costs the training process: workers do not draw.

What it means: the sampler's own code (weights, shuffling a huge list, a batch sampler that sorts)
runs in the training process at each batch, whatever the number of workers.

How it is measured: the time that the sampler's iterator takes inside `next` on the loader's.

When it is wrong: where the first batch alone is slow (a permutation drawn once per epoch): that is
in the first batch of a pass, not here.

What to do: draw all indices of an epoch at once, with torch or numpy, and hand them out; what is
random in them anew in each.""",
    ),
)
