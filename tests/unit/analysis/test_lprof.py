"""line_profiler's files: read without running anything, written so that it reads them."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import line_profiler
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainprof.analysis import lprof
from trainprof.analysis.line_recording import lprof_profile, lprof_stats
from trainprof.analysis.line_times import (
    FunctionTimes,
    LineProfile,
    LineTime,
    Source,
    block,
)
from trainprof.analysis.lprof import (
    ForeignLprof,
    LineStats,
    Refused,
    line_stats,
    lprof_bytes,
    read_lprof,
    write_lprof,
)

TIMINGS: dict[lprof.Place, list[lprof.Row]] = {
    ("/project/train.py", 10, "train"): [(11, 1, 5_000), (12, 1000, 2**40)],
    ("/project/data.py", 4, "Photos.__getitem__"): [(5, 46, 230_000_000)],
    ("/project/naïve.py", 1, "never"): [],
}
STATS = LineStats(TIMINGS, 1e-9)
REAL = pickle.dumps(line_profiler.LineStats(TIMINGS, 1e-9), pickle.HIGHEST_PROTOCOL)
ADDRESS_SPACE = 1 << 32


class Evil:
    """Pickles to a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.called


def stats_with(timings: object = TIMINGS, unit: object = 1e-9) -> bytes:
    """A real LineStats with these for its parts."""
    stats = line_profiler.LineStats({}, 1e-9)
    stats.__dict__.update(timings=timings, unit=unit)
    return pickle.dumps(stats, pickle.HIGHEST_PROTOCOL)


def program(body: bytes) -> bytes:
    return pickle.PROTO + b"\x04" + body + pickle.STOP


def named(module: bytes, name: bytes) -> bytes:
    return pickle.GLOBAL + module + b"\n" + name + b"\n"


# -- theirs and ours ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_what_line_profiler_writes_is_read(protocol: int) -> None:
    content = pickle.dumps(line_profiler.LineStats(TIMINGS, 1e-6), protocol)
    assert line_stats(content) == LineStats(TIMINGS, 1e-6)


def test_what_kernprof_writes_is_read(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("@profile\ndef f(n):\n    for _ in range(n):\n        pass\nf(100)\n")
    command = [sys.executable, "-m", "kernprof", "-l", "-o", "out.lprof", script.name]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    stats, _ = read_lprof(tmp_path / "out.lprof")
    assert stats.unit_s == 1e-9
    assert {place: [row[:2] for row in rows] for place, rows in stats.timings.items()} == {
        ("script.py", 1, "f"): [(3, 101), (4, 100)]
    }


def test_what_we_write_line_profiler_reads(tmp_path: Path) -> None:
    write_lprof(tmp_path / "lines.lprof", STATS)
    theirs = line_profiler.load_stats(tmp_path / "lines.lprof")
    assert theirs.timings == TIMINGS
    assert theirs.unit == 1e-9
    assert (tmp_path / "lines.lprof").stat().st_mode & 0o777 == 0o600


@settings(deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.text(max_size=9), st.integers(0, 2**24), st.text(max_size=9)),
        st.lists(
            st.tuples(
                st.integers(0, 2**24),
                st.integers(0, 2**61),
                st.integers(0, 2**61) | st.floats(0, 1e18),
            ),
            max_size=9,
        ),
        max_size=9,
    )
)
def test_there_and_back(timings: dict[lprof.Place, list[lprof.Row]]) -> None:
    stats = LineStats(timings, 1e-7)
    theirs = pickle.loads(lprof_bytes(stats))
    assert (theirs.timings, theirs.unit) == (timings, 1e-7)
    assert line_stats(lprof_bytes(stats)) == stats
    assert line_stats(pickle.dumps(theirs, pickle.HIGHEST_PROTOCOL)) == stats


@pytest.mark.parametrize(
    "module",
    [b"line_profiler.line_profiler", b"line_profiler._line_profiler", b"_line_profiler"],
)
def test_every_name_that_the_class_ever_had(module: bytes) -> None:
    content = lprof_bytes(STATS).replace(b"line_profiler._line_profiler", module)
    assert line_stats(content) == STATS


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lines.lprof").symlink_to("victim")
    (tmp_path / "lines.lprof.tmp").symlink_to("victim")
    with pytest.raises(OSError, match="symbolic link"):
        write_lprof(tmp_path / "lines.lprof", STATS)
    write_lprof(tmp_path / "lines.lprof", STATS)
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "lines.lprof").is_symlink()


def test_functions_of_one_place_are_added_up_for_line_profiler() -> None:
    def function(text: str, rows: tuple[LineTime, ...]) -> FunctionTimes:
        return FunctionTimes("f.py", 1, "f", "", Source((text,)), rows)

    profile = LineProfile(
        1e-9,
        (
            function("a", (LineTime(3, 1, 10), LineTime(5, 2, 20))),
            function("b", (LineTime(2, 4, 1), LineTime(3, 5, 2))),
        ),
    )
    assert lprof_stats(profile) == LineStats(
        {("f.py", 1, "f"): [(2, 4, 1), (3, 6, 12), (5, 2, 20)]}, 1e-9
    )


# -- texts --------------------------------------------------------------------------------------


def test_lines_come_from_the_file_as_it_is_now(tmp_path: Path) -> None:
    source, path = tmp_path / "f.py", tmp_path / "f.lprof"
    source.write_text("def f():\n    return 1\n\nx = 2\n")
    os.utime(source, ns=(1, 1))
    cell = "<ipython-input-1-abc>"
    write_lprof(
        path,
        LineStats(
            {
                (str(source), 1, "f"): [(2, 3, 9)],
                (str(tmp_path / "gone.py"), 1, "g"): [(2, 3, 9)],
                (cell, 1, "h"): [(2, 0, 0)],
            },
            1e-9,
        ),
    )
    f, g, h = lprof_profile(path).functions
    assert block(f) == ("def f():\n", "    return 1\n")
    assert f.source is not None
    assert not f.source.has_changed
    assert block(g) is None
    assert (block(h), h.rows, h.unseen) == ((), (), "never called")
    os.utime(source)
    os.utime(path, ns=(1, 1))
    edited = lprof_profile(path).functions[0].source
    assert edited is not None
    assert edited.has_changed


# -- hostile ------------------------------------------------------------------------------------

EVIL = {
    "os.system": pickle.dumps(Evil(os.system, "touch pwned")),
    "builtins.eval": pickle.dumps(Evil(eval, "1")),
    "nested": stats_with({("f", 1, "g"): [(1, 1, Evil(os.system, "touch pwned"))]}),
    "as the unit": stats_with(unit=Evil(print, 1)),
    "protocol 0": pickle.dumps(Evil(os.system, "touch pwned"), 0),
    "protocol 1": pickle.dumps(Evil(os.system, "touch pwned"), 1),
    "import alone": program(named(b"antigravity", b"x")),
    "stack global": program(b"\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R"),
    "class that looks alike": program(named(b"line_profiler.line_profiler", b"LineStats.print")),
    "module that looks alike": program(named(b"line_profiler.explicit_profiler", b"LineStats")),
    "called with arguments": program(
        named(b"line_profiler.line_profiler", b"LineStats") + b"}G" + b"\0" * 8 + b"\x86R"
    ),
    "made with arguments": program(
        named(b"line_profiler.line_profiler", b"LineStats") + b"K\x01\x85\x81"
    ),
    "built twice": lprof_bytes(STATS)[:-1] + b"}b.",
    "built on a dict": program(b"}}b"),
    "inst": program(b"(ios\nsystem\n"),
    "obj": program(b"(" + named(b"os", b"system") + b"o"),
    "persistent id": program(b"Pevil\n"),
    "extension": program(b"\x82\x01"),
    "bytes": program(b"C\x01x"),
    "set": program(b"\x8f"),
    "buffer": program(b"\x97"),
    "a method": pickle.dumps(Evil(getattr, [], "append")),
}


@pytest.fixture(scope="module")
def audited() -> Iterator[list[list[str]]]:
    """Lists that get the name of every audited event while they are in here."""
    listeners: list[list[str]] = []

    def listen(event: str, _: tuple[object, ...]) -> None:
        for listener in listeners:
            listener.append(event)

    sys.addaudithook(listen)  # for ever, and so once
    yield listeners
    listeners.clear()


@pytest.mark.parametrize("name", EVIL)
def test_what_calls_anything_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audited: list[list[str]], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.lprof").write_bytes(EVIL[name])
    happened: list[str] = []
    audited.append(happened)
    try:
        with pytest.raises(ForeignLprof) as caught:
            read_lprof(Path("evil.lprof"))
    finally:
        audited.remove(happened)
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    assert set(happened) == {"open"}
    assert [path.name for path in tmp_path.iterdir()] == ["evil.lprof"]


def test_what_it_asked_for_is_said() -> None:
    with pytest.raises(Refused, match=f"it asks for {os.system.__module__}.system"):
        line_stats(EVIL["os.system"])
    with pytest.raises(Refused, match="it asks for the operation INST"):
        line_stats(EVIL["inst"])


@pytest.mark.parametrize(
    "content",
    [
        stats_with(None),
        stats_with({}, None),
        stats_with({}, 0.0),
        stats_with({}, -1e-9),
        stats_with({}, float("nan")),
        stats_with({}, float("inf")),
        stats_with({}, True),
        stats_with({"f": []}),
        stats_with({("f", 1): []}),
        stats_with({("f", 1, 2): []}),
        stats_with({("f", -1, "g"): []}),
        stats_with({("f", True, "g"): []}),
        stats_with({("f", 1, "g"): ()}),
        stats_with({("f", 1, "g"): [(1, 2)]}),
        stats_with({("f", 1, "g"): [(1, 2.0, 3)]}),
        stats_with({("f", 1, "g"): [(1, -2, 3)]}),
        stats_with({("f", 1, "g"): [(1, 2, None)]}),
        stats_with({("f", 1, "g"): [(1, 2, float("inf"))]}),
        stats_with({("f", 1, "g"): [(1, 2**63, 3)]}),
        stats_with({("f", 1, "g"): [[1, 2, 3]]}),
        pickle.dumps({"timings": TIMINGS, "unit": 1e-9}),
        pickle.dumps(TIMINGS),
        b"",
        b".",
        b"}",
        b"{}",
        b"}}a.",
        b"]]].",
        b"ttttt.",
        b"(((((",
        b"import os",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",
        b"\x80\x04K\x01r\xff\xff\xff\xff.",
        b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
        b"I" + b"9" * 5000 + b"\n.",
        b"h\x05.",
    ],
)
def test_what_is_something_else_is_refused(content: bytes) -> None:
    with pytest.raises(Refused):
        line_stats(content)


@pytest.mark.parametrize("content", [REAL, lprof_bytes(STATS)])
def test_a_file_cut_at_any_byte_is_refused(content: bytes) -> None:
    for end in range(len(content)):
        with pytest.raises(Refused):
            line_stats(content[:end])


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: REAL[:-9] + tail))
def test_any_bytes_are_times_or_refused(content: bytes) -> None:
    with contextlib.suppress(Refused):
        assert isinstance(line_stats(content), LineStats)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(0, 255)), min_size=1))
@example([(0, 99), (1, 92)])  # a text with an escape that Python warns of
def test_a_damaged_file_is_times_or_refused(damage: list[tuple[int, int]]) -> None:
    content = bytearray(REAL)
    for at, value in damage:
        content[at] = value
    with contextlib.suppress(Refused):
        assert isinstance(line_stats(bytes(content)), LineStats)


BOMBS = {
    "large file": lambda: b"\x80\x04" + b"]" * lprof.MAX_BYTES,
    "many operations": lambda: program(b"]" * (lprof.MAX_OPERATIONS + 1)),
    "one list under every name": lambda: stats_with(
        dict.fromkeys([("f", line, "g") for line in range(3000)], [(1, 1, 1)] * 3000)
    ),
    "a key that is hard to hash": lambda: program(b"}" + b"K\x01" + b"q\0h\0\x86" * 60 + b"K\1s"),
    "a deep list": lambda: program(b"]" * 100_000 + b"a" * 99_999),
    "a number of a million digits": lambda: program(
        b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20)
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bomb.lprof"
    path.write_bytes(BOMBS[name]())

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    command = [sys.executable, "-m", "trainprof", "lines", str(path)]
    done = subprocess.run(
        command,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread of its takes addresses
        capture_output=True,
        preexec_fn=bounded,
        timeout=60,
        check=False,
    )
    message, hint = done.stderr.decode().splitlines()
    assert message.startswith(f"trainprof: {path} is not shown: ")
    assert hint.startswith("hint: ")
    assert (done.returncode, done.stdout) == (2, b"")


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.lprof")
    with pytest.raises(ForeignLprof, match="no plain file"):
        read_lprof(tmp_path / "fifo.lprof")
    (tmp_path / "folder.lprof").mkdir()
    with pytest.raises(OSError, match="directory"):
        read_lprof(tmp_path / "folder.lprof")


def test_the_corpus_is_evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.load(io.BytesIO(EVIL["nested"]))
    assert (tmp_path / "pwned").exists()
