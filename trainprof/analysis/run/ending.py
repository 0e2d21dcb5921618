"""How a run ended, and where its processes stood if it hung."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trainprof.analysis.run.metadata import integer
from trainprof.analysis.run.process_name import ProcessName, process_names
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.run.training_process import TrainingProcess, by_process
from trainprof.analysis.summary.run import Exit, Hung, Stood
from trainprof.analysis.timeline.events import ProcessLog
from trainprof.record.last_stacks import read_last_stacks
from trainprof.record.names import MAX_STEPS, MAX_TIME, site_name
from trainprof.record.running import is_alive
from trainprof.record.schema import Kind, Topic

NOT_WRITTEN: Final = "trainprof was killed, or could not write"
ITS_STATUS: Final = "exit status unknown: trainprof was killed first, or could not write"
GOES_ON: Final = "the script has ended, but a process that it started still trains"
WENT_ON: Final = "a process that it started still trained after the script's end"
# By the value of a LIMIT record.
_LIMITS: Final = {1: MAX_STEPS, 3: "the end of the trial"}
_KEYBOARD_INTERRUPT: Final = "KeyboardInterrupt"
# At --max-time a script that takes steps ends at the end of one.
IDLE_AT_LIMIT_S: Final = 2.0
IDLE_AT_LIMIT_STEPS: Final = 2.0
# A longer time without a batch, a forward or a step is reported: checkpoints and evaluation of most
# scripts take less. With slow steps, the time of this many of them.
IDLE_FROM_S: Final = 10.0
IDLE_FROM_STEPS: Final = 20.0
# A process that ended this long before the last step has no part in the end.
_SLACK_NS: Final = 5_000_000_000
_PROGRESS: Final = (
    *(Kind.LOADER_NEXT, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD),
    *(Kind.OPTIMIZER_STEP, Kind.SCALER_STEP),
)
_BEGINNING: Final = (Kind.LOADER_INIT, Kind.LOADER_RESET, Kind.LOADER_END)
_ASKS_TO_END: Final = frozenset(
    (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
)
_LOADER_FILE: Final = "torch/utils/data/dataloader.py"
# An idle worker is in these files, not in your code.
_WAITING_FILES: Final = (
    *("/selectors.py", "/multiprocessing/connection.py", "/multiprocessing/queues.py"),
    *("/multiprocessing/synchronize.py", "/threading.py"),
)


def ending_of_run(recording: Recording, shown: list[ProcessLog]) -> Exit:
    """Returns the end of a run, also where a limit ended the processes that the script started.

    A process of torchrun, `torch.multiprocessing.spawn` or a driver ends at the limit itself; its
    parent then ends normally.

    Args:
        shown: Of the training process in the summary: its limit comes first.
    """
    pid = recording.manifest.get("script_pid")
    logs = [log for log in recording.logs if log.pid == pid or log.role == "script"]
    end = ending(recording, logs)
    limit = _limit([*shown, *logs, *recording.logs])
    if limit is None or end.reason == "running":
        return end
    if end.reason == "limit" or (end.reason == "completed" and not end.status):
        return replace(end, reason="limit", detail=limit)
    return replace(end, after_limit=limit) if _ended_well(recording.logs) else end


def _ended_well(logs: list[ProcessLog]) -> bool:
    """Whether all that trained ended at a limit or completed."""
    trained = [own for own in by_process(logs) if any(_trains(log) for log in own)]
    ends = [(_limit(own), recorded_ending(own)) for own in trained]
    return all(limit or (end is not None and end.reason == "completed") for limit, end in ends)


def ending(recording: Recording, logs: list[ProcessLog]) -> Exit:
    """Returns the end of the script's process, unless a process that it started still trains."""
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
    end = recording.section("exit")
    status = integer(end.get("status"))
    number = integer(end.get("signal"))
    reason = str(end.get("reason", "unknown"))
    detail = end.get("detail") if isinstance(end.get("detail"), str) else None
    limit = _limit(logs)
    exception = _exception(logs)
    has_end = any(_has_end(log) for log in logs)
    if reason == "running":
        if recording.is_alive and not has_end:
            return Exit(None, None, "running", None)
        return _unseen(recorded_ending(logs), limit if has_end else None)
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
        # No exception reached the top: the script chose this status itself. Without logs it may be
        # a shell script.
        left = "os._exit or native code ended it" if logs and not has_end else None
        return Exit(status, number, "completed", left)
    return Exit(status, number, reason, detail)


def recorded_ending(logs: list[ProcessLog]) -> Exit | None:
    """Returns the end that a process recorded itself, or None."""
    limit, exception = _limit(logs), _exception(logs)
    if exception is not None:
        reason = "interrupted" if exception == _KEYBOARD_INTERRUPT else "exception"
        return Exit(None, None, reason, None if reason == "interrupted" else exception)
    if not any(_has_end(log) for log in logs):
        return None
    return Exit(None, None, "limit", limit) if limit else Exit(None, None, "completed", None)


def _unseen(end: Exit | None, limit: str | None) -> Exit:
    """Returns an end that the supervisor did not see, by the script's last record."""
    if limit is not None:
        return Exit(None, None, "limit", limit)
    if end is None:
        return Exit(None, None, "unknown", NOT_WRITTEN)
    return end if end.reason == "exception" else replace(end, detail=ITS_STATUS)


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


@dataclass(frozen=True, slots=True)
class _Progress:
    """When a process last made progress, ns.

    Attributes:
        last_ns: Its last batch, forward or step; None without any.
        seen_ns: The same, the start of a loader included.
        has_batch: It got a batch.
        is_main: Its main thread trains, or that is unknown.
    """

    last_ns: int | None
    seen_ns: int
    has_batch: bool
    is_main: bool


def hung_of(
    recordings: Sequence[Recording],
    processes: Sequence[TrainingProcess],
    end: Exit,
    *,
    step_s: float | None,
) -> Hung | None:
    """Returns where a run stood when it was asked to end, None where it had just made progress.

    Args:
        recordings: Of the run, or of each of its ranks.
        processes: Those that train.
        step_s: The median step.
    """
    if not _was_ended(end):
        return None
    samples = [(run, sample) for run in recordings for sample in _samples(run)]
    if not samples:
        return None
    asked_ns = max(map(_asked_ns, recordings))
    limits = [ns for run in recordings for ns in _limits(run)]
    if limits:  # it ended at a step, whatever followed
        asked_ns = min(limits)
    progress = {process.pid: _progress(process, asked_ns) for process in processes}
    began_ns = min(integer(run.section("times").get("spawned_ns")) or 0 for run in recordings)
    seen_ns = max((process.seen_ns for process in progress.values()), default=0) or began_ns
    idle_s = max(asked_ns - seen_ns, 0) * 1e-9
    has_progress = any(process.last_ns is not None for process in progress.values())
    was_limited = any(run.section("exit").get("reason") == "limit" for run in recordings)
    least_s = IDLE_AT_LIMIT_S if was_limited else IDLE_FROM_S
    steps = IDLE_AT_LIMIT_STEPS if was_limited else IDLE_FROM_STEPS
    if has_progress and idle_s <= max(least_s, steps * (step_s or 0.0)):
        return None
    places = (_stood(sample, run, progress, asked_ns, seen_ns) for run, sample in samples)
    stood = [place for place in places if place is not None]
    if any(place.rank is not None for place in stood):  # their parent waits for them
        stood = [x for x in stood if x.rank is not None or x.worker is not None]
    return Hung(idle_s, sorted(stood, key=_order)) if stood else None


def _was_ended(end: Exit) -> bool:
    """Whether it was ended from outside, or by something unknown."""
    if end.reason == "signal":
        return end.signal in _ASKS_TO_END
    if end.reason == "killed":
        return end.detail is None
    return end.reason in ("interrupted", "running", "unknown") or end.limit == MAX_TIME


def _samples(recording: Recording) -> list[dict[str, Any]]:
    """Returns the stack samples at the end: those in the manifest, else those on disk."""
    kept = recording.section("stacks").get("processes")
    samples = kept if isinstance(kept, list) else read_last_stacks(recording.directory.events)
    return [x for x in samples if isinstance(x, dict) and integer(x.get("at_ns"))]


def _asked_ns(recording: Recording) -> int:
    """Returns when the script was asked to end, else the last sample's time."""
    asked_ns = integer(recording.section("stacks").get("at_ns"))
    ended_ns = integer(recording.section("times").get("ended_ns"))
    if asked_ns or ended_ns:
        return asked_ns or ended_ns or 0
    seen = [integer(sample.get("at_ns")) or 0 for sample in _samples(recording)]
    seen += [integer(line.get("t_ns")) or 0 for line in recording.host_lines[-1:]]
    return max(seen, default=0)


def _limits(recording: Recording) -> Iterable[int]:
    return (
        start for log in recording.logs for kind, _, start, *_ in log.marks if kind == Kind.LIMIT
    )


def _progress(process: TrainingProcess, asked_ns: int) -> _Progress:
    events = process.events
    is_before = events.end <= asked_ns
    is_progress = events.is_kind(*_PROGRESS) & is_before
    last = events.end[is_progress]
    begun = events.end[events.is_kind(*_BEGINNING) & is_before]
    last_ns = int(last.max()) if len(last) else None
    seen_ns = max(last_ns or 0, int(begun.max()) if len(begun) else 0)
    is_main = len(last) == 0 or bool((events.thread[is_progress] == process.main_thread).any())
    return _Progress(last_ns, seen_ns, bool(events.is_kind(Kind.LOADER_NEXT).any()), is_main)


def _stood(
    sample: dict[str, Any],
    recording: Recording,
    progress: Mapping[int, _Progress],
    asked_ns: int,
    seen_ns: int,
) -> Stood | None:
    """Returns where a process stood, None where it had ended before."""
    at_ns, ended_ns = integer(sample.get("at_ns")) or 0, integer(sample.get("ended_ns"))
    if at_ns < seen_ns - _SLACK_NS or (ended_ns is not None and ended_ns < asked_ns - _SLACK_NS):
        return None
    pid = integer(sample.get("pid")) or 0
    thread = _thread(sample, is_main=pid not in progress or progress[pid].is_main)
    if thread is None:
        return None
    cwd = recording.manifest.get("cwd")
    cwd = cwd if isinstance(cwd, str) else None
    called, innermost = _frame(thread.get("called")), _frame(thread.get("innermost"))
    shown = _frame(thread.get("user")) or innermost
    if shown is None:
        return None
    name = _name(sample, pid, recording, progress)
    if name.pid is not None and thread.get("user") is None:
        return None  # helpers of torch.compile and the like
    since_ns = integer(thread.get("since_ns")) or at_ns
    waits = None
    if called is not None and str(called[0]).endswith(_LOADER_FILE):
        waits = "a batch" if pid not in progress or progress[pid].has_batch else "its first batch"
    elif name.worker is not None and shown is innermost and str(shown[0]).endswith(_WAITING_FILES):
        waits = "work"
    return Stood(
        process=name.label,
        site=site_name(shown, cwd),
        function=str(shown[2]).rpartition(".")[2],
        called=None if called is None else str(called[2]),
        innermost=None if innermost is None else f"{site_name(innermost, cwd)} {innermost[2]}",
        waits_for=waits,
        for_s=max(asked_ns - since_ns, 0) * 1e-9,
        age_s=max(asked_ns - at_ns, 0) * 1e-9,
        rank=name.rank,
        worker=name.worker,
    )


def _thread(sample: dict[str, Any], *, is_main: bool) -> dict[str, Any] | None:
    """Returns the main thread of a sample, or another; None without any."""
    threads = sample.get("threads")
    known = [x for x in threads if isinstance(x, dict)] if isinstance(threads, list) else []
    wanted = [thread for thread in known if bool(thread.get("is_main")) is is_main]
    return next(iter([*wanted, *known]), None)


def _name(
    sample: dict[str, Any], pid: int, recording: Recording, progress: Mapping[int, _Progress]
) -> ProcessName:
    logs = recording.logs
    names = {log.pid: name for log, name in zip(logs, process_names(logs), strict=True)}
    known = names.get(pid)
    worker, parent = integer(sample.get("worker")), integer(sample.get("ppid"))
    rank = integer(recording.manifest.get("rank"))
    if rank is None:
        text = sample.get("rank")
        rank = int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 9 else None
    if rank is None:
        rank = next((names[x].rank for x in (pid, parent) if x in names), None)
    if worker is not None:
        return ProcessName(rank, worker)
    if known is not None and known.pid is None:
        return ProcessName(rank)
    is_main = pid == recording.manifest.get("script_pid") or pid in progress or rank is not None
    return ProcessName(rank) if is_main else ProcessName(rank, None, pid)


def _order(stood: Stood) -> tuple[int, int, str]:
    return (
        -1 if stood.rank is None else stood.rank,
        -1 if stood.worker is None else stood.worker,
        stood.process,
    )


def _frame(value: object) -> list[Any] | None:
    return value if isinstance(value, list) and len(value) == 3 else None
