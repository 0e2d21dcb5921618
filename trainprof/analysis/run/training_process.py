"""The processes that train, out of all recorded ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.run.process_name import ancestors_of, rank_and_size
from trainprof.analysis.timeline.events import MAX_PID, RECORD_DTYPE, Events, ProcessLog, no_events
from trainprof.record.schema import Kind, Topic

if TYPE_CHECKING:
    from trainprof.analysis.run.recording import Recording

# Details whose site is a loader's id.
_OF_LOADER: Final = (
    Kind.SLOW_SAMPLE,
    Kind.NEXT_PARTS,
    Kind.WORKER,
    Kind.WORKER_LOST,
    Kind.LOADER_BUILT,
    Kind.LOADER_EPOCH,
    Kind.FREE_DATA,
)
# Those whose site is the id of any text.
_OF_TEXT: Final = (
    *_OF_LOADER,
    Kind.STACK_SAMPLE,
    Kind.FOUND_SYNC,
    Kind.COLLECTIVE,
    Kind.CACHE_EMPTIED,
)


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """A process's logs as one: a script that re-executes itself leaves several under one pid.

    Attributes:
        logs: As read, oldest first; [] where nothing was recorded.
        events: Of all threads and logs, in order of start; sites and threads renumbered.
        details: Of all logs, of RECORD_DTYPE; loader ids and threads renumbered.
        main_thread: Number of the main thread in `events.thread`, or None.
        workers: Logs of its descendants that do not train themselves.
        rank: In its process group, or by its launcher; None where there is neither.
    """

    logs: list[ProcessLog]
    events: Events
    details: npt.NDArray[np.void]
    metadata: Metadata
    main_thread: int | None
    workers: list[ProcessLog]
    rank: int | None
    world_size: int | None

    @property
    def stopped_ns(self) -> int | None:
        """When recording stopped for good, or None."""
        return self.logs[-1].stopped_ns if self.logs else None

    @property
    def pid(self) -> int:
        return self.logs[0].pid or 0 if self.logs else 0


def training_processes(recording: Recording) -> list[TrainingProcess]:
    """Returns every process with updates, else those with backwards, else a single one.

    Ranks come in order, each by its process with most updates. Without ranks, the process with most
    updates (or backwards) comes first, then the one started first. Without any it is the script's.
    """
    processes = by_process(recording.logs)
    if not processes:
        nothing, no_details = Metadata({topic: {} for topic in Topic}), np.empty(0, RECORD_DTYPE)
        return [TrainingProcess([], no_events(), no_details, nothing, None, [], None, None)]
    script_pid = recording.manifest.get("script_pid")

    def weight(logs: list[ProcessLog]) -> tuple[int, int, bool, int]:
        # Pids ascend. The number of records is chance, and so is the first record of processes that
        # start together.
        kinds = np.concatenate([log.events.kind for log in logs])
        counts = np.bincount(kinds, minlength=256)
        updates = int(counts[Kind.OPTIMIZER_STEP] + counts[Kind.SCALER_STEP])
        is_script = any(log.role == "script" or log.pid == script_pid for log in logs)
        backwards = int(counts[Kind.BACKWARD])
        last = -(logs[0].pid or MAX_PID) if updates or backwards else len(kinds)
        return (updates, backwards, is_script, last)

    weighed = sorted(((weight(logs), logs) for logs in processes), key=lambda x: x[0], reverse=True)
    trainers = [logs for (updates, *_), logs in weighed if updates]
    trainers = trainers or [logs for (_, backwards, *_), logs in weighed if backwards]
    trainers = trainers or [weighed[0][1]]
    workers = _workers(recording.logs, trainers)
    joined = [_joined(logs, helpers) for logs, helpers in zip(trainers, workers, strict=True)]
    by_rank: dict[int, TrainingProcess] = {}
    for process in joined:
        if process.rank is not None:
            by_rank.setdefault(process.rank, process)
    return [by_rank[rank] for rank in sorted(by_rank)] if len(by_rank) > 1 else joined


def by_process(logs: list[ProcessLog]) -> list[list[ProcessLog]]:
    """Groups logs by pid; one whose header is lost stands for itself."""
    groups: dict[object, list[ProcessLog]] = {}
    for log in logs:
        groups.setdefault(log.pid or id(log), []).append(log)
    return list(groups.values())


def _workers(logs: list[ProcessLog], trainers: list[list[ProcessLog]]) -> list[list[ProcessLog]]:
    """Gives every other log to the nearest training process above it."""
    number_of = {log.pid: n for n, own in enumerate(trainers) for log in own if log.pid}
    training = {id(log) for own in trainers for log in own}
    workers: list[list[ProcessLog]] = [[] for _ in trainers]
    for log in logs:
        if id(log) in training:
            continue
        line = ancestors_of(log)
        above = next((number_of[pid] for pid in line if pid in number_of), None)
        if above is None and not line and len(trainers) == 1:
            above = 0  # a damaged log names no parent
        if above is not None:
            workers[above].append(log)
    return workers


def _joined(logs: list[ProcessLog], workers: list[ProcessLog]) -> TrainingProcess:
    texts: dict[Topic, dict[int, Any]] = {topic: {} for topic in Topic}
    tables: list[Events] = []
    details = [np.empty(0, dtype=RECORD_DTYPE)]
    ids = threads = 0
    main_thread: int | None = None
    for log in logs:
        main = log.main_thread
        if main is not None and main_thread is None:
            main_thread = threads + main
        tables.append(_renumbered(log, ids, threads, main_thread))
        details.append(_details_renumbered(log, ids, threads, main_thread))
        for topic in Topic:
            for number, text in log.texts_of(topic).items():
                if topic is Topic.LOADER and ids and isinstance(text, dict):
                    site = text.get("site")
                    text = {**text, "site": site + ids if isinstance(site, int) else None}
                if topic is Topic.ENVIRONMENT and ids and isinstance(text, dict):
                    text = _with_shifted_optimizer(text, ids)
                if topic is Topic.STACK and ids and isinstance(text, list):
                    text = _with_shifted_sites(text, ids)
                texts[topic][number + ids] = text
        ids += max(log.texts, default=0)
        threads += int(log.events.thread.max()) + 1 if len(log.events) else 0
    metadata = Metadata(texts)
    events = _in_order(tables)
    rank, world_size = rank_and_size(texts[Topic.ENVIRONMENT].values(), logs)
    return TrainingProcess(
        logs, events, np.concatenate(details), metadata, main_thread, workers, rank, world_size
    )


def _with_shifted_sites(stack: list[Any], ids: int) -> list[Any]:
    shifted: list[Any] = []
    for site in stack:
        if isinstance(site, int):
            shifted.append(site + ids if site else 0)
        elif isinstance(site, list):
            shifted.append([x + ids if isinstance(x, int) else x for x in site])
    return shifted


def _with_shifted_optimizer(note: dict[str, Any], ids: int) -> dict[str, Any]:
    number = note.get("optimizer")
    return {**note, "optimizer": number + ids} if isinstance(number, int) else note


def _renumbered(log: ProcessLog, ids: int, threads: int, main_thread: int | None) -> Events:
    """Events with sites and threads renumbered past those of earlier logs."""
    events = log.events
    if ids == 0 and threads == 0:
        return events
    site = np.where(events.site > 0, events.site + np.uint32(ids), events.site)
    thread = events.thread + np.uint16(threads)
    if log.main_thread is not None and main_thread is not None:
        thread[events.thread == log.main_thread] = main_thread
    return Events(events.kind, events.flags, thread, site, events.start, events.end, events.value)


def _details_renumbered(
    log: ProcessLog, ids: int, threads: int, main_thread: int | None
) -> npt.NDArray[np.void]:
    if ids == 0 and threads == 0:
        return log.details
    details: npt.NDArray[np.void] = log.details.copy()
    names_text = np.isin(details["kind"], _OF_TEXT)
    details["site"][names_text & (details["site"] > 0)] += np.uint32(ids)
    has_stack = (details["kind"] == Kind.LOADER_EPOCH) & (details["value"] > 0)
    details["value"][has_stack] += ids
    has_thread = details["kind"] != Kind.LINE
    is_main = has_thread & (details["thread"] == log.main_thread)
    details["thread"][has_thread] += np.uint16(threads)
    if log.main_thread is not None and main_thread is not None:
        details["thread"][is_main] = main_thread
    return details


def is_of_loader(details: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Returns which details have a loader's id as their site."""
    mask: npt.NDArray[np.bool_] = np.isin(details["kind"], _OF_LOADER)
    return mask


def _in_order(tables: list[Events]) -> Events:
    if len(tables) == 1:
        return tables[0]
    events = Events(
        *(
            np.concatenate([getattr(table, name) for table in tables])
            for name in ("kind", "flags", "thread", "site", "start", "end", "value")
        )
    )
    return events.where(np.lexsort((-events.end, events.start)))
