"""What may bound a loader, and the parts of a step, as the summary names them."""

from __future__ import annotations

from typing import Final

LATENCY: Final = "one worker's latency"
CPU: Final = "CPU"
STORAGE: Final = "storage"
RECEIVE: Final = "receive in the main process"
SAMPLER: Final = "sampler"
COMPUTE: Final = "compute"
# A part of the step: nothing to take yet, whatever the reason.
BLOCKED: Final = "blocked"
# The limit that receiving, sampler and compute make together: one process does them in turn.
MAIN_PROCESS: Final = "main process"
