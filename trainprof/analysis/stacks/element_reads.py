"""What goes through tensors element by element inside the model: how often Python reads a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from trainprof.analysis.run.place_names import Sites
from trainprof.analysis.stacks.samples import PartsOfLoop
from trainprof.analysis.summary.code import ElementReads
from trainprof.analysis.timeline.ledger import KEY
from trainprof.record.schema import Kind, SyncFlag

# Of a pass: a few are decisions that a model takes, so many are a loop over numbers.
MANY: Final = 64
# From one read to the next: a loop that does more for each than a few small operators gains little
# from operators on whole tensors.
_TINY_NS: Final = 100_000
# One may fill what all others use.
_MIN_PASSES: Final = 3
_NEVER_NS: Final = 1 << 62


def element_reads(
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    sites: Sites,
    counted_until: Mapping[int, int],
    *,
    settled_ns: int,
) -> ElementReads | None:
    """Returns the reads of the part of the model that loses most by them; None where they are few.

    Args:
        parts: Of the training thread's loop.
        seconds: Of each part inside it, by ledger key.
        sites: Names of lines.
        counted_until: When reads of a kind were counted no longer, ns.
        settled_ns: When warm-up was over.
    """
    until_ns = min(counted_until.values(), default=_NEVER_NS)
    found = (
        _of_part(name, parts, seconds, sites, settled_ns, until_ns) for name in ("forward", "loss")
    )
    return max((one for one in found if one is not None), key=lambda one: one.seconds, default=None)


def _of_part(
    name: str,
    parts: PartsOfLoop,
    seconds: Mapping[str, float],
    sites: Sites,
    from_ns: int,
    until_ns: int,
) -> ElementReads | None:
    events = parts.events
    is_pass = events.is_kind(Kind.FORWARD) | events.is_kind(Kind.LOSS)
    is_pass &= parts.at(events.start) == KEY[name]
    is_pass &= (events.start >= from_ns) & (events.end <= until_ns)
    is_read = events.is_kind(Kind.SYNC) & ((events.flags & SyncFlag.ON_CPU) > 0)
    if not is_pass.any() or np.count_nonzero(is_read) < _MIN_PASSES * MANY:
        return None
    around = parts.nesting.nearest(is_pass)
    reads = np.flatnonzero(is_read & (around >= 0))
    per_pass = np.bincount(around[reads], minlength=len(events))
    reads = reads[per_pass[around[reads]] >= MANY]
    passes = int(np.count_nonzero(per_pass >= MANY))
    whole_ns = int((events.end - events.start)[is_pass].sum())
    if passes < _MIN_PASSES or whole_ns <= 0:
        return None
    gaps_ns = np.diff(events.start[reads])
    is_inside = (np.diff(around[reads]) == 0) & (gaps_ns < _TINY_NS)
    share = float(gaps_ns[is_inside].sum()) / whole_ns
    places, counts = np.unique(events.site[reads], return_counts=True)
    return ElementReads(
        part=name,
        site=sites[int(places[counts.argmax()])],
        per_pass=len(reads) / passes,
        share=share,
        seconds=share * seconds.get(name, 0.0),
    )
