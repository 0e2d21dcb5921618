"""What is out of the ordinary in the making of a loader's batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainprof.analysis.run.metadata import known
from trainprof.analysis.summary.loader import Fetch

UNUSUAL_FROM: Final = 5.0
UNUSUAL_MIN_S: Final = 0.01
# Of slow samples that are where parts of the data begin: so many, of so many samples each.
_FEWEST_PARTS: Final = 3
_SHORTEST_PART: Final = 8


def unusual_samples(fetch: Fetch) -> list[Mapping[str, Any]]:
    """Returns of the slowest samples those of UNUSUAL_FROM x the typical one, slowest first.

    One that the machine kept from its cores is as slow as another would have been then.
    """
    typical = known(fetch.typical_sample_s)
    if typical is None or typical <= 0:
        return []
    least = max(UNUSUAL_FROM * typical, UNUSUAL_MIN_S)
    return [
        sample
        for sample in fetch.slow_samples
        if isinstance(sample, Mapping) and _own_s(sample) >= least
    ]


def are_begun_parts(slow: Sequence[Mapping[str, Any]]) -> bool:
    """Whether slow samples are the first of parts of the data of one length, read one by one.

    Then the next would be slow in their place.
    """
    indices = [int(index) for one in slow if (index := known(one.get("index"))) is not None]
    apart = math.gcd(*indices)
    return len(set(indices)) >= _FEWEST_PARTS and apart >= _SHORTEST_PART


def _own_s(sample: Mapping[str, Any]) -> float:
    return (known(sample.get("seconds")) or 0.0) - (known(sample.get("kept_off_s")) or 0.0)
