"""Several workers yield the same samples of an IterableDataset: the model sees each N times.

What it means: each worker has its own copy of the dataset and iterates over all of it. With N
workers an epoch is N times as long, and each sample comes N times.

How it is measured: each worker computes checksums of the first samples that it yields. In one epoch
they are equal for at least two workers, and nothing there called torch's get_worker_info().

What it gains: as many epochs take 1/N of the time at the least. A step takes as long as before.

When it is wrong: where equal samples are intended.

What to do: in __iter__, give each worker a part of the files or of the samples, by
torch.utils.data.get_worker_info(). Where samples are random, seed the generator by the worker.
Samples that random augmentation changes, or of classes other than tensors, arrays, numbers and
text, are not compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.summary.finding import LOADER_ID, Finding, RuleTraits, Threshold
from trainprof.findings.gain import outside_steps, plain_finding
from trainprof.findings.loading.loader_cautions import SHARE_THE_STREAM
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext


def find(context: RunContext) -> Finding | None:
    least = RULE.threshold(context.settings, "equal_workers")
    for feeder in context.feeding:
        loader = feeder.loader
        equal = loader.equal_workers or 1
        if not loader.repeats_samples or equal < least:
            continue
        who = f"all {equal}" if equal == loader.num_workers else f"{equal} of {loader.num_workers}"
        evaluation_s = context.training.get("evaluation", 0.0)
        repeated_s = (1 - 1 / equal) * max(context.settled_s - evaluation_s, 0.0)
        gain = outside_steps(context, repeated_s)
        finding = plain_finding(
            RULE.id,
            f"{who} workers yield the same samples: the model sees each sample {equal} times, and "
            f"an epoch is {equal} times as long",
            replace(gain, training=(1.0, gain.likely)),
            site=loader.site,
            advice=SHARE_THE_STREAM,
            evidence={LOADER_ID: loader.id, "equal_workers": equal, "workers": loader.num_workers},
            cautions=["an epoch has fewer steps then: schedulers that count steps have to know"],
        )
        return replace(finding, severity="high")
    return None


RULE: Final = Rule(
    id="duplicated_stream",
    thresholds={"equal_workers": Threshold(2, "workers with the same samples in one epoch")},
    find=find,
    explanation=__doc__,
    order=20,
    traits=RuleTraits(keys=["data_wait", "first_batch"], slows_everything=True),
    changes_steps=True,
)
