"""kernprof's table to a byte; the page on a terminal; hostile names and lines."""

from __future__ import annotations

import io
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from line_profiler.line_profiler import show_text
from rich.cells import cell_len

from trainprof.analysis.lines.recording import decoded_lines
from trainprof.analysis.run.process_name import ProcessName
from trainprof.analysis.summary.code import (
    FunctionTimes,
    LineCost,
    LineProfile,
    LineTime,
    Source,
    arranged,
)
from trainprof.report import line_page
from trainprof.report.line_page import kernprof_table, line_notes, processes_in_words, unseen_notes
from trainprof.report.text.layout import Page

TEXT = '''\
@cache
@retry(times=3,
       wait=1)
def decorated(n):
    """Does
nothing."""
    for i in range(n):
        total +=\ti
    # a remark that belongs to it

    return total  # naïve – 数

class Photos:
    def __getitem__(self, index):
        if index:
            sleep(0.005)
        return [index,
                1]
\f
double = lambda x: x * 2; triple = (
    lambda x: x)'''
# By first line and qualified name, as in their code objects, their number of lines.
LENGTHS = {(1, "decorated"): 11, (14, "Photos.__getitem__"): 5, (20, "<lambda>"): 2}
MAIN, WORKER = ProcessName(), ProcessName(worker=0)

some_ns = st.integers(0, 10**4) | st.integers(0, 10**12) | st.integers(0, 2**60)
some_hits = st.integers(1, 1000) | st.integers(1, 2**60)
units = st.sampled_from([1e-9, 1e-7, 1e-6, 1e-3, 1.0]) | st.floats(1e-12, 1e6)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("project") / "photos.py"
    path.write_text(TEXT, encoding="utf-8")
    return path


@st.composite
def timings(draw):
    """Rows inside of some of the functions."""
    rows_of = {}
    for line, name in draw(st.lists(st.sampled_from(sorted(LENGTHS)), unique=True)):
        numbers = st.integers(line, line + LENGTHS[line, name] - 1)
        lines = draw(st.lists(numbers, unique=True))
        rows_of[line, name] = [(number, draw(some_hits), draw(some_ns)) for number in sorted(lines)]
    return rows_of


@settings(deadline=None, max_examples=250)
@given(timings(), units, st.booleans(), st.booleans(), st.booleans())
@example({(1, "decorated"): []}, 1e-6, False, False, False)
@example({(1, "decorated"): [(7, 1, 0)]}, 1e-6, False, False, True)
@example({(1, "decorated"): [(7, 2**60, 2**60)]}, 1e-9, False, False, True)
def test_the_table_is_kernprofs(file, timings, shown_s, skip_zero, sort, is_there):
    path = str(file) if is_there else "/nowhere/photos.py"
    stats = {(path, line, name): rows for (line, name), rows in timings.items()}
    theirs = io.StringIO()
    how = {"output_unit": shown_s, "stripzeros": skip_zero, "sort": sort, "config": False}
    show_text(stats, 1e-9, stream=theirs, **how)
    source = Source(decoded_lines(file.read_bytes())) if is_there else None
    functions = (
        FunctionTimes(*place, "", source, tuple(LineTime(*row) for row in rows))
        for place, rows in stats.items()
    )
    profile = arranged(LineProfile(tuple(functions)), by_time=sort)
    ours = kernprof_table(profile, unit_s=shown_s, skip_zero=skip_zero)
    assert ours == theirs.getvalue()


def test_a_gap_in_a_damaged_log_is_not_printed():
    rows = (LineTime(2, 1, 1), LineTime(1 << 24, 1, 1))
    text = kernprof_table(LineProfile((FunctionTimes("f", 1, "f", "", None, rows),)))
    assert len(text.splitlines()) < 20


hostile = st.text(st.characters(codec=None), max_size=30) | st.sampled_from(
    ["\x1b[31mred", "\x1b]0;title\x07", "a\tb\fc", "\x9b2J", "x\u202ey", "\udcff", "a\x0bb\x1cc"]
)


def acting(text: str) -> list[str]:
    """Characters that do something to a terminal besides tabs, form feeds and newlines."""
    return [x for x in text if unicodedata.category(x) in ("Cc", "Cf", "Cs") and x not in "\n\t\f"]


@settings(deadline=None, max_examples=150)
@given(name=hostile, path=hostile, line=hostile, has_text=st.booleans(), unit=st.booleans())
def test_nothing_in_a_name_or_a_line_acts(name, path, line, has_text, unit):
    source = Source(("def f():\n", f"    {line}\n", "    pass\n")) if has_text else None
    seen = FunctionTimes(
        path, 1, name, name, source, (LineTime(2, 1, 5),), ((WORKER, (LineTime(2, 1, 5),)),)
    )
    unseen = FunctionTimes(path, 1, name, name, None, (), unseen="never called")
    profile = LineProfile((seen, unseen), cwd="/", damage=(line,))
    table = kernprof_table(profile)
    assert not acting(table)
    shown = page(profile, unit_s=1e-6 if unit else None)
    assert not acting(shown)
    assert "\t" not in shown
    ascii_page = page(profile, unicode=False)
    assert ascii_page.isascii()
    for text in (shown, ascii_page):
        assert all(cell_len(row) <= 80 for row in text.splitlines())


# The page

GETITEM = '''\
    def __getitem__(self, index):
        """Returns a photo.

        It is read from disk each time.
        """
        path = self.paths[index]
        picture = Image.open(path)
        picture.load()
        small = picture.resize((64, 64))
        if self.flips and random() < 0.5:
            small = small.transpose(LEFT_TO_RIGHT)
        if self.crops:
            small = small.crop(self.box)
        array = asarray(small)
        return from_numpy(array), self.labels[index]
'''
ROWS = {6: 0.001, 7: 0.02, 8: 0.7, 9: 0.2, 10: 0.005, 12: 0.001, 14: 0.013, 15: 0.06}


def photos(**changes: Any) -> LineProfile:
    """A dataset's function timed in two workers, 12 s in all."""
    share = tuple(LineTime(line, 500, round(part * 6e9)) for line, part in ROWS.items())
    rows = tuple(LineTime(row.line, 2 * row.hits, 2 * row.time) for row in share)
    text = Source(tuple(GETITEM.splitlines(keepends=True)))
    by_worker = tuple((ProcessName(worker=number), share) for number in (0, 1))
    place = ("/project/data.py", 1, "Photos.__getitem__", "dataset")
    getitem = FunctionTimes(*place, text, rows, by_worker)
    steps = (LineTime(4, 20, 3 * 10**9),)
    loop = Source(("\n", "\n", "def train():\n", "    step()\n"))
    place = ("/project/train.py", 3, "train", "training loop")
    train = FunctionTimes(*place, loop, steps, ((MAIN, steps),))
    unseen = FunctionTimes("/project/data.py", 1, "Photos.flip", "-f", text, (), unseen="compiled")
    cost = LineCost(3, 3, 8020, 110.0, 8020 * 110e-9)
    plain = {"cost": cost, "cwd": "/project"}
    return LineProfile((train, getitem, unseen), **{**plain, **changes})


def page(profile: LineProfile, width: int = 80, **options: Any) -> str:
    names = {"color", "unicode", "verbose"} & options.keys()
    where = Page(width, **{name: options.pop(name) for name in names})
    return line_page.render(profile, where, **options)


def alone(*rows: LineTime, text: Source | None = None, name: str = "f") -> FunctionTimes:
    return FunctionTimes("f.py", 1, name, "", text or Source(("pass\n",)), rows)


def test_line_pages(golden, gallery):
    closing = ("see it again:", "trainprof lines latest")
    golden("lines_80.txt", page(photos(), closing=closing))
    golden("lines_120.txt", page(photos(), 120, closing=closing, unit_s=1e-3))
    golden("lines_per_process_80.txt", page(photos(), per_process=True))
    cold = Source(("def f():\n", "    hot()\n", *(f"    cold({n})\n" for n in range(200))))
    folded = alone(LineTime(2, 1, 99_000), *(LineTime(n, 1, 5) for n in range(3, 203)), text=cold)
    longest = alone(LineTime(1, 1, 10**9), name="longest")
    short, brief = (alone(LineTime(1, 1, 100), name=name) for name in ("short", "brief"))
    edited = alone(text=Source(("x\n",), has_changed=True))
    costs = {
        "plain": LineCost(1, 1, 5, 110.0, 5e-7),
        "with callees": LineCost(1, 1, 5, 110.0, 5e-7, traces_callees=True),
        "unknown": LineCost(1, 1, 5, None, None),
    }
    every_kind = ["rank 0", "rank 1", "rank 1 worker 3", "process 7"]
    gallery(
        "line_pages.txt",
        {
            "cold lines folded": page(LineProfile((folded,))),
            "functions that took next to nothing": page(LineProfile((longest, short, brief))),
            "the same, verbose": page(LineProfile((longest, short, brief)), verbose=True),
            "a single such function": page(LineProfile((longest, short))),
            "narrow": page(photos(), 60),
            "without what was not reached": page(photos(), skip_zero=True),
            "verbose": page(photos(), verbose=True),
            "not reached": unseen_notes(photos()),
            "edited": line_notes(LineProfile((edited, edited), photos().cost, "/project")),
            **{f"price: {title}": line_notes(photos(cost=cost)) for title, cost in costs.items()},
            "processes": [
                processes_in_words(["main"]),
                processes_in_words(["worker 0"]),
                processes_in_words(["main", *(f"worker {n}" for n in range(4))]),
                processes_in_words(every_kind),
            ],
        },
    )


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_no_line_is_wider_than_the_page(width):
    for options in ({}, {"verbose": True}, {"unit_s": 1e-9}):
        for row in page(photos(), width, **options).splitlines():
            assert cell_len(row) <= width, row
            assert row == row.rstrip()
