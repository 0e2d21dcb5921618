"""A caching allocator whose truth is planted, with the statistics that torch's keep."""

from __future__ import annotations

from typing import Any

GIB = 1 << 30
MIB = 1 << 20


class FakeAllocator:
    """Memory of one device.

    Attributes:
        asked: How often its statistics were read.
        error: Raised in place of an answer.
    """

    def __init__(self, total: int = 80 * GIB) -> None:
        self.total = total
        self.allocated = self.reserved = self.peak = self.peak_reserved = 0
        self.retries = self.ooms = 0
        self.asked = 0
        self.error: Exception | None = None

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def free(self, size: int) -> None:
        self.allocated -= size

    def reset_peak_memory_stats(self, device: object = None) -> None:
        self.peak, self.peak_reserved = self.allocated, self.reserved

    def nested(self, device: object = None) -> dict[str, Any]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.peak_reserved}},
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
        }

    def flat(self, device: object = None) -> dict[str, Any]:
        return {
            ".".join((name, pool, metric)): value
            for name, pools in self.nested().items()
            if isinstance(pools, dict)
            for pool, metrics in pools.items()
            for metric, value in metrics.items()
        } | {"num_alloc_retries": self.retries, "num_ooms": self.ooms}
