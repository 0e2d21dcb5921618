"""What the starts of passes over a loader took, and what of it later batches gave back."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.fetches import FetchTable
from trainprof.analysis.timeline.events import Events
from trainprof.analysis.timeline.iterations import Passes
from trainprof.record.schema import Kind

# Of a usual batch's making: those are out of a buffer.
_QUICK_SHARE: Final = 0.5
# Of all of them, quick ones among them: a usual one.
_USUAL_QUANTILE: Final = 0.75
# Of what starts of passes took: what quick batches saved later on.
_GIVEN_BACK_SHARE: Final = 0.5


def later_starts_s(p: Passes, fetches: FetchTable) -> float:
    """Returns what iterators and first batches of all passes but the first took.

    None of it counts where later batches were the quicker for most of it: with its first one a
    stream that shuffles fills a buffer, and has its last ones out of that.
    """
    begun_ns = float((p.init_ns + np.maximum(p.first_ns, 0))[1:].sum())
    given_back_ns = float(_given_back_ns(p, fetches)[1:].sum())
    return 0.0 if given_back_ns >= _GIVEN_BACK_SHARE * begun_ns > 0 else begun_ns / 1e9


def first_given_back_s(p: Passes, fetches: FetchTable) -> float:
    """Returns what quick batches of the first pass saved, where that makes up for its start."""
    begun_ns = float((p.init_ns + np.maximum(p.first_ns, 0))[:1].sum())
    given_back_ns = float(_given_back_ns(p, fetches)[:1].sum())
    return given_back_ns / 1e9 if given_back_ns >= _GIVEN_BACK_SHARE * begun_ns else 0.0


def _given_back_ns(p: Passes, fetches: FetchTable) -> npt.NDArray[np.float64]:
    """Returns what the quick batches of each pass saved beside usual ones, shape (n_passes,)."""
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


def sampler_starts_s(p: Passes, calls: Events, fetches: FetchTable) -> float:
    """Returns what the sampler took until the first batch was there, of all passes but the first.

    Args:
        p: The loader's passes.
        calls: Its own events.
        fetches: Of all loaders: without workers the sampler is asked ahead of each.
    """
    drawn, own = calls.where(calls.is_kind(Kind.SAMPLER)), fetches.loader == p.loader
    begun = np.concatenate([drawn.start, fetches.start_ns[own]])
    took = np.concatenate([drawn.end - drawn.start, fetches.waited_ns[own]])
    place = np.searchsorted(p.start, begun, side="right") - 1
    is_start = (place >= 1) & (begun < p.after_first[place])
    return float(took[is_start].sum() / 1e9)
