"""Batches are there in time, but taking them over from a worker costs the training process.

What it means: between a worker and training, a batch is pickled, sent through a pipe and unpickled;
tensors travel in shared memory, one request to the worker's process each. Many small tensors and
Python objects (lists of strings, dictionaries) make that slow, and no number of workers helps.

Its place is collate_fn, where that is the script's own, else the loader.

How it is measured: inside `next` on the loader's iterator, the time after the batch was there; and
how much of it the training process worked, against waiting for the worker's process to answer.

When it is wrong: with pin_memory=True a thread receives, and this is not seen.

What to do: return few large tensors (collate lists into one tensor, encode strings as numbers), or
let the dataset return whole batches. torchdata's StatefulDataLoader sends the state of the dataset
with each batch: with snapshot_every_n_steps=N only with each N-th.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import inputs_gain
from trainprof.findings.loading.loader_change import WAITED_FROM, feeder_with_cause, loader_finding
from trainprof.findings.loading.model_inputs import received_at_once
from trainprof.findings.loading.waiting import RECEIVE_S, RECEIVE_SHARE, RECEIVING
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

# Of torchdata.
_STATEFUL: Final = "StatefulDataLoader"
_WITHOUT_STATE: Final = (
    "StatefulDataLoader(..., snapshot_every_n_steps=N) with as many batches as lie between two of "
    "your checkpoints: by default a worker sends the state of its dataset (state_dict) with each"
)
_FEW_TENSORS: Final = "few large tensors a batch instead of many small ones or Python objects"


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
    why = ", mostly waiting for its process" if waits_for_worker else ""
    if waits_for_worker and not is_stateful:
        why += ", which is asked for each tensor"
    title = (
        f"taking a batch over from its worker takes {span(each_s)} of "
        f"{span(feeder.measured.step_s)}{why}; more workers would not help"
    )
    return loader_finding(
        context,
        feeder,
        RULE.id,
        title,
        gain,
        advice=f"{_WITHOUT_STATE}; {_FEW_TENSORS}" if is_stateful else _FEW_TENSORS,
        also=["a worker that is computing answers late: cheaper samples help too"]
        if waits_for_worker
        else [],
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
        "receive_s": Threshold(
            RECEIVE_S, "a batch: a few tensors take 1 to 2 ms whatever one does"
        ),
    },
    find=find,
    explanation=__doc__,
    order=70,
    by_timing=True,
    traits=RuleTraits(keys=["data_wait", "first_batch"]),
)
