"""The summary as strict JSON: the contract that `trainprof report --format json` prints."""

from __future__ import annotations

import json

from trainprof.analysis.summary import RunSummary, to_jsonable


def render(summary: RunSummary) -> str:
    """Returns `summary.json`'s text: ASCII, without NaN or infinity, ended by a newline."""
    plain = to_jsonable(summary)
    return json.dumps(plain, allow_nan=False, ensure_ascii=True, indent=1) + "\n"
