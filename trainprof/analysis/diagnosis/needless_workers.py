"""Workers cost training more than they save it: a batch is made sooner than it is handed over.

What it means: a batch that a worker has made is packed, sent through a pipe and taken over by the
training process, and its index is sent the same way. Where a batch is made in a fraction of a
millisecond, that takes longer than making it, and workers and training share the cores besides.

How it is measured: the recorded making of each batch played through the pipeline without workers: a
step is a tenth shorter at least than in the model with them, and than measured.

When it is wrong: where batches are far more expensive later in the run; where the workers are there
for another reason (a library that is not safe in the training process).

What to do: num_workers=0. The arguments that are for workers alone (persistent_workers,
prefetch_factor, multiprocessing_context) have to go with them: torch refuses those without workers.
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.loader_change import (
    WAITED_FROM,
    call_with,
    finding,
    gain_of_cause,
    of_cause,
)
from trainprof.analysis.diagnosis.waiting import NEEDLESS_WORKERS
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "needless_workers"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch", "loader_start")
THRESHOLDS: Final = WAITED_FROM


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, NEEDLESS_WORKERS)
    if fed is None or fed.measured is None:
        return None
    loader, gain = fed.loader, gain_of_cause(case, fed)
    made_s = loader.fetch.wall_s.mean if loader.fetch and loader.fetch.wall_s else None
    if gain is None or made_s is None:
        return None
    is_one = loader.num_workers == 1
    who = (
        "its worker costs more than it saves" if is_one else "its workers cost more than they save"
    )
    title = (
        f"{who}: making a batch takes {span(made_s)}, and training waits "
        f"{span(fed.measured.wait_s)} of {span(fed.measured.step_s)} a batch to be handed one, "
        f"{percent(fed.wait_share)} of training"
    )
    change: dict[str, Any] = {"num_workers": 0}
    return finding(
        case,
        fed,
        ID,
        title,
        gain,
        advice=call_with(loader, change),
        change=change,
        cautions=_cautions(fed.loader.persistent_workers),
    )


def _cautions(are_kept: bool | None) -> list[str]:
    of_workers = ["prefetch_factor", "multiprocessing_context"]
    if are_kept:
        of_workers.insert(0, "persistent_workers")
    return [
        f"{', '.join(of_workers[:-1])} and {of_workers[-1]} are for workers: without any, torch "
        "refuses them",
        "random augmentation, if there is any, draws other numbers without workers",
    ]
