"""Starts recording in the profiled process before the script's first line."""

from __future__ import annotations

import os


def site_directory() -> str:
    """Returns the first directory for PYTHONPATH: its sitecustomize starts the recording."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
