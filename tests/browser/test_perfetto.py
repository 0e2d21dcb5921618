"""A planted run's trace in Perfetto: nothing is dropped, and its tables have what was planted."""

from __future__ import annotations

from playwright.sync_api import Browser
from support.events import US
from support.perfetto import perfetto
from support.traced_run import COLLATE_NS, FETCH_NS, GC_NS, HOSTILE, SAVE_NS, traced_run

from trainprof.analysis.trace.trace import trace_of
from trainprof.report.trace import write

JOINED = """select so.name, si.name, count(*) from flow
    join slice so on so.id = slice_out join slice si on si.id = slice_in group by 1, 2"""
COUNTERS = """select t.name, count(*) > 10, max(value) from counter
    join counter_track t on t.id = track_id group by 1"""
MODULES = "select distinct display_value from args where flat_key = 'args.module'"


def test_perfetto_reads_every_slice_flow_and_counter(tmp_path, browser: Browser):
    trace = trace_of(traced_run().write(tmp_path, script=f"/work/{HOSTILE}.py"))
    with (tmp_path / "trace.json.gz").open("wb") as file:
        write(trace, file)
    page = browser.new_page()
    with perfetto(tmp_path, page) as shown:
        shown.open("trace.json.gz")
        assert shown.problems() == []
        slices = {
            name: (count, ns)
            for name, count, ns in shown.query(
                "select name, count(*), sum(dur) from slice group by 1"
            )
        }
        written = [x for p in trace.processes for t in p.threads for x in t.slices]
        assert sum(count for count, _ in slices.values()) == sum(map(len, written))
        planted = {
            "forward": (18, 12 * 200 * US + 6 * 70 * US),
            "backward": (12, 12 * 300 * US),
            "garbage collection": (12, 12 * GC_NS),
            "checkpoints": (2, 2 * SAVE_NS),
            "fetch": (12, 12 * FETCH_NS),
            "collate": (12, 12 * COLLATE_NS),
            "sample 4711": (12, 12 * 100 * US),
        }
        assert {name: slices[name] for name in planted} == planted
        assert shown.query(JOINED) == [
            ["fetch", "first batch of an epoch", 2],
            ["fetch", "waiting for data", 10],
        ]
        assert shown.query(COUNTERS) == [
            ["CPU host %", 1, 50],
            ["memory host available bytes", 1, 1 << 30],
        ]
        processes = shown.query("select name from process where name is not null order by pid")
        assert [name for (name,) in processes][1:] == [
            "worker 0 of the training loader at train.py:41",
            "worker 1 of the training loader at train.py:41",
            "machine",
        ]
        [[module]] = shown.query(MODULES)
        assert "</script><img src=x onerror=alert(1)>" in module
        assert shown.errors == []
    page.close()
