"""What a run saved and loaded in its training phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainprof.analysis.events import Events, Nesting
from trainprof.analysis.ledger import loads_samples
from trainprof.analysis.names import Sites
from trainprof.record.schema import Kind


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Calls of torch.save and torch.load.

    Attributes:
        saves, loads: How many there were.
        save_s, load_s: What they took, all together.
        saved_bytes: Of a mean save; None where nobody knows.
        site: The line whose calls took longest.
    """

    saves: int = 0
    loads: int = 0
    save_s: float = 0.0
    load_s: float = 0.0
    saved_bytes: float | None = None
    site: str | None = None


def checkpoints_of(
    events: Events, nesting: Nesting, sites: Sites, begun: int, ended: int
) -> Checkpoints:
    """Counts what was saved and loaded, but for what a dataset loads as samples.

    Args:
        events: Of the training thread.
        nesting: Of `events`.
        sites: Its lines.
        begun, ended: When training was, ns.
    """
    is_here = (events.start >= begun) & (events.start < ended)
    is_call = events.is_kind(Kind.CHECKPOINT_SAVE, Kind.CHECKPOINT_LOAD)
    here = events.where(is_call & is_here & ~loads_samples(events, nesting))
    if len(here) == 0:
        return Checkpoints()
    is_save, took = here.is_kind(Kind.CHECKPOINT_SAVE), here.end - here.start
    numbers, which = np.unique(here.site, return_inverse=True)
    longest = int(numbers[np.bincount(which, weights=took).argmax()])
    sizes = here.value[is_save & (here.value > 0)]
    return Checkpoints(
        saves=int(is_save.sum()),
        loads=int((~is_save).sum()),
        save_s=float(took[is_save].sum() / 1e9),
        load_s=float(took[~is_save].sum() / 1e9),
        saved_bytes=float(sizes.mean()) if len(sizes) else None,
        site=sites.known(longest),
    )
