"""How often each metric of a GPU is asked for: as its tier says, less often where it is slow."""

from __future__ import annotations

from typing import Final

from trainprof.sampling.clock import NS_PER_S
from trainprof.sampling.gpu_metrics import Tier

# A metric's calls may take this share of the time, all devices together: a driver's call may hold
# a lock that the script needs.
MAX_CALL_SHARE: Final = 0.02
SELDOM_NS: Final = NS_PER_S
MAX_INTERVAL_NS: Final = 30 * NS_PER_S
# After a failure it is asked again a second later, then two, four, ...
FIRST_RETRY_NS: Final = NS_PER_S
_DOUBLINGS: Final = 5
# A tick's own time may jitter by this much against the ones before.
_SLACK_NS: Final = 10_000_000


class MetricPace:
    """Says when one metric of one device is due.

    Args:
        tier: How often it is asked for where its calls are quick.
        interval_ns: From sample to sample, in ns.
        devices: How many devices share the driver.
    """

    def __init__(self, tier: Tier, interval_ns: int, devices: int) -> None:
        self._tier = tier
        self._devices = devices
        self._nominal_ns = max(interval_ns, SELDOM_NS) if tier is Tier.SELDOM else interval_ns
        self._interval_ns = self._nominal_ns
        self._next_ns = 0
        self._last_took_ns = 0
        self._failures = 0

    @property
    def next_ns(self) -> int:
        """When it is due, in ns; 0 at every sample."""
        return self._next_ns

    @property
    def slowed_ns(self) -> int | None:
        """From call to call in ns where that is more than the tier says, else None."""
        return self._interval_ns if self._interval_ns > self._nominal_ns else None

    def is_due(self, tick_ns: int) -> bool:
        """Tells whether to ask at this sample."""
        return tick_ns >= self._next_ns

    def asked(self, tick_ns: int, took_ns: int, *, is_answered: bool) -> None:
        """Takes in how a call went at the sample of `tick_ns`."""
        # One quick call of two clears it: on a busy machine any call may be late once.
        affordable_ns = int(min(took_ns, self._last_took_ns) * self._devices / MAX_CALL_SHARE)
        self._last_took_ns = took_ns
        self._failures = 0 if is_answered else min(self._failures + 1, _DOUBLINGS + 1)
        retry_ns = FIRST_RETRY_NS << self._failures - 1 if self._failures else 0
        wanted_ns = min(max(affordable_ns, retry_ns), MAX_INTERVAL_NS)
        self._interval_ns = max(self._nominal_ns, wanted_ns)
        is_at_every_sample = self._tier is Tier.EVERY_SAMPLE and self.slowed_ns is None
        self._next_ns = 0 if is_at_every_sample else tick_ns + self._interval_ns - _SLACK_NS
