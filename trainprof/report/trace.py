"""Writes a trace as gzipped Chrome JSON, which Perfetto opens."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from trainprof.analysis.summary.trace import Texts
from trainprof.report.text.ledger import LABELS
from trainprof.report.text.safe_text import one_line

if TYPE_CHECKING:
    from trainprof.analysis.summary.trace import Counter, Flows, Int64, Slices, Thread, Trace

_LEVEL: Final = 5
# Slices written at a time.
_CHUNK: Final = 50_000
_LONGEST_TEXT: Final = 300


def write(trace: Trace, file: BinaryIO) -> None:
    """Writes a whole JSON object in ASCII, piece by piece, whatever the names are.

    Times are microseconds; slices that nest in ns nest in the file.
    """
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=_LEVEL, mtime=0) as out:
        separator = '{"displayTimeUnit":"ms","traceEvents":[\n'
        for text in _events(trace):
            out.write(f"{separator}{text}".encode("ascii"))
            separator = ",\n"
        out.write(b"\n]}\n")


def _events(trace: Trace) -> Iterator[str]:
    """Yields JSON objects, joined by commas; outer slices before inner ones that begin at once."""
    pid_of: dict[int, int] = {}
    for pid, process in enumerate(trace.processes, 1):
        yield _metadata("process_name", pid, 0, name=process.name)
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        for place, thread in enumerate(process.threads):
            pid_of[thread.tid] = pid
            yield _metadata("thread_name", pid, thread.tid, name=thread.name)
            yield _metadata("thread_sort_index", pid, thread.tid, sort_index=place)
            yield from _thread(thread, pid)
        for counter in process.counters:
            yield from _counter(counter, pid)
    # Behind the slices that they join.
    if len(trace.flows):
        yield from _flows(trace.flows, pid_of)


def _metadata(kind: str, pid: int, tid: int, /, **args: str | int) -> str:
    safe = {key: _safe(x) if isinstance(x, str) else x for key, x in args.items()}
    return _json({"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": safe})


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _safe(text: str) -> str:
    return one_line(text)[:_LONGEST_TEXT]


def _thread(thread: Thread, pid: int) -> Iterator[str]:
    """Yields the slices of all kinds in order of time."""
    starts = np.sort(np.concatenate([x.start_ns for x in thread.slices]))
    edges = np.unique(np.append(starts[::_CHUNK], starts[-1:] + 1))
    places = [np.searchsorted(x.start_ns, edges) for x in thread.slices]
    for number in range(len(edges) - 1):
        texts: list[str] = []
        begins, depths = [], []
        for slices, place in zip(thread.slices, places, strict=True):
            rows = slice(int(place[number]), int(place[number + 1]))
            if rows.start < rows.stop:
                texts += _texts(slices, rows, f'"pid":{pid},"tid":{thread.tid}')
                begins.append(slices.start_ns[rows])
                depths.append(slices.depth[rows])
        order = np.lexsort((np.concatenate(depths), np.concatenate(begins)))
        yield ",\n".join([texts[place] for place in order.tolist()])


def _texts(slices: Slices, rows: slice, track: str) -> list[str]:
    label = _json(_safe(LABELS.get(slices.name, slices.name)))[:-1]
    head = f'{{"ph":"X",{track},"name":{label}'
    number = slices.number
    names = [f'{head}"'] if number is None else [f'{head} {n}"' for n in number[rows].tolist()]
    columns = [_argument(key, x, rows) for key, x in slices.args.items()]
    count = rows.stop - rows.start
    names = names * count if number is None else names
    start, length = _us(slices.start_ns[rows]), _us(slices.ns[rows])
    if not columns:
        return [
            f'{name},"ts":{ts},"dur":{dur}}}'
            for name, ts, dur in zip(names, start, length, strict=True)
        ]
    return [
        f'{name},"ts":{ts},"dur":{dur},"args":{{{",".join(args)}}}}}'
        for name, ts, dur, *args in zip(names, start, length, *columns, strict=True)
    ]


def _argument(label: str, column: Int64 | Texts, rows: slice) -> list[str]:
    key = _json(label)
    if isinstance(column, Texts):
        texts = [f"{key}:{_json(_safe(text))}" for text in column.texts]
        return [texts[place] for place in column.index[rows].tolist()]
    return [f"{key}:{number}" for number in column[rows].tolist()]


def _us(ns: Int64) -> list[str]:
    """Returns microseconds; a tenth of a ns more, or Perfetto's rounding could lose a ns."""
    whole, rest = np.divmod(ns, 1000)
    return [f"{us}.{x:03d}1" for us, x in zip(whole.tolist(), rest.tolist(), strict=True)]


def _counter(counter: Counter, pid: int) -> Iterator[str]:
    is_finite = np.isfinite(counter.values)
    head = f'{{"ph":"C","pid":{pid},"name":{_json(_safe(counter.name))},"ts":'
    args = f',"args":{{{_json(_safe(counter.unit))}:'
    texts = [
        f"{head}{ts}{args}{value:.3f}}}}}"
        for ts, value in zip(
            _us(counter.start_ns[is_finite]), counter.values[is_finite].tolist(), strict=True
        )
    ]
    if texts:
        yield ",\n".join(texts)


def _flows(flows: Flows, pid_of: dict[int, int]) -> Iterator[str]:
    """Yields pairs of events; Perfetto's arrow points away from the slice that began first."""
    texts = []
    for number, (tid, ts, to_tid, to_ts) in enumerate(
        zip(
            flows.from_tid.tolist(),
            _us(flows.from_ns),
            flows.to_tid.tolist(),
            _us(flows.to_ns),
            strict=True,
        ),
        1,
    ):
        flow = f'"cat":"batch","name":"batch","id":{number}'
        texts.append(
            f'{{"ph":"s","pid":{pid_of[tid]},"tid":{tid},{flow},"ts":{ts}}},\n'
            f'{{"ph":"f","bp":"e","pid":{pid_of[to_tid]},"tid":{to_tid},{flow},"ts":{to_ts}}}'
        )
    yield ",\n".join(texts)
