"""What training waits for from a loader: batches of workers, starts of epochs, lost workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.fetches import Details, FetchTable, Float64
from trainprof.analysis.timeline.events import Events, Int64
from trainprof.analysis.timeline.iterations import LoaderIterations
from trainprof.record.schema import RECEIVE_CPU_SHIFT, Kind, NextPartsFlag

# A poll that finds a batch takes less; one that waits for a worker takes more.
READY_NS: Final = 200_000
PID_BITS: Final = 32


def delivery_of(details: Details, calls: Events) -> dict[str, Any]:
    """Sums up one loader's deliveries, but for the first of each epoch; None where there are none.

    Returns:
        Figures of `Loader` by name: blocked_s with nothing there, receive_s taking batches over,
        receive_cpu_s of that worked by the training process itself (None where that is not told),
        ready_share of those that found their batch there (None without any).
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
    """Returns how long each batch took to be taken over."""
    below = (1 << RECEIVE_CPU_SHIFT) - 1
    return details["value"].astype(np.int64) & below


def receiving_cpu_s(details: Details) -> Float64 | None:
    """Returns the CPU time that taking over each batch took of the training process.

    None where that is not told of all.
    """
    if len(details) == 0 or not (details["flags"] & NextPartsFlag.CPU_TOLD).all():
        return None
    cpu_ns = (details["value"].astype(np.int64) >> RECEIVE_CPU_SHIFT) * 1000
    seconds: Float64 = np.minimum(cpu_ns, receiving_ns(details)) / 1e9
    return seconds


@dataclass(frozen=True, slots=True)
class WorkerTable:
    """Workers that iterators started, in order of time, shape (n,).

    Attributes:
        loader: Id.
        pid, number: Of the process; its number in the loader, from 0.
        start_ns: When its iterator was begun.
    """

    loader: Int64
    pid: Int64
    number: Int64
    start_ns: Int64

    def loader_of(self, pid: int, times: Int64) -> Int64:
        """Returns the loader that a process worked for at some times, 0 if none is known."""
        mine = np.flatnonzero(self.pid == pid)
        place = np.searchsorted(self.start_ns[mine], times, side="right") - 1
        loader = np.concatenate([[0], self.loader[mine]])
        loaders: Int64 = loader[place + 1]
        return loaders


def worker_table(details: Details) -> WorkerTable:
    """Finds the workers in the details of the process that started them."""
    rows = details[details["kind"] == Kind.WORKER]
    rows = rows[np.argsort(rows["start"], kind="stable")]
    return WorkerTable(
        loader=rows["site"].astype(np.int64),
        pid=rows["value"].astype(np.int64),
        number=rows["flags"].astype(np.int64) - 1,
        start_ns=rows["start"].astype(np.int64),
    )


def lost_workers(details: Details, origin_ns: int) -> list[dict[str, Any]]:
    """Returns the workers of a loader that died: pid, number, exit status or signal, and when."""
    rows = details[details["kind"] == Kind.WORKER_LOST]
    lost: dict[int, dict[str, Any]] = {}
    for row in rows.tolist():
        _, flags, _, _, at_ns, _, value = row
        pid, code = value & ((1 << PID_BITS) - 1), value >> PID_BITS
        signed = code - (1 << 16) if code >= 1 << 15 else code
        lost.setdefault(
            pid,
            {
                "pid": pid,
                "worker": flags - 1,
                "status": signed if signed >= 0 else None,
                "signal": -signed if signed < 0 else None,
                "at_s": (at_ns - origin_ns) / 1e9,
            },
        )
    return list(lost.values())


# Of a usual batch's making: those are out of a buffer.
_QUICK_SHARE: Final = 0.5
# Of all of them, quick ones among them: a usual one.
_USUAL_QUANTILE: Final = 0.75
# Of what starts of epochs took: what quick batches saved later on.
_GIVEN_BACK_SHARE: Final = 0.5


def later_starts_s(p: LoaderIterations, fetches: FetchTable) -> float:
    """Returns what iterators and first batches of all epochs but the first took.

    None of it counts where later batches were the quicker for most of it: with its first one a
    stream that shuffles fills a buffer, and has its last ones out of that.
    """
    begun_ns = float((p.init_ns + np.maximum(p.first_ns, 0))[1:].sum())
    given_back_ns = float(_given_back_ns(p, fetches)[1:].sum())
    return 0.0 if given_back_ns >= _GIVEN_BACK_SHARE * begun_ns > 0 else begun_ns / 1e9


def first_given_back_s(p: LoaderIterations, fetches: FetchTable) -> float:
    """Returns what quick batches of the first epoch saved, where that makes up for its start."""
    begun_ns = float((p.init_ns + np.maximum(p.first_ns, 0))[:1].sum())
    given_back_ns = float(_given_back_ns(p, fetches)[:1].sum())
    return given_back_ns / 1e9 if given_back_ns >= _GIVEN_BACK_SHARE * begun_ns else 0.0


def _given_back_ns(p: LoaderIterations, fetches: FetchTable) -> npt.NDArray[np.float64]:
    """Returns what the quick batches of each epoch saved beside usual ones, shape (n,)."""
    own = fetches.loader == p.loader
    took, start = fetches.wall_ns[own], fetches.start_ns[own]
    if len(took) == 0:
        return np.zeros(len(p))
    usual = float(np.quantile(took, _USUAL_QUANTILE))
    place = np.searchsorted(p.start, start, side="right") - 1
    is_quick = (place >= 0) & (took < _QUICK_SHARE * usual)
    at_once = max(len(np.unique(fetches.worker[own])), 1)
    saved = np.bincount(place[is_quick], (usual - took[is_quick]) / at_once, minlength=len(p))
    return saved.astype(np.float64)


def sampler_starts_s(p: LoaderIterations, calls: Events, fetches: FetchTable) -> float:
    """Returns what the sampler took until the first batch was there, of all epochs but the first.

    Args:
        fetches: Of all loaders: without workers the sampler is asked ahead of each.
    """
    drawn, own = calls.where(calls.is_kind(Kind.SAMPLER)), fetches.loader == p.loader
    begun = np.concatenate([drawn.start, fetches.start_ns[own]])
    took = np.concatenate([drawn.end - drawn.start, fetches.waited_ns[own]])
    place = np.searchsorted(p.start, begun, side="right") - 1
    is_start = (place >= 1) & (begun < p.after_first[place])
    return float(took[is_start].sum() / 1e9)
