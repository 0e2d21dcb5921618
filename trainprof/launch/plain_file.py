"""Reads files that somebody else names; the script's own process does so, too."""

from __future__ import annotations

from trainprof.record.plain_file import contents_of

__all__ = ["contents_of"]
