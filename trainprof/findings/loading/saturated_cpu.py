"""Batch preparation needs more CPU than there is: more workers would not help.

What it means: reading, decoding and augmenting keep all cores busy that the run may use, together
with training if that runs on the CPU. Either batches are late, or they are in time and slow down
training on the same cores.

How it is measured: trainprof replays the recorded preparation of each batch (its CPU time, from the
kernel) with more workers on the same cores: steps hardly get shorter. Or it compares steps computed
while workers are busy with steps computed while they are idle. If they are never idle, waiting for
a CPU core in the run queue counts, unless other programs use the cores.

When it is wrong: other programs may have used the cores in this run. The workers' libraries may
have started threads that hinder each other: one thread each is enough for OpenCV and MKL.

What to do: make samples cheaper, starting at the named function. Decode smaller images, move to the
device what it does well, store what is computed again each epoch (resized images, tokens), or use
more cores. Fewer torch threads may help as well: trainprof tune measures it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from trainprof.analysis.pipeline.bounds import PipelineInputs
from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.free_cores import shared_cpu
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import Gain, batches_gain, inputs_gain, outside_steps
from trainprof.findings.loading.loader_change import (
    feeder_with_cause,
    loader_finding,
    waits_words,
)
from trainprof.findings.loading.model_inputs import without_running
from trainprof.findings.loading.more_workers import CHEAPER, cheaper_samples
from trainprof.findings.loading.waiting import CPU, RUNNABLE_SHARE, UNKNOWN, runnable_share
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.wording import number_of

# Of the cores: what other programs may keep busy, where nothing but waiting for cores is known.
_OTHERS_SHARE: Final = 0.1
# Busy workers, as a mean: up to _ALONE training has the cores to itself, from _SHARED on it does
# not.
_ALONE: Final = 0.05
_SHARED: Final = 0.5
# Of batches of either kind: the least number, and the share of the run that they have to span.
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
    # Receiving and computing are slow for the same reason: the whole wait may go, and what busy
    # workers add to computing.
    crowding = None if context.is_on_device else crowding_of(feeder.inputs)
    slowed_s = 0.0 if crowding is None else crowding.saved_s
    gains = (
        outside_steps(context, feeder.wait_share * context.training_s),
        inputs_gain(context, feeder, without_running(feeder.inputs)),
        batches_gain(context, feeder, feeder.measured.wait_s + slowed_s),
    )
    gain = max((x for x in gains if x is not None), key=lambda x: x.likely)
    waits = waits_words(context, feeder)
    title = f"batch preparation needs more than {_cores(context)}: {waits}"
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
    alone_s, shared_s = (None, None) if crowding is None else crowding[:2]
    title = (
        f"training and {number_of(workers, 'worker')} compete for {_cores(context)}: workers wait "
        f"for a core {percent(waits)} of batch preparation"
    )
    numbers = {"runnable_share": waits, "alone_s": alone_s, "beside_s": shared_s}
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
    site = None if line is None else line.site
    return loader_finding(
        context,
        feeder,
        RULE.id,
        title,
        gain,
        advice=cheaper_samples(line, feeder.loader, site),
        also=["more workers would not help"],
        evidence=evidence,
        site=site,
    )


def _cores(context: RunContext) -> str:
    cores, system = context.cores(), context.summary.system
    if system is not None and system.bound_to:
        return f"the {system.bound_to} that the script is bound to"
    return "its cores" if cores is None else f"{cores:.3g} core{'' if cores == 1 else 's'}"


class Crowding(NamedTuple):
    """Median seconds of computing with a batch: while workers are idle, and while they are busy.

    `saved_s`: Of a mean batch, if workers were always idle.
    """

    alone_s: float
    shared_s: float
    saved_s: float


def crowding_of(inputs: PipelineInputs) -> Crowding | None:
    """Returns by how much busy workers slow down computing.

    None where there are too few batches of either kind, or their difference is noise.
    """
    busy, compute_s = inputs.workers_busy, inputs.compute_s
    if busy is None or len(busy) != len(compute_s):
        return None
    # The first batch of an epoch finds cold caches, the last may be smaller.
    place = np.arange(len(busy)) % max(inputs.batches, 1)
    is_inner = (place > 0) & (place < inputs.batches - 1)
    alone = np.flatnonzero(is_inner & (busy < _ALONE))
    shared = np.flatnonzero(is_inner & (busy >= _SHARED))
    if min(len(alone), len(shared)) < _ENOUGH or np.ptp(alone) < _SPREAD * len(busy):
        return None
    # What comes every few batches is in neither median.
    alone_s, slowest_alone_s = np.quantile(compute_s[alone], (0.5, 0.75)).tolist()
    fastest_s, shared_s = np.quantile(compute_s[shared], (0.25, 0.5)).tolist()
    if slowest_alone_s >= fastest_s:
        return None
    saved_s = float((busy[is_inner] >= _ALONE).mean()) * (shared_s - alone_s)
    return Crowding(alone_s, shared_s, saved_s)


RULE: Final = Rule(
    id="saturated_cpu",
    thresholds={
        # No change of a line adds cores: less than that is not worth reporting.
        "wait_share": Threshold(0.1, "of training: waits that are worth reporting"),
        "runnable_share": Threshold(0.1, "of batch preparation, waiting for a core"),
        "share": Threshold(0.1, "of a batch's time: what busy workers add to computing"),
    },
    find=find,
    explanation=__doc__,
    order=40,
    by_timing=True,
    traits=RuleTraits(keys=["data_wait", "first_batch"], lines="always", action=CHEAPER),
    # Cores that are full of waiting threads are not left for batch preparation.
    explained_by=("thread_count",),
    old_names=("crowded_cores",),
)
