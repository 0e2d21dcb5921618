"""How the script ended, from what its parent saw and what its own log tells."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final

from trainprof.analysis.run.liveness import is_alive
from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.summary.run import Exit
from trainprof.analysis.timeline.events import ProcessLog
from trainprof.record.names import MAX_STEPS, MAX_TIME
from trainprof.record.schema import Kind, Topic

NOT_WRITTEN: Final = "the end was not written down: trainprof was killed, or could not write"
_ITS_STATUS: Final = (
    "its exit status is not known, as trainprof was killed before the script ended, or could not "
    "write"
)
GOES_ON: Final = "the script itself has ended, a process that it started trains on"
WENT_ON: Final = "a process that it started trained on after the script's end"
# By the value of a LIMIT record.
_LIMITS: Final = {1: MAX_STEPS, 3: "a trial had enough"}
_KEYBOARD_INTERRUPT: Final = "KeyboardInterrupt"


def ending_of_run(recording: Recording, logs: list[ProcessLog], shown: list[ProcessLog]) -> Exit:
    """Returns the end of a run: of the script, and of what it started where a limit ended that.

    What was started by torchrun, by `torch.multiprocessing.spawn` or by a driver meets the limit
    itself, and its parent comes to an end of its own.

    Args:
        recording: The run.
        logs: Of the script's own process.
        shown: Of the training process whose figures are told: its limit comes first.
    """
    end = ending(recording, logs)
    limit = _limit([*shown, *logs, *recording.logs])
    if limit is None or end.reason == "running":
        return end
    if end.reason == "limit" or (end.reason == "completed" and not end.status):
        return replace(end, reason="limit", detail=limit)
    return replace(end, after_limit=limit) if _ended_well(recording.logs) else end


def _ended_well(logs: list[ProcessLog]) -> bool:
    """Whether all that trained was ended at a limit or came to its own end."""
    of_process: dict[object, list[ProcessLog]] = {}
    for log in logs:
        of_process.setdefault(log.pid or id(log), []).append(log)
    trained = [own for own in of_process.values() if any(_trains(log) for log in own)]
    return all(_limit(own) is not None or _came_to_its_end(own) for own in trained)


def _came_to_its_end(logs: list[ProcessLog]) -> bool:
    end = recorded_ending(logs)
    return end is not None and end.reason == "completed"


def ending(recording: Recording, logs: list[ProcessLog]) -> Exit:
    """Returns the end of the script's own process, unless what it started trains on.

    Args:
        recording: The run.
        logs: Of the script's own process.
    """
    end = _of_script(recording, logs)
    if end.reason == "running":
        return end
    own = {id(log) for log in logs}
    others = [log for log in recording.logs if id(log) not in own and _trains(log)]
    if any(_goes_on(log, recording) for log in others):
        return replace(end, reason="running", detail=GOES_ON)
    ended_ns = integer(recording.section("times").get("ended_ns"))
    if end.reason == "completed" and ended_ns is not None:
        reached_ns = max((int(log.events.end.max()) for log in others), default=0)
        if reached_ns > ended_ns:
            return replace(end, detail=WENT_ON)
    return end


def _trains(log: ProcessLog) -> bool:
    return bool(log.events.is_kind(Kind.BACKWARD, Kind.OPTIMIZER_STEP, Kind.SCALER_STEP).any())


def _goes_on(log: ProcessLog, recording: Recording) -> bool:
    opened_ns = integer(log.header.get("perf_ns"))
    return not _has_end(log) and is_alive(log.pid, recording.manifest, known_ns=opened_ns)


def _has_end(log: ProcessLog) -> bool:
    return any(kind == Kind.PROCESS_END for kind, *_ in log.marks)


def _of_script(recording: Recording, logs: list[ProcessLog]) -> Exit:
    told = recording.section("exit")
    status = integer(told.get("status"))
    number = integer(told.get("signal"))
    reason = str(told.get("reason", "unknown"))
    detail = told.get("detail") if isinstance(told.get("detail"), str) else None
    limit = _limit(logs)
    exception = _exception(logs)
    has_end = any(_has_end(log) for log in logs)
    if reason == "running":
        if recording.is_alive and not has_end:
            return Exit(None, None, "running", None)
        return _unseen(limit, exception, has_end)
    if reason == "limit":
        return Exit(status, number, "limit", limit or detail)
    if reason not in ("completed", "exception", "interrupted", "signal", "killed"):
        return recorded_ending(logs) or Exit(status, number, "unknown", detail)
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


def recorded_ending(logs: list[ProcessLog]) -> Exit | None:
    """Returns the end that a process noted itself, whatever its parent saw; None if it did not."""
    limit, exception = _limit(logs), _exception(logs)
    if exception is not None:
        reason = "interrupted" if exception == _KEYBOARD_INTERRUPT else "exception"
        return Exit(None, None, reason, None if reason == "interrupted" else exception)
    if not any(_has_end(log) for log in logs):
        return None
    return Exit(None, None, "limit", limit) if limit else Exit(None, None, "completed", None)


def _unseen(limit: str | None, exception: str | None, has_end: bool) -> Exit:
    """The supervisor did not see the end; the script's own last record may tell."""
    if limit is not None and has_end:
        return Exit(None, None, "limit", limit)
    if exception == _KEYBOARD_INTERRUPT:
        return Exit(None, None, "interrupted", _ITS_STATUS)
    if exception is not None:
        return Exit(None, None, "exception", exception)
    if has_end:
        return Exit(None, None, "completed", _ITS_STATUS)
    return Exit(None, None, "unknown", NOT_WRITTEN)


def _limit(logs: list[ProcessLog]) -> str | None:
    for log in logs:
        for kind, _site, _start, _end, value in log.marks:
            if kind == Kind.LIMIT:
                return _LIMITS.get(value, MAX_TIME)
    return None


def _exception(logs: list[ProcessLog]) -> str | None:
    for log in reversed(logs):
        names = log.texts_of(Topic.EXCEPTION)
        for kind, _site, _start, _end, value in log.marks:
            if kind == Kind.PROCESS_END and value:
                return str(names.get(value, "Exception"))
    return None
