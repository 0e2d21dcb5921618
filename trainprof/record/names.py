"""Names under which the supervisor and the profiled process find each other."""

from __future__ import annotations

from typing import Final

ENV_DIRECTORY: Final = "TRAINPROF_DIR"
ENV_OPTIONS: Final = "TRAINPROF_OPTIONS"
EVENTS: Final = "events"
SOURCES: Final = "sources"
IMPORTED: Final = "imported.jsonl"
EVENT_LOG_SUFFIX: Final = ".events"
# Stands in a manifest's command for what looked like a secret.
MASK: Final = "***"
