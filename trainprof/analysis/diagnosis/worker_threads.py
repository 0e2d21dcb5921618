"""A library computes with several threads inside each worker, and together they have too few cores.

What it means: torch computes with one thread in a worker, but other libraries start as many as the
machine has cores (OpenBLAS behind NumPy, MKL, OpenCV, tokenizers), in each worker anew. They take
the cores from each other and from training, and wait for those of them that have none.

How it is measured: while workers make batches, the kernel counts the CPU time of all their threads
beside that of the one that makes the batch, and for how long that one waits for a core.

When it is wrong: where other programs took the cores and the threads would have had theirs else;
where a decoder's threads are worth it, for there are fewer workers than it could feed.

What to do: one thread in each worker. OPENBLAS_NUM_THREADS=1 (MKL_NUM_THREADS, and OMP_NUM_THREADS,
which torch reads as well) in the environment, or in worker_init_fn: cv2.setNumThreads(0),
threadpoolctl.threadpool_limits(1), torch.set_num_threads(1) where something else had set it.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.loader_cautions import ranks_of
from trainprof.analysis.diagnosis.plain import unmeasured_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import place
from trainprof.analysis.finding import LOADER_ID, Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "worker_threads"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = {
    "runnable_share": Threshold(0.3, "of the making of batches, waiting for a core"),
    "threads": Threshold(1.5, "at work in each worker while it makes a batch"),
    "busy_share": Threshold(0.2, "of training, in which its workers make batches"),
}
# Of the cores: so many more threads than that are at work at once.
_CROWDED: Final = 1.25


def find(case: Case) -> Finding | None:
    return next((found for fed in case.feeding if (found := _of_loader(case, fed))), None)


def _of_loader(case: Case, fed: LoaderCase) -> Finding | None:
    fetch, workers, cores = fed.loader.fetch, fed.loader.num_workers or 0, case.cores()
    if not workers or cores is None or fetch is None or fetch.wall_s is None:
        return None
    running_s, cpu_s, made_s = fetch.running_s, fetch.cpu_s, fetch.wall_s.mean * fetch.n
    if not running_s or cpu_s is None or made_s <= 0 or case.training_s <= 0:
        return None
    threads, runnable = cpu_s / running_s, (fetch.runnable_s or 0.0) / made_s
    busy = min(made_s / (workers * case.training_s), 1.0)
    told = {"runnable_share": runnable, "threads": threads, "busy_share": busy}
    if any(
        told[name] < case.threshold(ID, name, least.value) for name, least in THRESHOLDS.items()
    ):
        return None
    # Those that wait for a core would work beside those that do.
    ranks = ranks_of(fed)
    at_once = ranks * workers * busy * threads * (1 + runnable / max(1 - runnable, 0.1))
    if at_once < _CROWDED * cores:
        return None
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    line = fed.hot_line()
    also = [f"most of making a batch is at {place(line)}"] if line is not None else []
    return unmeasured_finding(
        ID,
        f"{threads:.1f} threads compute in each of {workers} workers{of_ranks}, on {cores:.3g} "
        f"core{'' if cores == 1 else 's'} that training needs too: a batch waits for a core for "
        f"{percent(runnable)} of its making",
        site=fed.loader.site,
        advice="one thread in each worker: OPENBLAS_NUM_THREADS=1, MKL_NUM_THREADS=1 (or "
        "OMP_NUM_THREADS=1, which torch reads too), cv2.setNumThreads(0) in worker_init_fn",
        evidence={LOADER_ID: fed.loader.id, **told, "workers": workers, "cores": cores},
        also=also,
    )
