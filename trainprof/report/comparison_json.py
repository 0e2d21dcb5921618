"""What `compare --format json` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainprof.analysis.comparison import Comparison, to_jsonable


def render(comparisons: Sequence[Comparison]) -> str:
    """Returns strict JSON in ASCII: an object, or of several OTHERs an array in their order."""
    plain = [to_jsonable(comparison) for comparison in comparisons]
    found = plain[0] if len(plain) == 1 else plain
    return json.dumps(found, allow_nan=False, ensure_ascii=True, indent=1) + "\n"
