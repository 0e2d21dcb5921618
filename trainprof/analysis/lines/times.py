"""Line times of each process, and of all processes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from trainprof.analysis.run.metadata import MAX_NUMBER, integer, number
from trainprof.analysis.run.process_name import ProcessName
from trainprof.analysis.summary.code import (
    NS_S,
    FunctionTimes,
    LineCost,
    LineProfile,
    LineTime,
    Place,
    Source,
    add_rows,
)
from trainprof.analysis.timeline.events import ProcessLog
from trainprof.record.schema import Kind, Topic

# From this version on Python reports only the code that line_profiler asked for.
_FIRST_REPORTED_ALONE: Final = (3, 12)
# Far above any run; a damaged log may hold any number.
MAX_FUNCTIONS: Final = 10_000
MAX_NAME_CHARACTERS: Final = 4096
# A LINE record has 24 bits for it.
_LINE_BITS: Final = 24
_MAX_LINE: Final = (1 << _LINE_BITS) - 1
_THREAD_BITS: Final = 16
COMPILED: Final = "compiled"
_ONLY: Final = {
    "main": "not called in the main process, and --only main leaves the workers out",
    "workers": "not called in a worker, and --only workers leaves the main process out",
}

_Pairs = dict[int, tuple[int, int]]


@dataclass(slots=True)
class _Function:
    """A function of all processes, line to (hits, ns)."""

    why: str
    is_compiled: bool = False
    by_process: dict[ProcessName, _Pairs] = field(default_factory=dict)


def line_profile(
    processes: Sequence[tuple[ProcessName, ProcessLog]],
    sources: Mapping[str, Source],
    *,
    only: str | None = None,
    cwd: str | None = None,
    damage: Sequence[str] = (),
) -> LineProfile:
    """Adds up the line times of a run's processes.

    A function of two processes counts once, unless its file changed between them.

    Args:
        sources: By file name in the run's sources/.
        only: "workers" or "main" if only these were timed, else None.
    """
    functions: dict[tuple[Place, str | None], _Function] = {}
    nameless = 0
    for process, log in processes:
        named, pairs = timed_functions(log), last_rows(log)
        nameless += len(pairs.keys() - named.keys())
        for key, metadata in named.items():
            why, saved = metadata.get("why"), source_name(metadata)
            why = why[:MAX_NAME_CHARACTERS] if isinstance(why, str) else ""
            function = functions.setdefault((_place(metadata), saved), _Function(why))
            function.is_compiled |= metadata.get("kind") == COMPILED
            if key in pairs:
                add_rows(function.by_process.setdefault(process, {}), _rows(pairs[key]))
    lost = [f"the names of timed functions are lost ({nameless})"] if nameless else []
    return LineProfile(
        tuple(
            _joined(place, function, sources.get(saved or ""), only)
            for (place, saved), function in functions.items()
        ),
        cost=line_cost([log for _, log in processes]),
        cwd=cwd,
        damage=(*damage, *lost),
    )


def line_cost(logs: Sequence[ProcessLog]) -> LineCost | None:
    """Returns the cost of line timing in all these processes, None if nothing was timed."""
    timed = [log for log in logs if has_timed_functions(log)]
    if not timed:
        return None
    functions = {_place(function) for log in timed for function in timed_functions(log).values()}
    hits = [
        sum(count for pairs in last_rows(log).values() for count, _ in pairs.values())
        for log in timed
    ]
    each_ns = [_overhead_ns(log) for log in timed]
    measured = [
        (ns, max(count, 1)) for ns, count in zip(each_ns, hits, strict=True) if ns is not None
    ]
    mean_ns = added_s = None
    if measured:
        mean_ns = sum(ns * count for ns, count in measured) / sum(count for _, count in measured)
        added_s = mean_ns * NS_S * sum(hits)
    traces = any(_traces_callees(log) for log in timed)
    return LineCost(len(functions), sum(map(bool, hits)), sum(hits), mean_ns, added_s, traces)


def _traces_callees(log: ProcessLog) -> bool:
    version = str(log.header.get("python", "")).split(".")[:2]
    is_number = all(part.isdecimal() for part in version)
    return is_number and tuple(map(int, version)) < _FIRST_REPORTED_ALONE


def has_timed_functions(log: ProcessLog) -> bool:
    return any(topic is Topic.LINE_FUNCTION for topic, _ in log.texts.values())


def timed_functions(log: ProcessLog) -> dict[int, dict[str, Any]]:
    noted = sorted(log.texts_of(Topic.LINE_FUNCTION).items())
    sound = [(key, metadata) for key, metadata in noted if _is_function(metadata)]
    return dict(sound[:MAX_FUNCTIONS])


def source_name(metadata: Mapping[str, Any]) -> str | None:
    """Returns the name of a function's file in the run's sources/."""
    saved = metadata.get("source")
    return saved if isinstance(saved, str) else None


def last_rows(log: ProcessLog) -> dict[int, _Pairs]:
    """Returns line to (hits, ns) by function id, from the last record of each line."""
    rows = log.details[log.details["kind"] == Kind.LINE]
    # The last record of a killed process may lack its value.
    rows = rows[(rows["value"] > 0) & (rows["value"] < MAX_NUMBER)]
    lines = rows["thread"].astype(np.int64) | rows["flags"].astype(np.int64) << _THREAD_BITS
    times = rows["end"] - rows["start"]
    columns = (column.tolist() for column in (rows["site"], lines, rows["value"], times))
    last: dict[int, _Pairs] = {}
    for key, line, hits, time in zip(*columns, strict=True):
        last.setdefault(key, {})[line] = (hits, time)
    return last


def _is_function(metadata: Any) -> bool:
    if not isinstance(metadata, dict):
        return False
    texts = [metadata.get("file"), metadata.get("name")]
    line = integer(metadata.get("line"))
    is_named = all(isinstance(text, str) and len(text) <= MAX_NAME_CHARACTERS for text in texts)
    return is_named and line is not None and 0 <= line <= _MAX_LINE


def _place(metadata: Mapping[str, Any]) -> Place:
    return metadata["file"], metadata["line"], metadata["name"]


def _overhead_ns(log: ProcessLog) -> float | None:
    for metadata in log.texts_of(Topic.ENVIRONMENT).values():
        if isinstance(metadata, dict) and "line_overhead_ns" in metadata:
            measured = number(metadata["line_overhead_ns"], -1.0)
            return measured if measured >= 0 else None
    return None


def _joined(
    place: Place, function: _Function, source: Source | None, only: str | None
) -> FunctionTimes:
    total: _Pairs = {}
    by_process = []
    for name, pairs in sorted(function.by_process.items(), key=lambda pair: pair[0].order):
        by_process.append((name, _rows(pairs)))
        add_rows(total, _rows(pairs))
    unseen = _ONLY.get(only or "", "not called in a recorded process")
    if function.is_compiled:
        unseen = "compiled (torch.compile, jit): Python did not run its lines"
    return FunctionTimes(
        *place, function.why, source, _rows(total), tuple(by_process), unseen=unseen
    )


def _rows(pairs: Mapping[int, tuple[int, int]]) -> tuple[LineTime, ...]:
    return tuple(LineTime(line, *times) for line, times in sorted(pairs.items()))
