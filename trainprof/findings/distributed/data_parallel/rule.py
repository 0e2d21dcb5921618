"""One process feeds several GPUs: nn.DataParallel copies the model to all of them in each step.

What it means: the model is copied to all devices for each batch, their forwards are started by
threads of one Python process, which share its GIL, and outputs and gradients come together on the
first device. DistributedDataParallel has a process for each device and averages gradients while
backward goes on; torch's documentation advises it even on a single machine.

How it is measured: the first models that are called are looked at. One in nn.DataParallel counts
where it has more than one device; the line is that which constructs it.

When it is wrong: where large batches leave the devices little to wait for. What it costs only a
rerun tells, so no gain is said.

What to do: start the script by torchrun --nproc_per_node=N, call init_process_group, wrap the model
in DistributedDataParallel on the device of LOCAL_RANK, and give the loader a DistributedSampler.
Each process then has batches of its own: divide the batch size by the number of devices.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.distributed.data_parallel.probe import DataParallelNote
from trainprof.findings.gain import unmeasured_finding
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext


def find(context: RunContext) -> Finding | None:
    note = context.notes.last(DataParallelNote)
    if note is None or note.devices < RULE.threshold(context.settings, "devices"):
        return None
    return unmeasured_finding(
        RULE.id,
        f"nn.DataParallel copies the model to {note.devices} devices in each step, and one process "
        "launches the kernels of all",
        site=context.notes.sites.known(note.site),
        advice=f"torchrun --nproc_per_node={note.devices}, with the model in "
        "DistributedDataParallel and a DistributedSampler for its loader",
        cautions=["each process has batches of its own: divide the batch size by their number"],
        evidence={"devices": note.devices},
    )


RULE: Final = Rule(
    id="data_parallel",
    thresholds={"devices": Threshold(2, "that the model is copied to: on one nothing is copied")},
    find=find,
    explanation=__doc__,
    order=320,
    traits=RuleTraits(keys=["forward", "backward"]),
)
