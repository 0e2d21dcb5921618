"""What `--find-syncs` found."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.run.place_names import Sites
from trainprof.analysis.summary.memory import FoundSync, FoundSyncs
from trainprof.record.schema import FoundSyncFlag, Kind

TOO_FEW_STEPS: Final = "too few steps of torch's optimizers were seen"
# A damaged log may tell any number.
_MOST_STEPS: Final = 1 << 31


def found_syncs_of(details: npt.NDArray[np.void], sites: Sites) -> FoundSyncs | None:
    """Returns the calls by line, None where torch's sync debug mode was never on.

    Args:
        details: Of the training process.
        sites: Names of its places.
    """
    windows = details[details["kind"] == Kind.SYNC_WINDOW]
    if len(windows) == 0:
        return None
    window = windows[int(windows["end"].argmax())]
    rows = details[details["kind"] == Kind.FOUND_SYNC]
    is_known = (rows["flags"] & FoundSyncFlag.KNOWN) > 0
    numbers, counts = np.unique(rows["site"][~is_known], return_counts=True)
    by_line: dict[str, int] = {}
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        by_line[sites[number]] = by_line.get(sites[number], 0) + count
    return FoundSyncs(
        first_step=int(window["site"]),
        steps=min(max(int(window["value"]), 0), _MOST_STEPS),
        calls=[FoundSync(*item) for item in sorted(by_line.items(), key=lambda item: -item[1])],
        known_calls=int(is_known.sum()),
    )


def why_none_found(metadata: Metadata, found: FoundSyncs | None) -> str | None:
    """Returns why --find-syncs found nothing, or not all; None where it did as asked."""
    told = metadata.environment_text("no_found_syncs")
    return told or (TOO_FEW_STEPS if found is None else None)
