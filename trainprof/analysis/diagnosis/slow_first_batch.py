"""The first batch of the run takes long to come.

What it means: before the first step, workers are started, import their modules, get the dataset
(pickled, where they are started by spawn or forkserver), and make a batch.

How it is measured: making the first iterator in training, and waiting for its first batch, against
the run; when the first worker began to fetch, and how long the slowest batch was made.

When it is wrong: it comes once; in a run of hours it does not matter, however long it is. Where a
stream fills a buffer to shuffle, and later batches come out of that, what those save is taken off;
a run that ends before shows none of it. Of a part of a run (--epoch, --steps) nothing is said: it
does not tell what comes once.

What to do: a smaller dataset object (paths and indices, not the data), opened lazily in the worker.
Where spawned workers begin late: fewer imports at the top of the script, which they repeat, or fork
where that is safe. Where the batch itself is made slowly: less to open or read before the first
sample.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.loader_cautions import NEW_PYTHON
from trainprof.analysis.diagnosis.loader_change import advised, finding
from trainprof.analysis.diagnosis.needless_workers import (
    HARDLY_LONGER,
    WITHOUT,
    as_good_without,
    made_in,
)
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.verdict_level import percent

ID: Final = "slow_first_batch"
KEYS: Final[tuple[str, ...]] = ("loader_start", "first_batch")
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of the run: what comes once matters in short runs alone"),
    "seconds": Threshold(2.0, "nobody changes a script for less"),
}
# Of the first batch's time: a part that is most of it is the one to change.
_MOST: Final = 0.5


def find(case: Case) -> Finding | None:
    # A part does not tell what comes once in the whole run.
    if case.summary.run.part is not None:
        return None
    least_share = case.threshold(ID, "share", THRESHOLDS["share"].value)
    least_s = case.threshold(ID, "seconds", THRESHOLDS["seconds"].value)
    for fed in case.feeding:
        first_s = _first_s(fed)
        usual_s = fed.measured.step_s if fed.measured is not None else 0.0
        lost_s = first_s - max(usual_s, _later_s(fed, first_s)) - _given_back_s(fed.loader)
        if lost_s < max(least_s, least_share * case.wall_s):
            continue
        loader = fed.loader
        workers = ""
        if loader.num_workers:
            who = "1 worker" if loader.num_workers == 1 else f"{loader.num_workers} workers"
            how = f" by {loader.start_method}" if loader.start_method else ""
            workers = f", {who} started{how}"
        title = (
            f"the first batch came {span(first_s)} after it was asked for{workers}: "
            f"{percent(first_s / case.wall_s)} of the run"
        )
        alters = WITHOUT if _needs_none(fed, first_s) else {}
        advice, change = advised(loader, alters) if alters else (_advice(fed, first_s), {})
        if alters:
            advice += f": {HARDLY_LONGER}, for a batch is made in {made_in(fed)}"
        return finding(
            case,
            fed,
            ID,
            title,
            outside_steps(case, lost_s),
            advice=advice,
            change=change,
            alters=alters,
            evidence={"first_batch_s": first_s, "first_fetch_s": _began_s(loader)},
            is_of_making=_is_of_making(loader, first_s),
        )
    return None


def _needs_none(fed: LoaderCase, first_s: float) -> bool:
    """Whether it is the start of workers, and training does as well without them."""
    if not fed.loader.num_workers or _is_of_making(fed.loader, first_s):
        return False
    return as_good_without(fed) is not None


def _advice(fed: LoaderCase, first_s: float) -> str:
    """Returns what to change, by which part of the time was most of it."""
    loader = fed.loader
    began_s = _began_s(loader)
    if _is_of_making(loader, first_s):
        made_s = loader.fetch.wall_s.max if loader.fetch and loader.fetch.wall_s else 0.0
        return f"less to open or read before the first sample: one batch was made in {span(made_s)}"
    if began_s is None or began_s < _MOST * first_s or loader.start_method not in NEW_PYTHON:
        return "a smaller dataset object that opens its data lazily, in the worker"
    return (
        f"fewer imports at the top of the script: a worker started by {loader.start_method} "
        f"repeats them and unpickles the dataset, {span(began_s)} until the first one began; fork, "
        "where that is safe, does neither"
    )


def _is_of_making(loader: Loader, first_s: float) -> bool:
    """Whether the making of one batch took most of it."""
    made = loader.fetch.wall_s if loader.fetch is not None else None
    return made is not None and made.max >= _MOST * first_s


def _began_s(loader: Loader) -> float | None:
    """Returns how long it took until a worker began its first batch; None where that is unknown."""
    rows = loader.fetch.per_worker if loader.fetch is not None and loader.num_workers else []
    told = [row.get("first_fetch_s") for row in rows]
    return min((float(s) for s in told if isinstance(s, (int, float))), default=None)


def _given_back_s(loader: Loader) -> float:
    """Returns what a stream saved later on for what it read ahead, as one that shuffles does."""
    return (loader.first_given_back_s or 0.0) if loader.is_iterable else 0.0


def _later_s(fed: LoaderCase, first_s: float) -> float:
    """Returns how long later passes take to begin: what they take too does not come once."""
    later = fed.loader.passes - 1
    return max(fed.starts_s - first_s, 0.0) / later if later > 0 else 0.0


def _first_s(fed: LoaderCase) -> float:
    """Returns how long the run's first pass took to begin.

    An older summary tells only that no pass took longer than that.
    """
    loader = fed.loader
    if loader.first_start_s is not None:
        return loader.first_start_s
    if loader.init_s is None or loader.first_batch_s is None:
        return 0.0
    if loader.passes == 1:
        return fed.starts_s
    return loader.init_s.max + loader.first_batch_s.max
