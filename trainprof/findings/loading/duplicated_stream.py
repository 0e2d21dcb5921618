"""Several workers yield the same samples of an IterableDataset: training sees each N times.

What it means: each worker has its own copy of the dataset and yields all of it. With N workers an
epoch is N times longer, and each sample comes N times.

How it is measured: each worker computes checksums of the first samples that it yields. In one epoch
they are equal for at least two workers, and nothing called torch's get_worker_info(). A correct
split makes an epoch N times shorter. A step takes the same time as before.

When it is wrong: equal samples may be intended. Samples that random augmentation changes, or of
classes other than tensors, arrays, numbers and text, are not compared.

What to do: in __iter__, give each worker its part of the files or samples by
torch.utils.data.get_worker_info(). If samples are random, seed the generator by the worker's id.
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
            f"{who} workers yield the same samples: each sample comes {equal} times an epoch",
            replace(gain, training=(1.0, gain.likely)),
            site=loader.site,
            advice=SHARE_THE_STREAM,
            evidence={LOADER_ID: loader.id, "equal_workers": equal, "workers": loader.num_workers},
            cautions=[
                f"an epoch has {equal} times fewer steps then: adjust schedulers that count steps"
            ],
        )
        return replace(finding, severity="high")
    return None


RULE: Final = Rule(
    id="duplicated_stream",
    thresholds={"equal_workers": Threshold(2, "workers with the same samples in one epoch")},
    find=find,
    explanation=__doc__,
    order=20,
    traits=RuleTraits(
        keys=["data_wait", "first_batch"],
        slows_everything=True,
        action="Split the stream across the workers",
    ),
    changes_steps=True,
)
