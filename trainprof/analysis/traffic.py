"""Copies between devices and sync points, by the line that makes them."""

from __future__ import annotations

import numpy as np

from trainprof.analysis.events import Events
from trainprof.analysis.names import Sites
from trainprof.analysis.summary import SyncPoint, Transfer
from trainprof.record.schema import Kind, SyncFlag, TransferFlag


def transfers(events: Events, sites: Sites) -> list[Transfer]:
    """Returns the copies of each line and direction, most host time first."""
    mine = events.where(events.is_kind(Kind.TRANSFER))
    found = []
    for flag in (TransferFlag.H2D, TransferFlag.D2H, TransferFlag.D2D):
        of_direction = mine.where((mine.flags & flag) > 0)
        for site in np.unique(of_direction.site).tolist():
            rows = of_direction.where(of_direction.site == site)
            found.append(
                Transfer(
                    site=sites[site],
                    direction=flag.name.lower(),
                    count=len(rows),
                    bytes=int(rows.value.sum()),
                    host_s=float((rows.end - rows.start).sum() / 1e9),
                    device_s=None,
                    gb_per_s=None,
                    pinned_share=float(((rows.flags & TransferFlag.PINNED) > 0).mean()),
                    non_blocking_share=float(((rows.flags & TransferFlag.NON_BLOCKING) > 0).mean()),
                )
            )
    return sorted(found, key=lambda transfer: -transfer.host_s)


def sync_points(events: Events, sites: Sites) -> list[SyncPoint]:
    """Returns the sync points of each line and kind, longest wait first, then most calls."""
    mine = events.where(events.is_kind(Kind.SYNC))
    on_cpu = (mine.flags & SyncFlag.ON_CPU) > 0
    which = mine.flags & ~np.uint8(SyncFlag.ON_CPU)
    names = {int(flag): flag.name.lower() for flag in SyncFlag}
    found = []
    keys = np.unique(mine.site.astype(np.int64) << 8 | which)
    for key in keys.tolist():
        rows = (mine.site == key >> 8) & (which == key & 0xFF)
        waits = rows & ~on_cpu
        found.append(
            SyncPoint(
                site=sites[key >> 8],
                kind=names.get(key & 0xFF, "unknown"),
                count=int(rows.sum()),
                on_cpu=int((rows & on_cpu).sum()),
                seconds=float((mine.end - mine.start)[waits].sum() / 1e9) if waits.any() else None,
                exposed_s=None,
            )
        )
    return sorted(found, key=lambda point: (-(point.seconds or 0.0), -point.count))
