"""Per-line times: of each process, and of all of them added up."""

from __future__ import annotations

import inspect
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from trainprof.analysis.code_figures import LineCost
from trainprof.analysis.events import ProcessLog
from trainprof.analysis.facts import MAX_NUMBER, Facts, integer, number
from trainprof.analysis.process_name import ProcessName
from trainprof.record.schema import Kind, Topic
from trainprof.record.site_name import site_name

# Since when Python tells line_profiler of the code that it asked for, and of no other.
_FIRST_TOLD_ALONE: Final = (3, 12)
NS_S: Final = 1e-9
MODULE_CODE: Final = "<module>"
# Nobody times more; a damaged log may tell any number.
MAX_FUNCTIONS: Final = 10_000
MAX_NAME_CHARACTERS: Final = 4096
# A LINE record has 24 bits for it.
_LINE_BITS: Final = 24
_MAX_LINE: Final = (1 << _LINE_BITS) - 1
_THREAD_BITS: Final = 16
COMPILED: Final = "compiled"
# By kind of function: why its lines may not be reached though it was called.
_STARTED_BY: Final = {
    "generator": "a generator that nothing was taken from",
    "coroutine": "a coroutine that was not awaited",
    "async generator": "an async generator that nothing was taken from",
}


@dataclass(frozen=True, slots=True)
class LineTime:
    """One line.

    Attributes:
        line: Its number.
        hits: How often it was reached.
        time: How long it took in all, in timer units.
    """

    line: int
    hits: int
    time: float


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text.

    Attributes:
        lines: Each ended by a newline.
        has_changed: The file is another one by now.
    """

    lines: tuple[str, ...]
    has_changed: bool = False


@dataclass(frozen=True, slots=True)
class FunctionTimes:
    """A function's lines.

    Attributes:
        file, line, name: Where it begins, `name` qualified.
        why: Why it was timed: "profile", "dataset", ...; "" where that is not known.
        source: Its file as it ran, None where that is lost.
        rows: In order of line, without those that were never reached; of all processes.
        by_process: The same of each process that reached any.
        unseen: Why there are no rows, in words; None where there are.
    """

    file: str
    line: int
    name: str
    why: str
    source: Source | None
    rows: tuple[LineTime, ...]
    by_process: tuple[tuple[ProcessName, tuple[LineTime, ...]], ...] = ()
    unseen: str | None = None

    @property
    def time(self) -> float:
        """In timer units; summed as kernprof does, so that it prints the same digits."""
        return sum(row.time for row in self.rows)


@dataclass(frozen=True, slots=True)
class LineProfile:
    """Line times of a run.

    Attributes:
        unit_s: A timer unit, in seconds.
        functions: In the order in which they were chosen.
        cost: What timing took, None where that was not measured.
        cwd: Where the run was started, or None.
        damage: One sentence per thing that is lost.
    """

    unit_s: float
    functions: tuple[FunctionTimes, ...]
    cost: LineCost | None = None
    cwd: str | None = None
    damage: tuple[str, ...] = ()

    def site(self, function: FunctionTimes) -> str:
        """Returns where a function begins: "train.py:41"."""
        return site_name([function.file, function.line], self.cwd)

    def processes(self) -> list[ProcessName]:
        """Returns those that reached a timed line, main first."""
        found = {name for function in self.functions for name, _ in function.by_process}
        return sorted(found, key=lambda name: name.order)

    def timings(self) -> dict[_Place, list[tuple[int, int, int]]]:
        """Returns (line, hits, time) by function as line_profiler keeps them, which knows one text
        of a file."""
        summed: dict[_Place, _Pairs] = {}
        for function in self.functions:
            rows = {row.line: (row.hits, row.time) for row in function.rows}
            _add(summed.setdefault((function.file, function.line, function.name), {}), rows)
        return {
            place: [(line, *times) for line, times in sorted(rows.items())]
            for place, rows in summed.items()
        }


@dataclass(frozen=True, slots=True)
class TimedProcess:
    """A process with what its log needs to be understood.

    Attributes:
        log: As recorded.
        name: What it is called.
        sources: By the name of the file in the run's sources/.
        only: "workers" or "main" where the others were not to be timed, or None.
    """

    log: ProcessLog
    name: ProcessName
    sources: Mapping[str, Source]
    only: str | None = None


_Place = tuple[str, int, str]
_Pairs = dict[int, tuple[int, int]]


@dataclass(slots=True)
class _Function:
    """A function while its processes are put together: line to (hits, time).

    Attributes:
        started_by: What it needs besides a call, for its lines to be reached; None for nothing.
        is_compiled: A process found that torch.compile had taken it over.
    """

    why: str
    started_by: str | None
    source: Source | None
    is_compiled: bool
    by_process: dict[ProcessName, _Pairs] = field(default_factory=dict)


def line_profile(
    processes: Sequence[TimedProcess], *, cwd: str | None = None, damage: Sequence[str] = ()
) -> LineProfile:
    """Adds up the line times of a run's processes.

    The same function of two processes is one, unless its file was another text in each.
    """
    found: dict[_Place, list[_Function]] = {}
    nameless = 0
    for process in processes:
        told = timed_functions(process.log)
        rows = last_rows(process.log)
        nameless += len(rows.keys() - told.keys())
        for number_, facts in told.items():
            function = _entry(found, facts, process.sources)
            if number_ in rows:
                _add(function.by_process.setdefault(process.name, {}), rows[number_])
    lost = [f"the names of timed functions are lost ({nameless})"] if nameless else []
    return LineProfile(
        unit_s=NS_S,
        functions=tuple(
            _joined(place, function, processes)
            for place, functions in found.items()
            for function in functions
        ),
        cost=line_cost([process.log for process in processes]),
        cwd=cwd,
        damage=(*damage, *lost),
    )


def line_cost(logs: Sequence[ProcessLog]) -> LineCost | None:
    """Returns what timing lines took in all these processes, None where none was to be timed."""
    timed = [log for log in logs if has_timed_functions(log)]
    if not timed:
        return None
    functions: set[tuple[Any, ...]] = set()
    total_hits, reached, measured = 0, 0, []
    for log in timed:
        rows = last_rows(log)
        hits = sum(hit for lines in rows.values() for hit, _ in lines.values())
        total_hits, reached = total_hits + hits, reached + bool(hits)
        functions |= {(f["file"], f["line"], f["name"]) for f in timed_functions(log).values()}
        overhead_ns = _overhead_ns(log)
        if overhead_ns is not None:
            measured.append((overhead_ns, hits))
    mean_ns = None
    if measured:
        weights = [max(hits, 1) for _, hits in measured]
        mean_ns = float(np.average([ns for ns, _ in measured], weights=weights))
    added_s = None if mean_ns is None else mean_ns * NS_S * total_hits
    traces = any(_traces_callees(log) for log in timed)
    return LineCost(len(functions), reached, total_hits, mean_ns, added_s, traces)


def _traces_callees(log: ProcessLog) -> bool:
    """Whether line_profiler traces there: from Python 3.12 on it is told of timed code alone."""
    told = str(log.header.get("python", "")).split(".")[:2]
    return all(part.isdecimal() for part in told) and tuple(map(int, told)) < _FIRST_TOLD_ALONE


def has_timed_functions(log: ProcessLog) -> bool:
    """Tells whether lines were to be timed in a process."""
    return any(topic is Topic.LINE_FUNCTION for topic, _ in log.texts.values())


def timed_functions(log: ProcessLog) -> dict[int, dict[str, Any]]:
    """Returns the facts of the functions to be timed in a process, by their ids."""
    told = log.texts_of(Topic.LINE_FUNCTION)
    sound = ((number, facts) for number, facts in sorted(told.items()) if _is_function(facts))
    return dict(list(sound)[:MAX_FUNCTIONS])


def last_rows(log: ProcessLog) -> dict[int, _Pairs]:
    """Returns line to (hits, ns) by function id: what the last record of each line tells."""
    rows = log.details[log.details["kind"] == Kind.LINE]
    # A record that was being written when the process was killed lacks its value.
    rows = rows[(rows["value"] > 0) & (rows["value"] < MAX_NUMBER)]
    if len(rows) == 0:
        return {}
    line = rows["thread"].astype(np.int64) | rows["flags"].astype(np.int64) << _THREAD_BITS
    key = rows["site"].astype(np.int64) << _LINE_BITS | line
    _, from_the_end = np.unique(key[::-1], return_index=True)
    last = len(rows) - 1 - from_the_end
    found: dict[int, _Pairs] = {}
    times = rows["end"] - rows["start"]
    columns = (rows["site"][last], line[last], rows["value"][last], times[last])
    for site, at, hits, time in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault(site, {})[at] = (hits, time)
    return found


def arranged(profile: LineProfile, *, by_time: bool = False, top: int | None = None) -> LineProfile:
    """Returns some of the functions, or all in another order.

    Args:
        profile: The run's.
        by_time: The one that took longest comes last, as kernprof sorts.
        top: Only so many, those that took longest.
    """
    functions = list(profile.functions)
    if top is not None:
        longest = sorted(range(len(functions)), key=lambda at: -functions[at].time)[:top]
        functions = [functions[at] for at in sorted(longest)]
    if by_time:
        functions.sort(key=lambda function: function.time)
    return replace(profile, functions=tuple(functions))


def of_process(profile: LineProfile, process: ProcessName) -> LineProfile:
    """Returns what one process reached."""
    found = [
        replace(function, rows=rows, by_process=((process, rows),))
        for function in profile.functions
        for name, rows in function.by_process
        if name == process
    ]
    return replace(profile, functions=tuple(found))


def block(function: FunctionTimes) -> tuple[str, ...] | None:
    """Returns the function's own lines, from its first on; None where its text is lost.

    As long as kernprof makes it, or longer where a timed line lies behind.
    """
    if function.source is None:
        return None
    lines = function.source.lines[max(function.line - 1, 0) :]
    length = len(lines) if function.name == MODULE_CODE else _block_length(lines)
    last = max((row.line for row in function.rows), default=0)
    return lines[: max(length, last - function.line + 1)]


def _block_length(lines: Sequence[str]) -> int:
    """Counts the lines of the function at the top, as `inspect.getblock` and kernprof do."""
    finder = inspect.BlockFinder()
    try:
        for kind, text, start, end, line in tokenize.generate_tokens(iter(lines).__next__):
            is_cython = not finder.started and text in ("cdef", "cpdef", "property")
            finder.tokeneater(kind, "def" if is_cython else text, start, end, line)
    except (inspect.EndOfBlock, SyntaxError, tokenize.TokenError, ValueError):
        pass
    return finder.last


def _is_function(facts: Any) -> bool:
    if not isinstance(facts, dict):
        return False
    texts = [facts.get("file"), facts.get("name")]
    line = integer(facts.get("line"))
    is_named = all(isinstance(text, str) and len(text) <= MAX_NAME_CHARACTERS for text in texts)
    return is_named and line is not None and 0 <= line <= _MAX_LINE


def _overhead_ns(log: ProcessLog) -> float | None:
    for facts in log.texts_of(Topic.ENVIRONMENT).values():
        if isinstance(facts, dict) and "line_overhead_ns" in facts:
            told = number(facts["line_overhead_ns"], -1.0)
            return told if told >= 0 else None
    return None


def _entry(
    found: dict[_Place, list[_Function]], facts: Mapping[str, Any], sources: Mapping[str, Source]
) -> _Function:
    saved, kind = facts.get("source"), facts.get("kind")
    source = sources.get(saved) if isinstance(saved, str) else None
    alike = found.setdefault((facts["file"], facts["line"], facts["name"]), [])
    for function in alike:
        if function.source is None or source is None or function.source.lines == source.lines:
            function.source = function.source or source
            function.is_compiled = function.is_compiled or kind == COMPILED
            return function
    why = facts.get("why")
    why = why[:MAX_NAME_CHARACTERS] if isinstance(why, str) else ""
    started_by = _STARTED_BY.get(kind) if isinstance(kind, str) else None
    alike.append(_Function(why, started_by, source, kind == COMPILED))
    return alike[-1]


def _add(total: _Pairs, rows: Mapping[int, tuple[int, int]]) -> None:
    for line, (hits, time) in rows.items():
        before = total.get(line, (0, 0))
        total[line] = (before[0] + hits, before[1] + time)


def _joined(place: _Place, function: _Function, processes: Sequence[TimedProcess]) -> FunctionTimes:
    total: _Pairs = {}
    for rows in function.by_process.values():
        _add(total, rows)
    ordered = sorted(function.by_process.items(), key=lambda pair: pair[0].order)
    file, line, name = place
    return FunctionTimes(
        file=file,
        line=line,
        name=name,
        why=function.why,
        source=function.source,
        rows=_rows(total),
        by_process=tuple((process, _rows(rows)) for process, rows in ordered),
        unseen=None if total else _why_unseen(function, processes),
    )


def _rows(times: Mapping[int, tuple[int, int]]) -> tuple[LineTime, ...]:
    return tuple(LineTime(line, hits, time) for line, (hits, time) in sorted(times.items()))


def _why_unseen(function: _Function, processes: Sequence[TimedProcess]) -> str:
    if function.is_compiled:
        return "compiled (torch.compile, jit): Python did not run its lines"
    only = {process.only for process in processes}
    if only == {"main"}:
        return "not called in the main process, and --only main leaves the workers out"
    if only == {"workers"}:
        return "not called in a worker, and --only workers leaves the main process out"
    has_workers = any(_facts(process.log).loaders_with_workers() for process in processes)
    if has_workers and all(process.name.worker is None for process in processes):
        return "not called in the processes that were reached; no worker of a loader was"
    if function.started_by is not None:
        return f"never called, or {function.started_by}"
    return "never called"


def _facts(log: ProcessLog) -> Facts:
    return Facts({Topic.LOADER: log.texts_of(Topic.LOADER)})
