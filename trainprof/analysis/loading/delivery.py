"""What training waits for from a loader: batches of workers, and starts of epochs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trainprof.analysis.loading.fetches import Details, FetchTable, Float64
from trainprof.analysis.timeline.events import Events, Int64
from trainprof.analysis.timeline.iterations import LoaderIterations
from trainprof.record.schema import RECEIVE_CPU_SHIFT, Kind, NextPartsFlag

# A poll that finds a batch takes less; one that waits for a worker takes more.
READY_NS: Final = 200_000
# Of a usual batch's time to be prepared: those below came out of a buffer.
_QUICK_SHARE: Final = 0.5
# Of all of them, quick ones among them: a usual one.
_USUAL_QUANTILE: Final = 0.75
# Of what starts of epochs took: what quick batches saved later on.
_GIVEN_BACK_SHARE: Final = 0.5


def delivery_of(details: Details, calls: Events) -> dict[str, Any]:
    """Sums up one loader's deliveries, but for the first of each epoch.

    Returns:
        Figures of `Loader` by name: blocked_s, receive_s (the IPC transfer), receive_cpu_s of that
        worked by the training process, ready_share of those that found their batch there.
    """
    later = calls.where(calls.is_kind(Kind.LOADER_NEXT))
    if len(details) == 0 or len(later) == 0:
        return dict.fromkeys(("blocked_s", "receive_s", "receive_cpu_s", "ready_share"))
    start = details["start"]
    place = np.searchsorted(later.start, start, side="right") - 1
    is_inside = (place >= 0) & (start <= later.end[place])
    counted = details[is_inside & (later.value[place] > 1)]
    blocked = counted["end"] - counted["start"]
    worked = receiving_cpu_s(counted)
    return {
        "blocked_s": float(blocked.sum() / 1e9),
        "receive_s": float(receiving_ns(counted).sum() / 1e9),
        "receive_cpu_s": None if worked is None else float(worked.sum()),
        "ready_share": float((blocked < READY_NS).mean()) if len(counted) else None,
    }


def receiving_ns(details: Details) -> Int64:
    """Returns how long the IPC transfer of each batch took."""
    below = (1 << RECEIVE_CPU_SHIFT) - 1
    return details["value"].astype(np.int64) & below


def receiving_cpu_s(details: Details) -> Float64 | None:
    """Returns the CPU time of receiving each batch; None where it is unknown of some."""
    if len(details) == 0 or not (details["flags"] & NextPartsFlag.CPU_TOLD).all():
        return None
    cpu_ns = (details["value"].astype(np.int64) >> RECEIVE_CPU_SHIFT) * 1000
    seconds: Float64 = np.minimum(cpu_ns, receiving_ns(details)) / 1e9
    return seconds


def later_starts_s(p: LoaderIterations, fetches: FetchTable) -> float:
    """Returns what iterators and first batches of all epochs but the first took.

    None of it counts where later batches were the quicker for most of it: with its first batch a
    stream that shuffles fills a buffer, and has its last ones out of that.
    """
    begun_ns, given_back_ns = _starts_ns(p, fetches, slice(1, None))
    return 0.0 if given_back_ns >= _GIVEN_BACK_SHARE * begun_ns > 0 else begun_ns / 1e9


def first_given_back_s(p: LoaderIterations, fetches: FetchTable) -> float:
    """Returns what quick batches of the first epoch saved, where that makes up for its start."""
    begun_ns, given_back_ns = _starts_ns(p, fetches, slice(1))
    return given_back_ns / 1e9 if given_back_ns >= _GIVEN_BACK_SHARE * begun_ns else 0.0


def _starts_ns(p: LoaderIterations, fetches: FetchTable, epochs: slice) -> tuple[float, float]:
    """Returns what starts of epochs took, and what their quick batches saved of usual ones."""
    begun_ns = float((p.init_ns + np.maximum(p.first_ns, 0))[epochs].sum())
    own = fetches.loader == p.loader
    took, start = fetches.wall_ns[own], fetches.start_ns[own]
    if len(took) == 0:
        return begun_ns, 0.0
    usual = float(np.quantile(took, _USUAL_QUANTILE))
    place = p.number_at(start)
    is_quick = (place >= 0) & (took < _QUICK_SHARE * usual)
    at_once = max(len(np.unique(fetches.worker[own])), 1)
    saved = np.bincount(place[is_quick], (usual - took[is_quick]) / at_once, minlength=len(p))
    return begun_ns, float(saved[epochs].sum())


def sampler_starts_s(p: LoaderIterations, calls: Events, fetches: FetchTable) -> float:
    """Returns what the sampler took until the first batch was there, of all epochs but the first.

    Without workers it is asked ahead of each fetch.
    """
    drawn, own = calls.where(calls.is_kind(Kind.SAMPLER)), fetches.loader == p.loader
    begun = np.concatenate([drawn.start, fetches.start_ns[own]])
    took = np.concatenate([drawn.end - drawn.start, fetches.waited_ns[own]])
    place = p.number_at(begun)
    is_start = (place >= 1) & (begun < p.after_first[place])
    return float(took[is_start].sum() / 1e9)
