"""Traces of planted runs: every slice and flow is where it was, and slices nest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_run import DeviceRun
from support.events import MS, US, FakeRun
from support.traced_run import COLLATE_NS, FETCH_NS, GC_NS, NEXT_NS, SAVE_NS, TracedRun, traced_run
from support.traced_run import assert_nested as nested

from trainprof.analysis.run.analysed import NothingThere
from trainprof.analysis.summary.trace import Slices, Thread
from trainprof.analysis.timeline.events import Events
from trainprof.analysis.trace import trace as tracing
from trainprof.analysis.trace.slices import pieces_of
from trainprof.analysis.trace.trace import trace_of

STEP_NS = 850 * US


def totals(trace):
    """Number and total ns of slices, by process, thread and name."""
    spent = {}
    for process in trace.processes:
        for thread in process.threads:
            nested(thread)
            for slices in thread.slices:
                key = (process.name, thread.name, slices.name)
                count, ns = spent.get(key, (0, 0))
                spent[key] = count + len(slices), ns + int(slices.ns.sum())
    return spent


def slices_of(trace, name):
    every = [x for p in trace.processes for t in p.threads for x in t.slices]
    return [x for x in every if x.name == name]


def joined(trace, run):
    """Flows as worker, start of its fetch, and place in the call; ns of the fake clock."""
    flows, start = trace.flows, run.script.start
    worker_of = {t.tid: int(p.name.split()[1]) for p in trace.processes[1:] for t in p.threads}
    assert set(flows.to_tid.tolist()) <= {trace.processes[0].threads[0].tid}
    workers = [worker_of[tid] for tid in flows.from_tid.tolist()]
    times = (flows.from_ns + start).tolist(), (flows.to_ns + start).tolist()
    return sorted(zip(workers, *times, strict=True))


def planted(batches):
    return sorted((pid % 100, fetch, max(call, fetch + 1)) for pid, fetch, call in batches)


def test_every_slice_is_where_it_was(tmp_path):
    run = traced_run()
    trace = trace_of(run.write(tmp_path, script="/work/train.py"))
    wall = run.script.now - run.script.start
    spent = totals(trace)
    training = {k[2]: x for k, x in spent.items() if k[:2] == ("train.py", "main thread: training")}
    outline = [training.pop(name) for name in ("startup", "epoch", "shutdown")]
    assert sum(ns for _, ns in outline) == wall
    validation = 10 * US + 3 * 120 * US + 5 * US
    # With what is between an epoch's last step and the next epoch's first.
    between = 500 * US + 5 * US + SAVE_NS
    assert training.pop("step")[1] == 12 * STEP_NS + 500 * US + between
    assert training == {
        "evaluation": (2, 2 * validation),
        "loader_start": (4, 2 * 510 * US),
        "first_batch": (4, 2 * (NEXT_NS + 50 * US)),
        "data_wait": (14, 10 * NEXT_NS + 4 * 50 * US),
        "loader_end": (4, 20 * US),
        "forward": (18, 12 * 200 * US + 6 * 70 * US),
        "gc": (12, 12 * GC_NS),
        "backward": (12, 12 * 300 * US),
        "optimizer": (12, 12 * 50 * US),
        "checkpoint": (2, 2 * SAVE_NS),
    }
    for worker in range(2):
        name = f"worker {worker} of the training loader at train.py:41"
        assert spent[name, "fetches", "fetch"] == (6, 6 * FETCH_NS)
        assert spent[name, "fetches", "collate"] == (6, 6 * COLLATE_NS)
        assert spent[name, "fetches", "sample"] == (6, 6 * 100 * US)
    assert spent["train.py", "thread 3: pin memory", "pin memory"] == (1, 5 * US)
    [first, *_] = slices_of(trace, "fetch")
    assert first.args["batch"].tolist() == [1, 3, 5]
    assert first.args["samples"].tolist() == [4, 4, 4]
    [saved] = slices_of(trace, "checkpoint")
    assert saved.args["line"].texts == ["train.py:50"]
    steps = slices_of(trace, "step")
    assert {(n, e) for x in steps for n, e in zip(x.number, x.args["epoch"], strict=True)} == {
        *((n, 1) for n in range(1, 8)),
        *((n, 2) for n in range(7, 13)),
    }


def test_counters_are_those_of_the_machine(tmp_path):
    trace = trace_of(traced_run().write(tmp_path))
    counters = {x.name: x for x in trace.processes[-1].counters}
    assert set(counters) == {"CPU host", "memory host available"}
    assert counters["CPU host"].values == pytest.approx(50, rel=0.01)
    assert (counters["CPU host"].unit, counters["CPU host"].start_ns[0]) == ("%", 0)
    assert (counters["memory host available"].values == 1 << 30).all()


def test_a_batch_flows_from_its_fetch_to_the_call_that_returned_it(tmp_path):
    run = traced_run()
    trace = trace_of(run.write(tmp_path))
    assert joined(trace, run) == planted(run.batches)


def persistent(run, *, stop, left=0):
    run.epoch(4, pids=5000, stop=stop, left=left)
    run.epoch(4, pids=5000, resumed=True)


@pytest.mark.parametrize(
    ("plant", "metadata", "kept"),
    [
        pytest.param(lambda r: persistent(r, stop=True), {}, range(8), id="persistent"),
        pytest.param(lambda r: persistent(r, stop=False), {}, range(8), id="all were taken"),
        pytest.param(lambda r: persistent(r, stop=False, left=2), {}, range(4), id="left early"),
        pytest.param(lambda r: r.epoch(4, pids=5000), {"in_order": False}, [], id="any order"),
        # In its last turn a worker only finds its share at its end.
        pytest.param(
            lambda r: r.epoch(5, pids=5000, left=3), {"is_iterable": True}, range(5), id="iterable"
        ),
        pytest.param(
            lambda r: r.epoch(6, pids=5000), {"is_iterable": True}, range(4), id="ends of shares"
        ),
    ],
)
def test_no_flow_where_the_order_is_not_sure(tmp_path, plant, metadata, kept):
    run = TracedRun(metadata=metadata)
    plant(run)
    expected = planted([run.batches[n] for n in kept])
    assert joined(trace_of(run.write(tmp_path)), run) == expected


def test_no_flow_in_an_epoch_in_which_a_call_ended_before_its_fetch(tmp_path):
    run = traced_run()
    worker = run.workers[5100]
    pid, start, call = next(x for x in run.batches if x[0] == worker.pid)
    run.workers[5100].records.clear()
    run.fetch(0, pid, start, call + NEXT_NS - start + 1)
    for _, later, _ in [x for x in run.batches if x[0] == pid][1:]:
        run.fetch(0, pid, later)
    assert joined(trace_of(run.write(tmp_path)), run) == planted(run.batches[:6])


def test_a_part_has_what_began_in_it(tmp_path):
    run = traced_run()
    directory = run.write(tmp_path)
    trace = trace_of(directory, steps=(2, 5))
    totals(trace)
    steps = slices_of(trace, "step")
    assert [x.number.tolist() for x in steps] == [[3, 4, 5]]
    begins, ends = int(steps[0].start_ns[0]), int(steps[0].start_ns[-1] + STEP_NS)
    every = [x for p in trace.processes for t in p.threads for x in t.slices]
    assert all((x.start_ns >= begins).all() and (x.start_ns < ends).all() for x in every)
    assert joined(trace, run) == planted(run.batches[3:5])
    counters = trace.processes[-1].counters
    assert all((x.start_ns >= begins).all() and (x.start_ns < ends).all() for x in counters)
    epoch = trace_of(directory, epoch=1)
    assert [x.number.tolist() for x in slices_of(epoch, "epoch")] == [[2]]
    assert len(epoch.flows) == 6
    with pytest.raises(NothingThere):
        trace_of(directory, epoch=2)


def test_of_a_large_run_the_first_steps_that_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "MAX_SLICES", 70)
    directory = traced_run().write(tmp_path)
    trace = trace_of(directory)
    assert max(n for x in slices_of(trace, "step") for n in x.number.tolist()) == 7
    # Of slow samples each worker records a few more.
    counts = {k[2]: count for k, (count, _) in totals(trace).items()}
    assert sum(counts.values()) - counts["sample"] <= 70
    assert "steps 1 to 7 of 12" in trace.note
    assert "steps 3 to 9 of 12" in trace_of(directory, steps=(2, 12)).note
    assert trace_of(directory, steps=(2, 4)).note is None
    forwards = FakeRun()
    for _ in range(200):
        forwards.forward(MS)
    trace = trace_of(forwards.write(tmp_path / "forwards"))
    assert sum(len(x) for x in slices_of(trace, "forward")) <= 70
    assert "the first 0 s" in trace.note


def test_the_device_has_its_phases(tmp_path):
    run = DeviceRun()
    run.start()
    for _ in range(30):
        run.next(15 * MS)
        run.learn(4 * MS, 8 * MS, 2 * MS)
    run.item()  # which sees the last marks
    trace = trace_of(run.run.write(tmp_path))
    device = {k[2]: x for k, x in totals(trace).items() if k[0] == "device cuda:0"}
    assert {name: count for name, (count, _) in device.items()} == {
        "forward": 30,
        "backward": 30,
        "optimizer": 30,
    }
    assert device["backward"][1] == pytest.approx(30 * 8 * MS, rel=0.05)


def test_nothing_recorded_is_an_empty_run(tmp_path):
    run = FakeRun()
    run.passes_time(MS)
    trace = trace_of(run.write(tmp_path))
    assert [(k[2], x) for k, x in totals(trace).items()] == [("startup", (1, MS))]
    assert (len(trace.flows), len(trace.processes)) == (0, 1)


TIMES = st.integers(0, 60)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(TIMES, st.integers(0, 40)), max_size=30), st.sets(TIMES))
def test_slices_nest_whatever_a_damaged_log_holds(spans, cuts):
    spans.sort(key=lambda x: (x[0], -x[1]))
    start, ns = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    plain = np.zeros(len(spans), dtype=np.int64)
    events = Events(plain.astype(np.uint8), *[plain] * 3, start, start + ns, plain)
    edges = np.array(sorted(cuts), dtype=np.int64)
    pieces = pieces_of(events, edges)
    slices = Slices(
        name="",
        start_ns=pieces.start_ns,
        ns=pieces.end_ns - pieces.start_ns,
        depth=pieces.depth,
    )
    nested(Thread(tid=1, name="", slices=[slices]))
    first = np.searchsorted(edges, pieces.start_ns, side="right")
    last = np.searchsorted(edges, pieces.end_ns, side="left")
    assert (last <= first).all()
