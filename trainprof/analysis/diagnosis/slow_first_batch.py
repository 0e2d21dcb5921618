"""The first batch of the run takes long to come.

What it means: before the first step, workers are started, import their modules, get the dataset
(pickled, where they are started by spawn or forkserver), and make a batch.

How it is measured: making the first iterator, and waiting for its first batch, against the run.

When it is wrong: it comes once; in a run of hours it does not matter, however long it is.

What to do: a smaller dataset object (paths and indices, not the data), opened lazily in the worker;
fewer imports at the top of the script, which spawned workers repeat; fork where that is safe.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.loader_change import finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_first_batch"
KEYS: Final[tuple[str, ...]] = ("loader_start", "first_batch")
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of the run: what comes once matters in short runs alone"),
    "seconds": Threshold(2.0, "nobody changes a script for less"),
}


def find(case: Case) -> Finding | None:
    least_share = case.threshold(ID, "share", THRESHOLDS["share"].value)
    least_s = case.threshold(ID, "seconds", THRESHOLDS["seconds"].value)
    for fed in case.feeding:
        first_s = _first_s(fed)
        usual_s = fed.measured.step_s if fed.measured is not None else 0.0
        lost_s = first_s - usual_s
        if lost_s < max(least_s, least_share * case.wall_s):
            continue
        loader = fed.loader
        how = f" by {loader.start_method}" if loader.num_workers and loader.start_method else ""
        workers = f", {loader.num_workers} workers started{how}" if loader.num_workers else ""
        title = (
            f"the first batch came {span(first_s)} after it was asked for{workers}: "
            f"{percent(first_s / case.wall_s)} of the run"
        )
        return finding(
            case,
            fed,
            ID,
            title,
            outside_steps(case, lost_s),
            advice="a smaller dataset object that opens its data lazily, in the worker",
            evidence={"first_batch_s": first_s},
        )
    return None


def _first_s(fed: LoaderCase) -> float:
    """Returns how long the run's first pass took to begin: no later one can have taken longer."""
    loader = fed.loader
    if loader.init_s is None or loader.first_batch_s is None:
        return 0.0
    if loader.passes == 1:
        return fed.starts_s
    return loader.init_s.max + loader.first_batch_s.max
