"""The meter of fetches as its caller uses it."""

from __future__ import annotations

from trainprof.inside.spans.fetch_usage import Begun, UsageMeter


def ask(meter: UsageMeter) -> Begun | None:
    """Asks whether the fetch that now begins is measured, as the wrapper of the fetchers does."""
    if meter.state.to_pass > 0:
        meter.state.to_pass -= 1
        return None
    return meter.begin()
