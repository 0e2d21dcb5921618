"""The summary, or one of its loaders, as strict JSON: what `report --format json` prints."""

from __future__ import annotations

import json
from typing import Any

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.analysis.summary.run_summary import RunSummary


def render(summary: RunSummary) -> str:
    """Returns `summary.json`'s text: ASCII, without NaN or infinity, ended by a newline."""
    return _written(to_jsonable(summary))


def render_loader(summary: RunSummary, index: int) -> str:
    """Returns one entry of the summary's `loaders`, as it stands there."""
    return _written(to_jsonable(summary)["loaders"][index])


def _written(plain: Any) -> str:
    return json.dumps(plain, allow_nan=False, ensure_ascii=True, indent=1) + "\n"
