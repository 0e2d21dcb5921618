"""The process that trains, out of all that were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainprof.analysis.events import Events, ProcessLog, no_events
from trainprof.analysis.facts import Facts
from trainprof.analysis.recording import Recording
from trainprof.record.schema import Kind, Topic


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """Its logs as one: a script that re-executes itself leaves several under one pid.

    Attributes:
        logs: As read, oldest first; [] where nothing was recorded.
        events: Of all threads and logs, in order of start; sites and threads renumbered.
        facts: Their texts.
        main_thread: Number of the main thread in `events.thread`, or None.
    """

    logs: list[ProcessLog]
    events: Events
    facts: Facts
    main_thread: int | None

    @property
    def stopped_ns(self) -> int | None:
        """When recording stopped for good, or None: nothing is known of the time after it."""
        return self.logs[-1].stopped_ns if self.logs else None

    @property
    def pid(self) -> int:
        return self.logs[0].pid or 0 if self.logs else 0


def training_process(recording: Recording) -> TrainingProcess:
    """Returns the process with most updates, else most backwards, else the script's own."""
    if not recording.logs:
        nothing = Facts({topic: {} for topic in Topic})
        return TrainingProcess([], no_events(), nothing, None)
    script_pid = recording.manifest.get("script_pid")

    def rank(log: ProcessLog) -> tuple[int, int, bool, int]:
        counts = np.bincount(log.events.kind, minlength=256)
        updates = int(counts[Kind.OPTIMIZER_STEP] + counts[Kind.SCALER_STEP])
        is_script = log.role == "script" or log.pid == script_pid
        return (updates, int(counts[Kind.BACKWARD]), is_script, len(log.events))

    best = max(recording.logs, key=rank)
    logs = [log for log in recording.logs if log is best or (log.pid and log.pid == best.pid)]
    return _joined(logs)


def _joined(logs: list[ProcessLog]) -> TrainingProcess:
    texts: dict[Topic, dict[int, Any]] = {topic: {} for topic in Topic}
    tables: list[Events] = []
    ids = threads = 0
    main_thread: int | None = None
    for log in logs:
        main = log.main_thread
        if main is not None and main_thread is None:
            main_thread = threads + main
        tables.append(_renumbered(log, ids, threads, main_thread))
        for topic in Topic:
            for number, told in log.texts_of(topic).items():
                if topic is Topic.LOADER and ids and isinstance(told, dict):
                    site = told.get("site")
                    told = {**told, "site": site + ids if isinstance(site, int) else None}
                texts[topic][number + ids] = told
        ids += max(log.texts, default=0)
        threads += int(log.events.thread.max()) + 1 if len(log.events) else 0
    return TrainingProcess(logs, _in_order(tables), Facts(texts), main_thread)


def _renumbered(log: ProcessLog, ids: int, threads: int, main_thread: int | None) -> Events:
    """Events with sites and threads moved out of the way of an earlier log's."""
    events = log.events
    if ids == 0 and threads == 0:
        return events
    site = np.where(events.site > 0, events.site + np.uint32(ids), events.site)
    thread = events.thread + np.uint16(threads)
    if log.main_thread is not None and main_thread is not None:
        thread[events.thread == log.main_thread] = main_thread
    return Events(events.kind, events.flags, thread, site, events.start, events.end, events.value)


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
