"""A trace as JSON: whole, ASCII, and with the times and names of the tracks."""

from __future__ import annotations

import gzip
import io
import json

import numpy as np
from support.traced_run import HOSTILE, traced_run

from trainprof.analysis.summary.trace import (
    Counter,
    Flows,
    Process,
    Slices,
    Texts,
    Thread,
    Trace,
)
from trainprof.analysis.trace.trace import trace_of
from trainprof.report import trace as report
from trainprof.report.trace import write

NOTHING = np.empty(0, dtype=np.int64)
NO_FLOWS = Flows(from_tid=NOTHING, from_ns=NOTHING, to_tid=NOTHING, to_ns=NOTHING)


def written(trace):
    """Returns the events of the file, which has no number that JSON does not have."""
    file = io.BytesIO()
    write(trace, file)
    text = gzip.decompress(file.getvalue()).decode("ascii")
    return json.loads(text, parse_constant=lambda x: {}[x])["traceEvents"]


def ints(*values):
    return np.array(values, dtype=np.int64)


def test_outer_slices_come_first_and_no_ns_is_lost():
    """Perfetto rounds down what it reads, and drops slices that overlap."""
    long = 10**14
    outer = Slices(name="forward", start_ns=ints(1, 7_001), ns=ints(6_999, long), depth=ints(0, 0))
    inner = Slices(
        name="sample",
        start_ns=ints(1, 3_000),
        ns=ints(2_999, 4_000),
        depth=ints(1, 1),
        number=ints(3, 4),
        args={"line": Texts(texts=["a", HOSTILE], index=ints(1, 0)), "bytes": ints(0, 1 << 60)},
    )
    thread = Thread(tid=9, name=HOSTILE, slices=[inner, outer])
    events = written(Trace(processes=[Process(name="p", threads=[thread])], flows=NO_FLOWS))
    names = [x["args"]["name"] for x in events if x["name"].endswith("_name")]
    hostile = '"\\%s{0}\\ud800é</script><img src=x onerror=alert(1)> '
    assert names == ["p", hostile]
    slices = [x for x in events if x["ph"] == "X"]
    times = [(x["name"], int(x["ts"] * 1000), int(x["dur"] * 1000)) for x in slices]
    assert times == [
        ("forward", 1, 6_999),
        ("sample 3", 1, 2_999),
        ("sample 4", 3_000, 4_000),
        ("forward", 7_001, long),
    ]
    assert slices[1]["args"] == {"line": hostile, "bytes": 0}
    assert slices[2]["args"] == {"line": "a", "bytes": 1 << 60}


def test_what_was_not_observed_is_left_out_of_a_counter():
    values = np.array([1.5, np.nan, np.inf, 0.0])
    counter = Counter(name="CPU", unit="%", start_ns=ints(0, 1, 2, 3_000), values=values)
    events = written(Trace(processes=[Process(name="p", counters=[counter])], flows=NO_FLOWS))
    assert [(x["ts"], x["args"]) for x in events if x["ph"] == "C"] == [
        (0.0001, {"%": 1.5}),
        (3.0001, {"%": 0}),
    ]


def test_pieces_of_a_long_trace_are_in_order(tmp_path, monkeypatch):
    trace = trace_of(traced_run().write(tmp_path))
    at_once = written(trace)
    monkeypatch.setattr(report, "_CHUNK", 7)
    assert written(trace) == at_once
    starts = [x["ts"] for x in at_once if x["ph"] == "X" and x["pid"] == x["tid"] == 1]
    assert starts == sorted(starts)
    assert [x["ph"] for x in at_once[-24:]] == ["s", "f"] * 12
