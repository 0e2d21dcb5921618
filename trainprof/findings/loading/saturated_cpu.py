"""Making batches takes more of the CPU than there is: more workers would not help.

What it means: reading, decoding and augmenting keep the cores busy that the run may use, together
with training where that runs on the CPU too. Whoever makes the batches, they do not come faster; or
they are there in time, and what training computes takes longer for them.

How it is measured: where training waits, by the recorded making of each batch (its time on a core,
from the kernel) played through torch's pipeline with more workers on the same cores: the step
hardly changes. Else by how long computing with a batch takes beside workers that are at work, and
while they have nothing to do; where they always have, by the model, if they wait for a core for a
quarter of their time and no other programs have those.

When it is wrong: where other programs held the cores during this run; where the workers' libraries
started threads of their own that hinder each other (OpenCV, MKL: one thread each is enough).

What to do: make samples cheaper: the named function first. Decode smaller pictures, do on the
device what it does well, store what is computed again and again (resized pictures, tokens), or ask
for more cores. Fewer of torch's threads may help as well: trainprof tune measures it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from trainprof.analysis.pipeline.bounds import PipelineInputs
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.free_cores import shared_cpu
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import Gain, batches_gain, inputs_gain, outside_steps
from trainprof.findings.loading.loader_change import feeder_with_cause, loader_finding
from trainprof.findings.loading.model_inputs import without_running
from trainprof.findings.loading.more_workers import cheaper_samples
from trainprof.findings.loading.waiting import CPU, RUNNABLE_SHARE, UNKNOWN, runnable_share
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import number_of, waited_of_batch

# Other programs keep no more of the cores busy, where nothing but waiting for cores is known.
_OTHERS_SHARE: Final = 0.1
# Workers at work, as a mean: with fewer the training process has the cores to itself, with more it
# shares them.
_ALONE: Final = 0.05
_BESIDE: Final = 0.5
# Of batches of either kind: so many say something, from so large a part of the run.
_ENOUGH: Final = 5
_SPREAD: Final = 0.5


def find(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, CPU)
    least = RULE.threshold(context.settings, "wait_share")
    if feeder is not None and feeder.wait_share >= least:
        return _of_waits(context, feeder)
    # A device computes on no core.
    fed_by = () if context.is_on_device else context.feeding
    return next((result for x in fed_by if (result := _of_computing(context, x))), None)


def _of_waits(context: RunContext, feeder: Feeder) -> Finding | None:
    if feeder.inputs is None or feeder.measured is None:
        return None
    # Receiving and computing are slow for the same reason: the whole wait may go, and what
    # computing takes longer beside workers.
    crowding = None if context.is_on_device else crowding_of(feeder.inputs)
    beside_s = 0.0 if crowding is None else crowding.saved_s
    gains = (
        outside_steps(context, feeder.wait_share * context.training_s),
        inputs_gain(context, feeder, without_running(feeder.inputs)),
        batches_gain(context, feeder, feeder.measured.wait_s + beside_s),
    )
    gain = max((x for x in gains if x is not None), key=lambda x: x.likely)
    who = (
        "workers" if feeder.loader.num_workers else "the training process, which makes them itself"
    )
    title = (
        f"making batches needs more of the CPU than there is{_cores(context)} for {who}: training "
        f"waits {waited_of_batch(feeder.measured, feeder.wait_share)}, "
        f"{percent(feeder.wait_share)} of training; more workers would not help"
    )
    return _of_line(context, feeder, title, gain)


def _of_computing(context: RunContext, feeder: Feeder) -> Finding | None:
    """Returns that workers whose batches are in time take the cores that training computes on."""
    workers, waits = feeder.loader.num_workers or 0, runnable_share(feeder.loader.fetch)
    is_explained = feeder.cause is not None and feeder.cause.name != UNKNOWN
    if not workers or is_explained or feeder.inputs is None or feeder.measured is None:
        return None
    if waits < RULE.threshold(context.settings, "runnable_share"):
        return None
    gain = _gain(context, feeder, waits)
    least = RULE.threshold(context.settings, "share")
    if gain is None or 1 - 1 / gain.likely < least:
        return None
    crowding = crowding_of(feeder.inputs)
    alone_s, beside_s = (None, None) if crowding is None else crowding[:2]
    title = (
        f"training computes on the same cores as {number_of(workers, 'worker')}{_cores(context)}, "
        f"and a batch waits for one {percent(waits)} of its making"
    )
    numbers = {"runnable_share": waits, "alone_s": alone_s, "beside_s": beside_s}
    return _of_line(context, feeder, title, gain, **numbers)


def _gain(context: RunContext, feeder: Feeder, waits: float) -> Gain | None:
    assert feeder.inputs is not None
    crowding = crowding_of(feeder.inputs)
    if crowding is not None:
        return batches_gain(context, feeder, crowding.saved_s)
    cpu = shared_cpu(context.summary.system.cpu) if context.summary.system else None
    if waits < RUNNABLE_SHARE or cpu is None or cpu.others_share > _OTHERS_SHARE:
        return None
    return inputs_gain(context, feeder, without_running(feeder.inputs))


def _of_line(
    context: RunContext, feeder: Feeder, title: str, gain: Gain, **evidence: float | None
) -> Finding:
    line = feeder.hot_line()
    return loader_finding(
        context,
        feeder,
        RULE.id,
        title,
        gain,
        advice=cheaper_samples(line, feeder.loader),
        evidence=evidence,
        site=line.site if line is not None else None,
    )


def _cores(context: RunContext) -> str:
    cores, system = context.cores(), context.summary.system
    if system is not None and system.bound_to:
        return f" on the {system.bound_to} that the script is bound to"
    return "" if cores is None else f" on {cores:.3g} core{'' if cores == 1 else 's'}"


class Crowding(NamedTuple):
    """Medians of computing with a batch, without workers at work and beside them.

    `saved_s`: Of a mean batch, were none computed with beside workers.
    """

    alone_s: float
    beside_s: float
    saved_s: float


def crowding_of(inputs: PipelineInputs) -> Crowding | None:
    """Returns by how much workers that are at work slow computing.

    None where too few batches were computed with either way, or as fast, so far as steps wander.
    """
    busy, compute_s = inputs.workers_busy, inputs.compute_s
    if busy is None or len(busy) != len(compute_s):
        return None
    # The first batch of a pass finds cold caches, the last may be a smaller one.
    place = np.arange(len(busy)) % max(inputs.batches, 1)
    is_inner = (place > 0) & (place < inputs.batches - 1)
    alone = np.flatnonzero(is_inner & (busy < _ALONE))
    beside = np.flatnonzero(is_inner & (busy >= _BESIDE))
    if min(len(alone), len(beside)) < _ENOUGH or np.ptp(alone) < _SPREAD * len(busy):
        return None
    # What comes every so many batches is in neither median.
    alone_s, slowest_alone_s = np.quantile(compute_s[alone], (0.5, 0.75)).tolist()
    fastest_s, beside_s = np.quantile(compute_s[beside], (0.25, 0.5)).tolist()
    if slowest_alone_s >= fastest_s:
        return None
    saved_s = float((busy[is_inner] >= _ALONE).mean()) * (beside_s - alone_s)
    return Crowding(alone_s, beside_s, saved_s)


RULE: Final = Rule(
    id="saturated_cpu",
    thresholds={
        # Cores cannot be had by changing a line: less than that is not worth the words.
        "wait_share": Threshold(0.1, "as `share`"),
        "runnable_share": Threshold(0.1, "of the making of batches in time, waiting for a core"),
        "share": Threshold(0.1, "of a batch's time: what computing takes longer beside workers"),
    },
    find=find,
    explanation=__doc__,
    order=40,
    by_timing=True,
    traits=RuleTraits(keys=["data_wait", "first_batch"], lines="always"),
    # Cores that are full of waiting threads are not left for the making of batches.
    explained_by=("thread_count",),
    old_names=("crowded_cores",),
)
