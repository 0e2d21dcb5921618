"""A loader in words: who makes its batches, how long that takes, and whether they come in time."""

from __future__ import annotations

from typing import Final

from trainprof.analysis.loading.loader_figures import cost_s, worker_totals
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import Statistics
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.units import NOT_MEASURED, counted, percent, seconds, share_of

# A loader that costs less of training is left in peace: XProf's "moderately input bound".
MATTERS_FROM_SHARE: Final = 0.05


def needs_words(loader: Loader, summary: RunSummary) -> bool:
    """Tells whether training spends so much on a loader that it has to be explained."""
    if loader.thread == "other":
        return False
    if loader.lost_workers or loader.repeats_samples or loader.shares_files:
        return True
    share = share_of(cost_s(loader), summary.phases.training_s)
    return share is not None and share >= MATTERS_FROM_SHARE


def makers(loader: Loader) -> str:
    """Returns who makes batches and how long one takes: "4 workers, 3.00 ms a batch each"."""
    workers = loader.num_workers
    took = _mean(loader.fetch.wall_s if loader.fetch else None)
    who = (
        "" if workers is None else f"{counted(workers, 'worker')}, " if workers else "no workers, "
    )
    each = " each" if workers is not None and workers > 1 and took != NOT_MEASURED else ""
    return f"{who}{took} a batch{each}" if took != NOT_MEASURED else f"{who}a batch {NOT_MEASURED}"


def busy_words(loader: Loader) -> str:
    """Returns how busy the workers were, lowest to highest; "" where that is not known."""
    rows = worker_totals(loader.fetch.per_worker) if loader.fetch else []
    shares = sorted(row.busy_share for row in rows if row.busy_share is not None)
    if not shares:
        return ""
    low, high = percent(shares[0]), percent(shares[-1])
    who = "the worker was" if len(shares) == 1 else "workers were"
    return f"{who} busy {low if low == high else f'{low} to {high}'} of the time"


def ready_words(loader: Loader) -> str:
    """Returns how often the batch was there when it was asked for; "" where that is not known."""
    share = percent(loader.ready_share)
    return "" if share == NOT_MEASURED else f"the batch was there in {share} of cases"


def keeps_up(loader: Loader) -> str:
    """Returns what to say of workers that training hardly waits for, "" without any."""
    told = ready_words(loader)
    return f"keeps up: {told}" if loader.num_workers and told else ""


def _mean(statistics: Statistics | None) -> str:
    return NOT_MEASURED if statistics is None else seconds(statistics.mean)
