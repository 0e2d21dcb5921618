"""One process feeds several GPUs: nn.DataParallel copies the model to all of them in each step.

What it means: nn.DataParallel copies the model to all GPUs for each batch. Threads of one Python
process launch their forwards and share its GIL. Outputs and gradients are collected on the first
GPU. DistributedDataParallel has a process per GPU and averages gradients during backward. PyTorch
recommends it even on a single machine.

How it is measured: trainprof checks the models called before the first step. A model in
nn.DataParallel counts if it uses more than one GPU. The line is the one that constructs it.

When it is wrong: with very large batches the copies hardly matter. The gain is not measured.

What to do: start the script with torchrun --nproc_per_node=N and call init_process_group. Wrap the
model in DistributedDataParallel on the GPU of LOCAL_RANK, and give the loader a DistributedSampler.
Each process then has its own batches: divide the batch size by the number of GPUs.
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
        f"nn.DataParallel copies the model to {note.devices} GPUs in each step, and one process "
        "launches all kernels",
        site=context.notes.sites.known(note.site),
        advice=f"torchrun --nproc_per_node={note.devices}, DistributedDataParallel(model), and a "
        "DistributedSampler",
        cautions=[f"each process has its own batches: divide the batch size by {note.devices}"],
        evidence={"devices": note.devices},
    )


RULE: Final = Rule(
    id="data_parallel",
    thresholds={"devices": Threshold(2, "GPUs that the model is copied to")},
    find=find,
    explanation=__doc__,
    order=320,
    traits=RuleTraits(keys=["forward", "backward"], action="Use DistributedDataParallel"),
)
