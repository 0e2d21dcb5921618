"""From a recorded run to what it showed. Nothing here measures or prints."""

from trainprof.analysis.summarize import summarize

__all__ = ["summarize"]
