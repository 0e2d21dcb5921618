"""Names under which the supervisor and the profiled process find each other."""

from __future__ import annotations

from typing import Final

ENV_DIRECTORY: Final = "TRAINPROF_DIR"
ENV_OPTIONS: Final = "TRAINPROF_OPTIONS"
EVENTS: Final = "events"
SOURCES: Final = "sources"
IMPORTED: Final = "imported.jsonl"
EVENT_LOG_SUFFIX: Final = ".events"
# In a trial's scratch: what its script wrote, by the paths that it wrote to.
SCRATCH_FILES: Final = "files"
# And what tells its processes of one another; it is made ahead of the script's first line.
SCRATCH_INDEX: Final = "index"
# Stands in a manifest's command for what looked like a secret.
MASK: Final = "***"
