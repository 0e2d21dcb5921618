"""torch computes with more threads than there are cores.

What it means: torch splits an operation among its threads, and each waits for the others. With more
of them than cores some cannot run, and all wait for those. It happens where the number is set by
hand (OMP_NUM_THREADS, torch.set_num_threads), or by the cores of a machine of which a container may
use a few. A core with hyper-threads runs one on each of them, so only more than those are told;
torch itself has one thread for each core.

How it is measured: torch.get_num_threads() at the first step, against the cores, or hyper-threads,
that the run may use, and the process's threads that the system counts: so many are there only once
they were needed.

When it is wrong: where operations are so large that it makes no difference. How much it makes
cannot be told from one run: `trainprof compare` of two runs does.

What to do: torch.set_num_threads with the number of cores, less those that workers keep busy; or
take the setting out.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.plain import unmeasured_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict import COMPUTE_KEYS
from trainprof.analysis.verdict_level import percent

ID: Final = "torch_threads"
KEYS: Final[tuple[str, ...]] = ("forward", "backward", "optimizer")
THRESHOLDS: Final = {
    "share": Threshold(0.5, "of training, computing on the CPU"),
    "per_core": Threshold(1.0, "threads of torch: more cannot run at once"),
}


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    most = case.threshold(ID, "per_core", THRESHOLDS["per_core"].value)
    threads, cores, part = case.torch.threads, case.cores(), case.share(*COMPUTE_KEYS)
    if case.is_on_device or threads is None or cores is None or part < least:
        return None
    there = case.threads_of_training()
    # Fractions of a core are a container's quota: a thread for what is left over is no mistake.
    usable = max(-(-cores // 1), 1.0)
    if threads <= most * usable or there is None or there < threads:
        return None
    # More than hyper-threads is too many for certain; how many are best goes by the cores.
    physical = case.physical_cores() or cores
    best = max(-(-physical // 1), 1.0)
    on = f"{physical:.3g} core{'' if physical == 1 else 's'}"
    if physical < cores:
        on += f" ({cores:.3g} hyper-threads)"
    return unmeasured_finding(
        ID,
        f"torch computes with {threads} threads on {on}: "
        f"they wait for each other in forward, backward and optimizer, {percent(part)} of training",
        site=case.torch.threads_set_at,
        advice=f"torch.set_num_threads({best:.0f}), or OMP_NUM_THREADS={best:.0f}",
        evidence={
            "threads": threads,
            "cores": physical,
            "hyper_threads": cores if physical < cores else None,
            "threads_of_process": there,
            "computing_share": part,
        },
    )
