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
_FAST_SHARE: Final = 0.5
# Of all of them, fast ones among them: a usual one.
_USUAL_QUANTILE: Final = 0.75
# Of what starts of epochs took: what fast batches saved later on.
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
    if len(details) == 0 or not (details["flags"] & NextPartsFlag.CPU_KNOWN).all():
        return None
    cpu_ns = (details["value"].astype(np.int64) >> RECEIVE_CPU_SHIFT) * 1000
    seconds: Float64 = np.minimum(cpu_ns, receiving_ns(details)) / 1e9
    return seconds


def starts_of(p: LoaderIterations, fetches: FetchTable) -> dict[str, float]:
    """Returns what iterators and first batches took: figures of `Loader` by name.

    Later starts do not count where fast batches saved most of them: with its first batch a stream
    that shuffles fills a buffer, and has its last ones out of that.
    """
    begun_ns, saved_ns = p.init_ns + np.maximum(p.first_ns, 0), _saved_ns(p, fetches)
    (first_ns, given_back_ns), (later_ns, later_given_back_ns) = (
        (float(begun_ns[epochs].sum()), float(saved_ns[epochs].sum()))
        for epochs in (slice(1), slice(1, None))
    )
    is_made_up_for = given_back_ns >= _GIVEN_BACK_SHARE * first_ns
    are_made_up_for = later_given_back_ns >= _GIVEN_BACK_SHARE * later_ns > 0
    return {
        "first_start_s": first_ns / 1e9,
        "first_given_back_s": given_back_ns / 1e9 if is_made_up_for else 0.0,
        "later_starts_s": 0.0 if are_made_up_for else later_ns / 1e9,
    }


def _saved_ns(p: LoaderIterations, fetches: FetchTable) -> Float64:
    """Returns what the fast batches of each epoch saved compared with usual ones."""
    own = fetches.loader == p.loader
    took, start = fetches.wall_ns[own], fetches.start_ns[own]
    if len(took) == 0:
        return np.zeros(len(p))
    usual = float(np.quantile(took, _USUAL_QUANTILE))
    place = p.number_at(start)
    is_fast = (place >= 0) & (took < _FAST_SHARE * usual)
    at_once = max(len(np.unique(fetches.worker[own])), 1)
    saved = np.bincount(place[is_fast], (usual - took[is_fast]) / at_once, minlength=len(p))
    return saved.astype(np.float64)


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
