"""A library computes with several threads inside each worker, and together they have too few cores.

What it means: torch computes with one thread in a worker, unless torch.set_num_threads is called
there; other libraries start as many as the machine has cores (OpenBLAS behind NumPy, MKL, OpenCV,
tokenizers), in each worker anew. They take the cores from each other and from training, and wait
for those of them that have none.

How it is measured: while workers make batches, the kernel counts the CPU time of all their threads
beside that of the one that makes the batch, and for how long that one waits for a core. Workers
tell how many threads torch and OpenCV have there, and which line set torch's. What is gained at
most is what the pipeline's model says of batches that take no more than that one thread ran.

When it is wrong: where other programs took the cores and the threads would have had theirs else
(beside them more threads even get a larger part of the CPU, so no gain is told then); where a
decoder's threads are worth it, for there are fewer workers than it could feed.

What to do: one thread in each worker. Take torch.set_num_threads out of what workers call. For
others OPENBLAS_NUM_THREADS=1 (MKL_NUM_THREADS, and OMP_NUM_THREADS, which torch reads as well) in
the environment, or in worker_init_fn: cv2.setNumThreads(0), threadpoolctl.threadpool_limits(1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.changed_inputs import on_one_thread
from trainprof.analysis.diagnosis.gains import Gain, of_inputs
from trainprof.analysis.diagnosis.loader_cautions import ranks_of
from trainprof.analysis.diagnosis.plain import plain_finding, unmeasured_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import place
from trainprof.analysis.finding import LOADER_ID, Finding
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.loader_figures import WorkerThreads
from trainprof.analysis.shared_cpu import SharedCpu, shared_cpu
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
_OPENCV: Final = "cv2.setNumThreads(0) in worker_init_fn"
_OTHERS: Final = (
    "OPENBLAS_NUM_THREADS=1, MKL_NUM_THREADS=1 (or OMP_NUM_THREADS=1, which torch reads too)"
)
_NOT_TOLD: Final = WorkerThreads(torch=1)
_OTHER_ORDER: Final = "sums are added up in another order: samples may differ in the last digits"
# The kernel shares cores out among threads: who has more of them gets more.
_MORE_OF_THEM: Final = (
    "other programs kept {:.1f} of {} cores busy: beside them more threads may get more of the CPU"
)


@dataclass(frozen=True, slots=True)
class _Making:
    """How the workers of a loader make batches.

    Attributes:
        workers, ranks: So many workers in each of so many ranks of the host.
        cores: That all of them share.
        runnable_share: Of the making of batches, waiting for a core.
        threads: At work in each worker meanwhile.
        busy_share: Of training, in which its workers make batches.
    """

    workers: int
    ranks: int
    cores: float
    runnable_share: float
    threads: float
    busy_share: float

    def are_crowded(self, threads: float) -> bool:
        """Whether so many of each worker, while it makes a batch, are too many for the cores."""
        at_once = self.ranks * self.workers * self.busy_share * threads
        return at_once >= _CROWDED * self.cores

    @property
    def where(self) -> str:
        workers = "the one worker" if self.workers == 1 else f"each of {self.workers} workers"
        ranks = f" of {self.ranks} ranks" if self.ranks > 1 else ""
        return f"in {workers}{ranks}, on {self.cores:.3g} core{'' if self.cores == 1 else 's'}"


def find(case: Case) -> Finding | None:
    return next((found for fed in case.feeding if (found := _of_loader(case, fed))), None)


def _of_loader(case: Case, fed: LoaderCase) -> Finding | None:
    making = _making_of(case, fed)
    if making is None:
        return None
    reached = {
        name
        for name, least in THRESHOLDS.items()
        if getattr(making, name) >= case.threshold(ID, name, least.value)
    }
    if "busy_share" not in reached:
        return None
    told, waits = fed.loader.worker_threads or _NOT_TOLD, making.runnable_share
    is_torch = told.torch > 1 and making.are_crowded(told.torch)
    gain = _gain(case, fed) if is_torch else None
    # Those that wait for a core would work beside those that do.
    wanted = making.threads * (1 + waits / max(1 - waits, 0.1))
    is_seen = reached == THRESHOLDS.keys() and making.are_crowded(wanted)
    if gain is None and not is_seen:
        return None
    return _of_torch(case, fed, making, gain) if is_torch else _of_libraries(fed, making)


def _of_torch(case: Case, fed: LoaderCase, making: _Making, gain: Gain | None) -> Finding:
    told, cpu = fed.loader.worker_threads or _NOT_TOLD, _shared(case)
    cautions = [_OTHER_ORDER]
    if cpu is not None and cpu.is_disturbed:
        cautions.append(_MORE_OF_THEM.format(cpu.others_share * cpu.cores, cpu.cores))
        gain = None
    parts: dict[str, Any] = {
        "title": _title(f"torch computes with {told.torch} threads", making),
        "site": told.set_at or fed.loader.site,
        "advice": _for_torch(told),
        "evidence": {**_evidence(fed, making), "torch_threads": told.torch},
        "also": _hot_line(fed),
        "cautions": cautions,
    }
    if gain is None:
        return unmeasured_finding(ID, **parts)
    return plain_finding(ID, gain=gain, **parts)


def _of_libraries(fed: LoaderCase, making: _Making) -> Finding:
    told = fed.loader.worker_threads or _NOT_TOLD
    return unmeasured_finding(
        ID,
        _title(f"{making.threads:.1f} threads compute", making),
        site=fed.loader.site,
        advice=_for_libraries(told),
        evidence=_evidence(fed, making),
        also=_hot_line(fed),
    )


def _title(who: str, making: _Making) -> str:
    return (
        f"{who} {making.where} that training needs too: a batch waits for a core for "
        f"{percent(making.runnable_share)} of its making"
    )


def _evidence(fed: LoaderCase, making: _Making) -> dict[str, Any]:
    return {
        LOADER_ID: fed.loader.id,
        **{name: getattr(making, name) for name in THRESHOLDS},
        "workers": making.workers,
        "cores": making.cores,
        "opencv_threads": (fed.loader.worker_threads or _NOT_TOLD).opencv,
    }


def _hot_line(fed: LoaderCase) -> list[str]:
    line = fed.hot_line()
    return [f"most of making a batch is at {place(line)}"] if line is not None else []


def _making_of(case: Case, fed: LoaderCase) -> _Making | None:
    fetch, workers, cores = fed.loader.fetch, fed.loader.num_workers or 0, case.cores()
    if not workers or cores is None or fetch is None or fetch.wall_s is None:
        return None
    running_s, cpu_s, made_s = fetch.running_s, fetch.cpu_s, fetch.wall_s.mean * fetch.n
    if not running_s or cpu_s is None or made_s <= 0 or case.training_s <= 0:
        return None
    return _Making(
        workers=workers,
        ranks=ranks_of(fed),
        cores=cores,
        runnable_share=(fetch.runnable_s or 0.0) / made_s,
        threads=cpu_s / running_s,
        busy_share=min(made_s / (workers * case.training_s), 1.0),
    )


def _gain(case: Case, fed: LoaderCase) -> Gain | None:
    """Returns what training gains at most if each worker has one thread.

    None where that is not known, or little.
    """
    if fed.inputs is None:
        return None
    cpu = _shared(case)
    others = None if cpu is None else cpu.others_share * cpu.cores
    gain = of_inputs(case, fed, on_one_thread(fed.inputs, others))
    return gain if gain is not None and gain.likely >= 1 + LEAST_GAIN else None


def _shared(case: Case) -> SharedCpu | None:
    return shared_cpu(case.summary.system.cpu) if case.summary.system else None


def _for_torch(told: WorkerThreads) -> str:
    one = "one thread in each worker: torch.set_num_threads(1) in worker_init_fn"
    if told.set_at is not None:
        one = (
            f"one thread in each worker: take out torch.set_num_threads at {told.set_at}, for "
            "without it torch has one there"
        )
    return f"{one}; {_OPENCV}" if (told.opencv or 1) > 1 else one


def _for_libraries(told: WorkerThreads) -> str:
    if (told.opencv or 1) > 1:
        return (
            f"one thread in each worker: {_OPENCV}, for OpenCV has {told.opencv} there; for other "
            f"libraries {_OTHERS}"
        )
    return f"one thread in each worker: {_OTHERS}, {_OPENCV}"
