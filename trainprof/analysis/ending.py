"""How the script ended, from what its parent saw and what its own log tells."""

from __future__ import annotations

import signal
from typing import Any

from trainprof.analysis.events import ProcessLog
from trainprof.analysis.recording import Recording
from trainprof.analysis.summary import Exit
from trainprof.record.schema import Kind, Topic

_KEYBOARD_INTERRUPT = "KeyboardInterrupt"


def ending(recording: Recording, logs: list[ProcessLog]) -> Exit:
    """Returns the end of a run.

    Args:
        recording: The run.
        logs: Of the script's own process.
    """
    told = recording.section("exit")
    status = _int(told.get("status"))
    number = _int(told.get("signal"))
    reason = str(told.get("reason", "unknown"))
    detail = told.get("detail") if isinstance(told.get("detail"), str) else None
    limit = _limit(logs)
    exception = _exception(logs)
    has_end = any(kind == Kind.PROCESS_END for log in logs for kind, *_ in log.marks)
    if reason == "running":
        if recording.is_alive and not has_end:
            return Exit(None, None, "running", None)
        return _unseen(limit, exception, has_end)
    if reason not in ("completed", "exception", "interrupted", "signal", "killed"):
        return Exit(status, number, "unknown", detail)
    if limit is not None and status == 0:
        return Exit(status, number, "limit", limit)
    if exception == _KEYBOARD_INTERRUPT or number == signal.SIGINT:
        return Exit(status, number, "interrupted", detail)
    if exception is not None and number is None and status == 1:
        return Exit(status, number, "exception", exception)
    if reason == "exception":
        # No exception reached the top: the script chose this status itself.
        left = None if has_end else "left by os._exit or from native code"
        return Exit(status, number, "completed", left)
    return Exit(status, number, reason, detail)


def _unseen(limit: str | None, exception: str | None, has_end: bool) -> Exit:
    """The supervisor did not see the end; the script's own last record may tell."""
    note = "trainprof itself was killed before the script ended"
    if limit is not None and has_end:
        return Exit(None, None, "limit", limit)
    if exception == _KEYBOARD_INTERRUPT:
        return Exit(None, None, "interrupted", note)
    if exception is not None:
        return Exit(None, None, "exception", exception)
    if has_end:
        return Exit(None, None, "completed", note)
    return Exit(None, None, "unknown", note)


def _limit(logs: list[ProcessLog]) -> str | None:
    for log in logs:
        for kind, _site, _start, _end, value in log.marks:
            if kind == Kind.LIMIT:
                return "--max-steps" if value == 1 else "--max-time"
    return None


def _exception(logs: list[ProcessLog]) -> str | None:
    for log in reversed(logs):
        names = log.texts_of(Topic.EXCEPTION)
        for kind, _site, _start, _end, value in log.marks:
            if kind == Kind.PROCESS_END and value:
                return str(names.get(value, "Exception"))
    return None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
