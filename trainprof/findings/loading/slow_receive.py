"""The batches are ready in time, but receiving them from a worker slows the training process.

What it means: a batch is pickled in the worker, sent through a pipe and unpickled. Tensors travel
in shared memory, with one request to the worker process each. Many small tensors or Python objects
(lists of strings, dictionaries) make this IPC transfer slow. More workers do not help.

How it is measured: inside `next` on the loader's iterator, the time after the batch was ready, and
how much of it the training process was running. The site is your collate_fn if there is one, else
the loader.

When it is wrong: with pin_memory=True a thread receives the batches, and this is not seen.

What to do: return a few large tensors: join lists into one tensor, encode strings as numbers, or
let the dataset return whole batches. torchdata's StatefulDataLoader sends the state of the dataset
with each batch: snapshot_every_n_steps=N sends it with every N-th only.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import inputs_gain
from trainprof.findings.loading.loader_change import (
    WAITED_FROM,
    feeder_with_cause,
    loader_finding,
    step_words,
)
from trainprof.findings.loading.model_inputs import received_at_once
from trainprof.findings.loading.waiting import RECEIVE_S, RECEIVE_SHARE, RECEIVING
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

# Of torchdata.
_STATEFUL: Final = "StatefulDataLoader"


def find(context: RunContext) -> Finding | None:
    feeder = feeder_with_cause(context, RULE.id, RECEIVING)
    if feeder is None or feeder.inputs is None or feeder.measured is None:
        return None
    gain = inputs_gain(context, feeder, received_at_once(feeder.inputs))
    loader = feeder.loader
    if gain is None or not loader.receive_s or loader.wait_s is None:
        return None
    each_s, worked_s = loader.receive_s / max(loader.wait_s.n, 1), loader.receive_cpu_s
    waits_for_worker = worked_s is not None and worked_s < loader.receive_s / 2
    is_stateful = loader.kind == _STATEFUL
    action, advice = "", "return a few large tensors instead of many small ones or Python objects"
    also = ["more workers would not help"]
    if is_stateful:
        action = "Send the dataset's state less often"
        advice = "StatefulDataLoader(..., snapshot_every_n_steps=N)"
        also.append("by default each batch carries the dataset's state (state_dict)")
    if waits_for_worker:
        also.append("most of it waits for the worker process: cheaper samples help too")
    return loader_finding(
        context,
        feeder,
        RULE.id,
        f"receiving a batch from its worker takes {span(each_s)} of each "
        f"{step_words(context, feeder)}",
        gain,
        action=action,
        advice=advice,
        also=also,
        site=loader.collate_site,
        is_of_making=waits_for_worker,
        evidence={
            "receive_per_batch_s": each_s,
            "receive_cpu_s": worked_s,
            "batch_bytes": loader.fetch.batch_bytes if loader.fetch else None,
        },
    )


RULE: Final = Rule(
    id="slow_receive",
    thresholds={
        **WAITED_FROM,
        "receive_share": Threshold(RECEIVE_SHARE, "of a step, as for the wait"),
        "receive_s": Threshold(RECEIVE_S, "a batch: a few tensors always take 1 to 2 ms"),
    },
    find=find,
    explanation=__doc__,
    order=70,
    by_timing=True,
    traits=RuleTraits(
        keys=["data_wait", "first_batch"], action="Send fewer, larger tensors per batch"
    ),
)
