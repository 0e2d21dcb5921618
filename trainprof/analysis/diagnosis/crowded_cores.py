"""Workers share the cores that training computes on, while their batches are there in time.

What it means: the run hardly waits for data, but what it computes takes longer, for the workers
want the same cores at the same time. Where torch computes with several threads one that has lost
its core holds up all others, so that this costs more than the cores that workers take.

How it is measured: workers wait for a free core, as the kernel tells. And computing with a batch
takes longer while workers are at work than in the batches in which they have nothing to do, at the
end of passes and where enough batches are ready. Where there are no such batches the recorded
making of each batch is played through torch's pipeline once more without its time on a core.

When it is wrong: where other programs held the cores; where what is computed with at the end of
passes is less than elsewhere.

What to do: make samples cheaper: the named function first. Store what is computed again and again
(smaller pictures, tokens). Fewer of torch's threads may help as well, for then none waits for
another: trainprof tune measures it.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.changed_inputs import without_running
from trainprof.analysis.diagnosis.cheaper_samples import cheaper_samples
from trainprof.analysis.diagnosis.crowding import Crowding, crowding_of
from trainprof.analysis.diagnosis.gains import Gain, larger, of_batches, of_inputs
from trainprof.analysis.diagnosis.loader_change import fewer_workers, finding, made_anew
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.waiting import (
    RUNNABLE_SHARE,
    UNKNOWN,
    runnable_share,
)
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.shared_cpu import shared_cpu
from trainprof.analysis.verdict_level import percent

ID: Final = "crowded_cores"
KEYS: Final[tuple[str, ...]] = ("forward", "loss", "backward", "optimizer")
THRESHOLDS: Final = {
    "runnable_share": Threshold(0.1, "of the making of batches, waiting for a core"),
    "share": Threshold(0.1, "of a batch's time: what computing takes longer beside workers"),
}
# Other programs keep no more of the cores busy, where nothing but waiting for cores is known.
_OTHERS_SHARE: Final = 0.1


def find(case: Case) -> Finding | None:
    if case.is_on_device:
        return None
    return next((found for fed in case.feeding if (found := _of_loader(case, fed))), None)


def _gain_without_crowding(case: Case, fed: LoaderCase) -> Gain | None:
    """Returns what training gains where a loader's workers leave its cores alone.

    None where they take no part of them to speak of, or batches are waited for all the same.
    """
    workers, waits = fed.loader.num_workers or 0, runnable_share(fed.loader.fetch)
    is_explained = fed.cause is not None and fed.cause.name != UNKNOWN
    if not workers or is_explained or fed.inputs is None or fed.measured is None:
        return None
    if waits < case.threshold(ID, "runnable_share", THRESHOLDS["runnable_share"].value):
        return None
    gain = _gain(case, fed, crowding_of(fed.inputs), waits)
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    return None if gain is None or 1 - 1 / gain.likely < least else gain


def _of_loader(case: Case, fed: LoaderCase) -> Finding | None:
    gain = _gain_without_crowding(case, fed)
    if gain is None or fed.inputs is None:
        return None
    workers, waits = fed.loader.num_workers or 0, runnable_share(fed.loader.fetch)
    crowding = crowding_of(fed.inputs)
    line, cores = fed.hot_line(), case.cores()
    core = "" if cores is None else f"the {cores:.3g} " if cores != 1 else "the one "
    site = line.site if line is not None and not line.is_likely else None
    of, its = ("", "its") if site is None else (f" of {fed.loader.site}", "the")
    who = f"{its} {workers} workers{of} share" if workers > 1 else f"{its} worker{of} shares"
    title = (
        f"{who} {core}core{'' if cores == 1 else 's'} that training computes on with it, and "
        f"wait{'s' if workers == 1 else ''} for one {percent(waits)} of the time"
    )
    if crowding is not None and crowding.is_sure:
        title += (
            f": a batch takes {span(crowding.beside_s)} to compute with beside them, "
            f"{span(crowding.alone_s)} while they have nothing to do"
        )
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice=f"{cheaper_samples(line, fed.loader)}{_fewer_threads(case)}",
        also=[*fewer_workers(fed), *made_anew(case, fed)],
        evidence={
            "runnable_share": waits,
            "alone_s": None if crowding is None else crowding.alone_s,
            "beside_s": None if crowding is None else crowding.beside_s,
            "batches_alone": None if crowding is None else crowding.alone,
        },
        site=site,
    )


def _fewer_threads(case: Case) -> str:
    threads = case.summary.torch_threads or 1
    if threads < 2:
        return ""
    fewer = "(1)" if threads == 2 else f" with fewer than {threads}"
    return f"; torch.set_num_threads{fewer} may help, too"


def _gain(case: Case, fed: LoaderCase, crowding: Crowding | None, waits: float) -> Gain | None:
    assert fed.inputs is not None
    seen = None if crowding is None else of_batches(case, fed, crowding.saved_s)
    if crowding is not None and crowding.is_sure:
        return seen
    cpu = shared_cpu(case.summary.system.cpu) if case.summary.system else None
    if waits < RUNNABLE_SHARE or cpu is None or cpu.others_share > _OTHERS_SHARE:
        return None
    modelled = of_inputs(case, fed, without_running(fed.inputs))
    return larger(modelled, seen) if modelled is not None and seen is not None else modelled
