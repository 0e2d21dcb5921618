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
from trainprof.analysis.lines.times import last_rows
from trainprof.analysis.run.process_name import ProcessName, process_names
from trainprof.analysis.summary.code import FunctionTimes, block, of_process
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


def test_processes_are_added_up_line_by_line(tmp_path: Path) -> None:
    profile = read_line_profile(four_workers(tmp_path).write())
    getitem, length = profile.functions
    assert (getitem.name, getitem.line, getitem.why) == ("Photos.__getitem__", 4, "dataset")
    assert rows(getitem) == {5: (46, 46 * 5 * MS), 6: (46, 46 * 200)}
    assert rows(length) == {10: (3, 900)}
    assert profile.processes() == [MAIN, *workers(0, 1, 2, 3)]
    assert [name for name, _ in getitem.by_process] == workers(0, 1, 2, 3)
    assert [name for name, _ in length.by_process] == [MAIN]
    second = {function.name: function for function in of_process(profile, workers(1)[0]).functions}
    assert rows(second["Photos.__getitem__"]) == {5: (11, 11 * 5 * MS), 6: (11, 11 * 200)}
    # Lines end where their function does.
    text = DATA.splitlines(keepends=True)
    assert (block(getitem), block(length)) == (tuple(text[3:6]), tuple(text[8:]))
    cost = profile.cost
    assert (cost.functions, cost.processes, cost.hits) == (2, 5, 3 + 2 * 46)
    assert cost.overhead_ns == pytest.approx(100)
    assert cost.added_s == pytest.approx(95 * 100e-9)


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
    logs = [run.log() for run in (script, *ranks, worker, helper, stray, loading)]
    assert [name.label for name in process_names(logs)] == [
        "main",
        "rank 0",
        "rank 1",
        "rank 1 worker 2",
        "rank 1 process 21",
        "process 22",
        "main",
    ]


def test_ranks_with_a_trainprof_each(tmp_path: Path) -> None:
    rank = FakeRun(pid=1, header={"rank": "3"})
    worker = FakeRun(pid=2, role="child", header={"rank": "3", "ancestors": [1]})
    worker.fetch(100, 4, flags=1)
    names = process_names([rank.log(), worker.log()])
    assert [name.label for name in names] == ["rank 3", "rank 3 worker 0"]
    whole = RunDirectory(tmp_path / "whole")
    whole.ranks.mkdir(parents=True)
    for number in range(2):
        parent = tmp_path / str(number)
        parent.mkdir()
        run = LineRun(parent)
        run.source("data.py", DATA)
        process = run.process(rank=str(number))
        process.lines(process.function(str(tmp_path / "data.py"), 4, "get"), {5: (2, 500)})
        run.write().path.rename(whole.ranks / str(number))
    profile = read_line_profile(whole)
    assert [rows(function) for function in profile.functions] == [{5: (4, 1000)}]
    assert [name.label for name in profile.processes()] == ["rank 0", "rank 1"]


def test_the_last_whole_record_of_a_line_counts(tmp_path: Path) -> None:
    process = LineRun(tmp_path).process()
    function = process.function("data.py", 4, "get")
    for hits in (1, 7, 9):
        process.lines(function, {5: (hits, hits * 100), 70_000: (hits, hits)})
    process.log.thread = 5  # records that a kill cut off
    process.log.record(Kind.LINE, process.log.now, 0, site=function)
    process.log.record(Kind.LINE, process.log.now, process.log.now + 990, site=function)
    assert last_rows(process.log.log()) == {function: {5: (9, 900), 70_000: (9, 9)}}


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        {"file": 5, "line": 1, "name": "f"},
        {"file": "x", "line": 1 << 30, "name": "f"},
        {"file": "x", "line": 1, "name": "f" * 5000},
    ],
)
def test_what_is_no_function_is_left_out(tmp_path: Path, metadata: object) -> None:
    run = LineRun(tmp_path)
    run.process().log.text(Topic.LINE_FUNCTION, metadata)
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


@pytest.mark.parametrize("text", [DATA, "# something else\n" + DATA, None])
def test_an_edited_file_never_shows_its_new_lines(tmp_path: Path, text: str | None) -> None:
    run = four_workers(tmp_path)
    directory = run.write()
    path = run.project / "data.py"
    path.unlink() if text is None else path.write_text(text)
    getitem = read_line_profile(directory).functions[0]
    assert getitem.source.has_changed is (text not in (DATA, None))
    assert block(getitem) == tuple(DATA.splitlines(keepends=True)[3:6])


@pytest.mark.parametrize("text", ["x = (\n", "\0\0\n", "if x:\n  a\n b\n", "'''", "\\\n", "\x1a"])
def test_a_timed_line_is_shown_whatever_the_text_is(tmp_path: Path, text: str) -> None:
    run = LineRun(tmp_path)
    run.source("odd.py", text + "\n" * 10)
    process = run.process()
    process.lines(process.function("odd.py", 1, "f"), {9: (1, 10), 5000: (1, 10)})
    (function,) = read_line_profile(run.write()).functions
    assert len(block(function)) >= 9


def test_the_same_function_of_two_texts_is_two(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    for text in ("def f():\n    return 1\n", "def f():\n    return 2\n"):
        run.source("f.py", text)
        process = run.process()
        process.lines(process.function("f.py", 1, "f"), {2: (1, 10)})
    process = run.process()
    process.lines(process.function("f.py", 1, "f", source=None), {2: (1, 10)})
    profile = read_line_profile(run.write())
    assert [rows(function) for function in profile.functions] == [{2: (1, 10)}] * 3
    assert list(profile.timings().values()) == [[(2, 3, 30)]]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("x = 'é'\r\ny = 1".encode(), ("x = 'é'\n", "y = 1\n")),
        (b"\xef\xbb\xbfx = 1\n", ("x = 1\n",)),
        ("# coding: latin-1\nx = 'é'\n".encode("latin-1"), ("# coding: latin-1\n", "x = 'é'\n")),
        (b"# coding: punycode\nx\n", ("# coding: punycode\n", "x\n")),
        (b"# coding: nonsense\nx\n", ("# coding: nonsense\n", "x\n")),
        (b"x = '\xff'\n", ("x = '\ufffd'\n",)),
        (b"a\rb", ("a\n", "b\n")),
    ],
)
def test_texts_are_decoded_as_python_does(content: bytes, lines: tuple[str, ...]) -> None:
    assert decoded_lines(content) == lines


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
    assert [x.source for x in read_line_profile(run.write()).functions] == [None] * 3


@pytest.mark.parametrize(
    ("kinds", "only", "reason"),
    [
        (("function",), None, "not called"),
        (("function", "compiled"), None, "compiled"),  # known at the end
        (("function",), "main", "--only main"),
    ],
)
def test_zero_hits_are_explained(
    tmp_path: Path, kinds: tuple[str, ...], only: str | None, reason: str
) -> None:
    run = LineRun(tmp_path, {"functions": [], "only": only})
    process = run.process()
    for kind in kinds:
        process.function("data.py", 1, "f", kind=kind)
    (function,) = read_line_profile(run.write()).functions
    assert function.rows == ()
    assert reason in function.unseen


def test_a_run_whose_lines_were_timed_gives_no_verdict(tmp_path: Path) -> None:
    def summary_of(name: str, **manifest: object) -> RunSummary:
        run = FakeRun()
        run.train_pass(run.loader(), run.optimizer(), 60, wait=MS)
        if name == "timed":
            run.text(Topic.LINE_FUNCTION, {"file": "x", "line": 1, "name": "f"})
        return summarize(run.write(tmp_path / name, **manifest))

    bare, timed = summary_of("bare"), summary_of("timed")
    assert bare.verdict.bottleneck == "data"
    for summary in (timed, summary_of("asked", options={"lines": {"only": None}})):
        assert (summary.verdict.bottleneck, summary.verdict.share) == ("unknown", None)
    assert timed.lines is not None
    assert timed.findings_from is None
    same = replace(timed, run=bare.run, verdict=bare.verdict, overhead=bare.overhead, lines=None)
    assert same == replace(bare, findings_from=None)


def test_what_the_text_is_compared_with_is_a_plain_file(tmp_path: Path) -> None:
    run = LineRun(tmp_path)
    run.source("data.py", DATA)
    os.mkfifo(tmp_path / "fifo")
    process = run.process()
    for file in (str(tmp_path / "fifo"), "/dev/zero", str(tmp_path), "relative.py", "<stdin>"):
        function = {"file": file, "line": 1, "name": "f", "source": process.sources["data.py"]}
        process.lines(process.log.text(Topic.LINE_FUNCTION, function), {1: (1, 10)})
    functions = read_line_profile(run.write()).functions
    assert len(functions) == 5
    assert not any(x.source.has_changed for x in functions if x.source)


def test_all_sources_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_SOURCES_BYTES", 25)
    run = LineRun(tmp_path)
    process_sources = [run.source(f"{name}.py", "x = 1\n" * 2) for name in "abc"]
    process = run.process()
    for path in process_sources:
        process.lines(process.function(path.name, 1, path.stem), {1: (1, 10)})
    functions = {function.name: function for function in read_line_profile(run.write()).functions}
    assert [functions[name].source is None for name in "abc"] == [False, False, True]
