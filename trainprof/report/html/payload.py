"""The charts as JSON for the page's scripts, with the dataclasses' own names."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from trainprof.analysis.summary.charts import Charts
from trainprof.analysis.summary.run import LEDGER_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.text.ledger import DEVICE_KEYS, DEVICE_LABEL, label_of, waits_are_merged
from trainprof.report.text.safe_text import clip_end, one_line

# By numpy's kind and size: the keys that base.js knows, little endian.
_ARRAYS: Final = {"f4": "<f4", "f8": "<f8", "i4": "<i4", "u1": "u1"}
_LONGEST: Final = 300


def payload(summary: RunSummary, charts: Charts) -> Markup:
    """Returns the text of the script element `charts`: the charts' fields, `labels`, and `roles`
    of loaders by their ids.

    Arrays become {"f4": base64} and the like, tuples lists, and NaN outside arrays null.
    """
    labels = {key: label_of(key) for key in (*LEDGER_KEYS, "fetch")}
    if waits_are_merged(summary):
        labels |= dict.fromkeys(DEVICE_KEYS, DEVICE_LABEL)
    roles = {loader.id: loader.role for loader in summary.loaders}
    plain = {**_plain(charts), "labels": labels, "roles": roles}
    text = json.dumps(plain, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clip_end(one_line(value[: 4 * _LONGEST]), _LONGEST)
    if isinstance(value, np.ndarray):
        kind = f"{value.dtype.kind}{value.dtype.itemsize}"
        data = np.ascontiguousarray(value, dtype=_ARRAYS[kind])
        return {kind: base64.b64encode(data.tobytes()).decode("ascii")}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    return value
