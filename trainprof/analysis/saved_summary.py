"""The summary that a run left in its directory."""

from __future__ import annotations

from trainprof.analysis.summary import SUMMARY_SCHEMA_VERSION, RunSummary
from trainprof.analysis.summary_json import from_jsonable
from trainprof.record.log_reader import log_paths
from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_json


def saved_summary(directory: RunDirectory) -> RunSummary | None:
    """Returns the summary that the run left, None where it left none that can be used.

    One that is older than a log is of no use: something trained on when the script had ended.
    """
    if _is_outdated(directory):
        return None
    data = read_run_json(directory.summary)
    if not isinstance(data, dict) or data.get("schema_version") != SUMMARY_SCHEMA_VERSION:
        return None
    try:
        summary = from_jsonable(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return None if summary.run.exit.reason == "running" else summary


def _is_outdated(directory: RunDirectory) -> bool:
    try:
        written_ns = directory.summary.lstat().st_mtime_ns
        return any(log.lstat().st_mtime_ns > written_ns for log in log_paths(directory.events))
    except OSError:
        return False
