"""Line times added up over processes; texts of lines as they ran; what is lost is said."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import MS, FakeRun
from support.line_runs import LineRun

from trainprof.analysis.lines import recording
from trainprof.analysis.lines.recording import decoded_lines, read_line_profile
from trainprof.analysis.lines.times import (
    FunctionTimes,
    LineProfile,
    LineTime,
    arranged,
    block,
    last_rows,
    line_cost,
    of_process,
)
from trainprof.analysis.run.process_name import ProcessName, process_names
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import HEADER_BYTES, Kind, Topic

DATA = """\
import time

class Photos:
    def __getitem__(self, index):
        time.sleep(0.005)
        return index

    # a remark on what follows
    def __len__(self):
        return 10
"""
MAIN = ProcessName()


def workers(*numbers: int) -> list[ProcessName]:
    return [ProcessName(worker=number) for number in numbers]


def four_workers(tmp_path: Path) -> LineRun:
    """One main process and four workers; the sleep of each takes 5 ms a sample."""
    run = LineRun(tmp_path)
    run.source("data.py", DATA)
    main = run.process(overhead_ns=100)
    main.function("data.py", 4, "Photos.__getitem__", "dataset")
    main.lines(main.function("data.py", 9, "Photos.__len__"), {10: (3, 900)})
    for worker in range(4):
        process = run.process(worker=worker, overhead_ns=100)
        process.function("data.py", 9, "Photos.__len__")
        getitem = process.function("data.py", 4, "Photos.__getitem__", "dataset")
        hits = 10 + worker
        process.lines(getitem, {5: (hits, hits * 5 * MS), 6: (hits, hits * 200)})
    return run


def rows(function: FunctionTimes) -> dict[int, tuple[int, float]]:
    return {row.line: (row.hits, row.time) for row in function.rows}


def by_name(profile: LineProfile) -> dict[str, FunctionTimes]:
    return {function.name: function for function in profile.functions}


# -- processes ----------------------------------------------------------------------------------


def test_processes_are_added_up_line_by_line(tmp_path: Path) -> None:
    profile = read_line_profile(four_workers(tmp_path).write())
    getitem, length = profile.functions
    assert (getitem.name, getitem.line, getitem.why) == ("Photos.__getitem__", 4, "dataset")
    assert rows(getitem) == {5: (46, 46 * 5 * MS), 6: (46, 46 * 200)}
    assert rows(length) == {10: (3, 900)}
    assert profile.processes() == [MAIN, *workers(0, 1, 2, 3)]
    assert [name for name, _ in getitem.by_process] == workers(0, 1, 2, 3)
    assert [name for name, _ in length.by_process] == [MAIN]


def test_the_sum_of_all_processes_is_the_whole(tmp_path: Path) -> None:
    profile = read_line_profile(four_workers(tmp_path).write())
    for function in profile.functions:
        total: dict[int, tuple[int, float]] = {}
        for process in profile.processes():
            for one in of_process(profile, process).functions:
                if one.name == function.name:
                    for row in one.rows:
                        hits, time = total.get(row.line, (0, 0))
                        total[row.line] = (hits + row.hits, time + row.time)
        assert total == rows(function)


def test_workers_of_a_later_epoch_are_the_same_workers(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    run.source("data.py", DATA)
    run.process()
    for worker in (0, 1, 0, 1):
        process = run.process(worker=worker)
        process.lines(process.function("data.py", 4, "get"), {5: (1, 1000)})
    (function,) = read_line_profile(run.write()).functions
    assert rows(function) == {5: (4, 4000)}
    assert [name.label for name, _ in function.by_process] == ["worker 0", "worker 1"]


def test_names_of_processes() -> None:
    script = FakeRun(pid=1)
    ranks = [FakeRun(pid=10 + rank, role="child", header={"ancestors": [1]}) for rank in (0, 1)]
    for number, rank in enumerate(ranks):
        rank.text(Topic.ENVIRONMENT, {"rank": number, "world_size": 2})
    worker = FakeRun(pid=20, role="child", header={"ancestors": [11, 1]})
    worker.fetch(100, 4, flags=3)
    helper = FakeRun(pid=21, role="child", header={"ancestors": [11, 1], "rank": "1"})
    stray = FakeRun(pid=22, role="child", header={"ppid": "x", "ancestors": 7, "rank": "9" * 99})
    loading = FakeRun(pid=23)
    loading.fetch(100, 4)
    logs = [one.log() for one in (script, *ranks, worker, helper, stray, loading)]
    assert [name.label for name in process_names(logs)] == [
        "main",
        "rank 0",
        "rank 1",
        "rank 1 worker 2",
        "rank 1 process 21",
        "process 22",
        "main",
    ]


def test_a_rank_that_was_started_as_such_is_one() -> None:
    rank = FakeRun(pid=1, header={"rank": "3"})
    worker = FakeRun(pid=2, role="child", header={"rank": "3", "ancestors": [1]})
    worker.fetch(100, 4, flags=1)
    names = process_names([rank.log(), worker.log()])
    assert [name.label for name in names] == ["rank 3", "rank 3 worker 0"]


def test_ranks_with_a_recording_of_their_own_are_one_run(tmp_path: Path) -> None:
    whole = RunDirectory(tmp_path / "whole")
    whole.ranks.mkdir(parents=True)
    for rank in range(2):
        parent = tmp_path / str(rank)
        parent.mkdir()
        run = LineRun(parent)
        run.source("data.py", DATA)
        process = run.process(rank=str(rank))
        process.lines(process.function(str(tmp_path / "data.py"), 4, "get"), {5: (2, 500)})
        run.write().path.rename(whole.ranks / str(rank))
    profile = read_line_profile(whole)
    assert [rows(one) for one in profile.functions] == [{5: (4, 1000)}]
    assert [name.label for name in profile.processes()] == ["rank 0", "rank 1"]


# -- records ------------------------------------------------------------------------------------


def test_the_last_record_of_a_line_counts(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    process = run.process()
    function = process.function("data.py", 4, "get")
    for hits in (1, 7, 9):
        process.lines(function, {5: (hits, hits * 100), 70_000: (hits, hits)})
    found = last_rows(process.log.log())
    assert found == {function: {5: (9, 900), 70_000: (9, 9)}}


def test_a_record_cut_off_by_a_kill_leaves_the_one_before_it(tmp_path: Path) -> None:
    process = LineRun(tmp_path).process()
    function = process.function("data.py", 4, "get")
    process.lines(function, {5: (9, 900)})
    process.log.thread = 5
    process.log.record(Kind.LINE, process.log.now, 0, site=function)  # its end was not written
    process.log.record(Kind.LINE, process.log.now, process.log.now + 990, site=function)
    assert last_rows(process.log.log()) == {function: {5: (9, 900)}}


def test_lines_without_their_functions_name_are_counted_as_lost(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    process = run.process()
    process.lines(77, {5: (1, 100)})
    profile = read_line_profile(run.write())
    assert profile.functions == ()
    assert profile.damage == ("the names of timed functions are lost (1)",)


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {},
        {"file": 5, "line": 1, "name": "f"},
        {"file": "x", "line": -1, "name": "f"},
        {"file": "x", "line": 1 << 30, "name": "f"},
        {"file": "x", "line": True, "name": "f"},
        {"file": "x", "line": 1, "name": "f" * 5000},
        {"file": "x", "line": 1, "name": None},
    ],
)
def test_facts_that_are_none_are_left_out(tmp_path: Path, facts: object) -> None:
    run = LineRun(tmp_path)
    run.process().log.text(Topic.LINE_FUNCTION, facts)
    assert read_line_profile(run.write()).functions == ()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run, made once: its logs hold its path, and are as long as that makes them."""
    return four_workers(tmp_path_factory.mktemp("damaged")).write()


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_log_damaged_anywhere_is_read(recorded: RunDirectory, data: st.DataObject) -> None:
    path = sorted(recorded.events.iterdir())[1]
    whole = path.read_bytes()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(HEADER_BYTES, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        profile = read_line_profile(recorded)
        assert summarize(recorded).lines is not None
        for function in profile.functions:
            block(function)
            assert all(row.hits > 0 and row.time >= 0 for row in function.rows)
    finally:
        path.write_bytes(whole)


# -- texts --------------------------------------------------------------------------------------


def test_an_edited_file_never_shows_its_new_lines(tmp_path: Path) -> None:
    run = four_workers(tmp_path)
    directory = run.write()
    getitem = read_line_profile(directory).functions[0]
    assert not getitem.source.has_changed
    (run.project / "data.py").write_text("# something else\n" + DATA)
    edited = read_line_profile(directory).functions[0]
    assert edited.source.has_changed
    assert block(edited) == block(getitem)


def test_a_file_that_is_gone_has_not_changed(tmp_path: Path) -> None:
    run = four_workers(tmp_path)
    (run.project / "data.py").unlink()
    getitem = read_line_profile(run.write()).functions[0]
    assert not getitem.source.has_changed


def test_a_functions_lines_end_where_it_ends(tmp_path: Path) -> None:
    getitem, length = read_line_profile(four_workers(tmp_path).write()).functions
    text = DATA.splitlines(keepends=True)
    assert block(getitem) == tuple(text[3:6])
    assert block(length) == tuple(text[8:])


def test_a_modules_lines_are_all_of_the_file(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    run.source("data.py", DATA)
    process = run.process()
    process.lines(process.function("data.py", 1, "<module>", "module level"), {1: (1, 10)})
    (module,) = read_line_profile(run.write()).functions
    assert block(module) == tuple(DATA.splitlines(keepends=True))


@pytest.mark.parametrize("text", ["x = (\n", "\0\0\n", "if x:\n  a\n b\n", "'''", "\\\n", "\x1a"])
def test_a_timed_line_is_shown_whatever_the_text_is(tmp_path: Path, text: str) -> None:
    run = LineRun(tmp_path)
    run.source("odd.py", text + "\n" * 10)
    process = run.process()
    process.lines(process.function("odd.py", 1, "f"), {9: (1, 10), 5000: (1, 10)})
    (function,) = read_line_profile(run.write()).functions
    found = block(function)
    assert found is not None
    assert len(found) >= 9


def test_the_same_function_of_two_texts_is_two(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    for text in ("def f():\n    return 1\n", "def f():\n    return 2\n"):
        run.source("f.py", text)
        process = run.process()
        process.lines(process.function("f.py", 1, "f"), {2: (1, 10)})
    process = run.process()
    process.lines(process.function("f.py", 1, "f", source=None), {2: (1, 10)})
    profile = read_line_profile(run.write())
    assert [rows(one) for one in profile.functions] == [{2: (1, 10)}] * 3
    assert list(profile.timings().values()) == [[(2, 3, 30)]]


@pytest.mark.parametrize(
    ("content", "first"),
    [
        ("x = 'é'\r\ny = 1".encode(), "x = 'é'\n"),
        (b"\xef\xbb\xbfx = 1\n", "x = 1\n"),
        ("# coding: latin-1\nx = 'é'\n".encode("latin-1"), "# coding: latin-1\n"),
        (b"# coding: punycode\nx\n", "# coding: punycode\n"),
        (b"# coding: nonsense\nx\n", "# coding: nonsense\n"),
        (b"x = '\xff'\n", "x = '\ufffd'\n"),
        (b"a\rb", "a\n"),
    ],
)
def test_texts_are_decoded_as_python_does(content: bytes, first: str) -> None:
    lines = decoded_lines(content)
    assert lines[0] == first
    assert all(line.endswith("\n") for line in lines)


def test_latin_1_is_read_as_such() -> None:
    assert decoded_lines("# coding: latin-1\nx = 'é'\n".encode("latin-1"))[1] == "x = 'é'\n"


# -- hostile ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../secret.py", "..", "", "/etc/hostname", "a\0b", "\udcff", "x/y"]
)
def test_nothing_outside_of_sources_is_read(tmp_path: Path, name: str) -> None:
    run = LineRun(tmp_path)
    run.source("data.py", DATA)
    (run.directory.path / "secret.py").write_text("def secret(): pass\n")
    process = run.process()
    process.lines(process.function("data.py", 1, "f", source=name), {1: (1, 10)})
    (function,) = read_line_profile(run.write()).functions
    assert function.source is None
    assert block(function) is None


def test_links_fifos_and_large_files_are_no_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LineRun(tmp_path)
    secret = run.source("data.py", DATA)
    sources = run.directory.sources
    (sources / "link").symlink_to(secret)
    os.mkfifo(sources / "fifo")
    (sources / "large").write_text("x = 1\n" * 100)
    monkeypatch.setattr(recording, "MAX_SOURCE_BYTES", 500)
    process = run.process()
    for number, name in enumerate(("link", "fifo", "large")):
        process.lines(process.function("data.py", number, name, source=name), {9: (1, 10)})
    assert [one.source for one in read_line_profile(run.write()).functions] == [None] * 3


def test_all_sources_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_SOURCES_BYTES", 25)
    run = LineRun(tmp_path)
    process_sources = [run.source(f"{name}.py", "x = 1\n" * 2) for name in "abc"]
    process = run.process()
    for path in process_sources:
        process.lines(process.function(path.name, 1, path.stem), {1: (1, 10)})
    found = by_name(read_line_profile(run.write()))
    assert [found[name].source is None for name in "abc"] == [False, False, True]


def test_what_the_text_is_compared_with_is_a_plain_file(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    run.source("data.py", DATA)
    os.mkfifo(tmp_path / "fifo")
    process = run.process()
    for file in (str(tmp_path / "fifo"), "/dev/zero", str(tmp_path), "relative.py", "<stdin>"):
        facts = {"file": file, "line": 1, "name": "f", "source": process.sources["data.py"]}
        process.lines(process.log.text(Topic.LINE_FUNCTION, facts), {1: (1, 10)})
    functions = read_line_profile(run.write()).functions
    assert len(functions) == 5
    assert not any(one.source.has_changed for one in functions if one.source)


# -- what was never reached ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "only", "workers", "part"),
    [
        ({"why": "profile"}, None, 0, "not called in a recorded process"),
        ({"why": "training loop", "kind": "compiled"}, None, 2, "compiled"),
        ({"why": "collate"}, "main", 2, "--only main leaves the workers out"),
        ({"why": "training loop"}, "workers", 2, "--only workers leaves the main process out"),
    ],
)
def test_zero_hits_are_explained(
    tmp_path: Path, facts: dict[str, str], only: str | None, workers: int, part: str
) -> None:
    run = LineRun(tmp_path, {"functions": [], "only": only})
    process = run.process()
    process.log.loader(41, num_workers=workers)
    process.function("data.py", 1, "f", **facts)
    (function,) = read_line_profile(run.write()).functions
    assert function.rows == ()
    assert part in (function.unseen or "")


def test_a_function_found_compiled_at_the_end_is_told_as_such(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    process = run.process()
    process.function("data.py", 1, "f", kind="function")
    process.function("data.py", 1, "f", kind="compiled")
    (function,) = read_line_profile(run.write()).functions
    assert "compiled" in (function.unseen or "")


# -- order and cost -----------------------------------------------------------------------------


def test_functions_in_order_of_time_and_the_longest_of_them() -> None:
    def function(name: str, time: int) -> FunctionTimes:
        return FunctionTimes("x.py", 1, name, "", None, (LineTime(1, 1, time),))

    profile = LineProfile(tuple(map(function, "abcd", (5, 20, 1, 10))))

    def names(shown: LineProfile) -> str:
        return "".join(one.name for one in shown.functions)

    assert names(arranged(profile)) == "abcd"
    assert names(arranged(profile, by_time=True)) == "cadb"
    assert names(arranged(profile, top=2)) == "bd"
    assert names(arranged(profile, top=2, by_time=True)) == "db"
    assert names(arranged(profile, top=9)) == "abcd"


def test_cost_is_overhead_times_hits(tmp_path: Path) -> None:
    run = four_workers(tmp_path)
    cost = read_line_profile(run.write()).cost
    assert (cost.functions, cost.processes) == (2, 5)
    assert cost.hits == 3 + 2 * 46
    assert cost.overhead_ns == pytest.approx(100)
    assert cost.added_s == pytest.approx(95 * 100e-9)


def test_overhead_that_was_not_measured_is_not_known(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    process = run.process()
    process.log.text(Topic.ENVIRONMENT, {"line_overhead_ns": "soon"})
    process.lines(process.function("data.py", 1, "f"), {2: (4, 10)})
    cost = line_cost([process.log.log()])
    assert (cost.hits, cost.overhead_ns, cost.added_s) == (4, None, None)
    assert line_cost([FakeRun().log()]) is None


def test_a_run_whose_lines_were_timed_gives_no_verdict(tmp_path: Path) -> None:
    def summary_of(run: FakeRun, name: str, **manifest: object) -> RunSummary:
        loader, optimizer = run.loader(), run.optimizer()
        run.train_pass(loader, optimizer, 60, wait=MS)
        if name == "told":
            run.text(Topic.LINE_FUNCTION, {"file": "x", "line": 1, "name": "f"})
        (tmp_path / name).mkdir()
        return summarize(run.write(tmp_path / name, **manifest))

    bare = summary_of(FakeRun(), "bare")
    asked = summary_of(FakeRun(), "asked", options={"lines": {"only": None}})
    told = summary_of(FakeRun(), "told")
    assert bare.verdict.bottleneck == "data"
    for summary in (asked, told):
        assert summary.verdict.bottleneck == "unknown"
        assert summary.verdict.headline.startswith("NO VERDICT: ")
        assert summary.verdict.share is None
    assert told.lines is not None
    same = replace(told, run=bare.run, verdict=bare.verdict, overhead=bare.overhead, lines=None)
    assert told.findings_from is None
    assert same == replace(bare, findings_from=None)
