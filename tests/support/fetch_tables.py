"""Tables of planted fetches."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from trainprof.analysis.loading.fetches import FetchTable

MS = 1_000_000


def table(n: int = 1, **columns: Any) -> FetchTable:
    """Fetches of 10 ms by a worker that used nothing; `columns` in place of that, or one each."""
    plain: dict[str, Any] = {
        "worker": 1,
        "wall_ns": 10 * MS,
        "stands_for": 1.0,
        "throttled_ns": 0.0,
        "read_bytes": 0.0,
        "major_faults": 0.0,
        "cpu_ns": 0.0,
        "process_cpu_ns": 0.0,
        "delay_ns": 0.0,
        "reading_ns": np.nan,
        "batch_bytes": np.nan,
        "batch_tensors": np.nan,
    }
    made = {}
    for field in fields(FetchTable):
        kind = np.int64 if str(field.type).startswith("Int") else np.float64
        value = {**plain, **columns}.get(field.name, 0)
        made[field.name] = np.broadcast_to(np.array(value, dtype=kind), (n,)).copy()
    return FetchTable(**made)
