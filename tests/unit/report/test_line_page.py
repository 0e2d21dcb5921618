"""kernprof's table to a byte; the page on a terminal; hostile names and lines."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from line_profiler.line_profiler import show_text
from rich.cells import cell_len

from trainprof.analysis.lines.recording import decoded_lines
from trainprof.analysis.lines.times import FunctionTimes, LineProfile, LineTime, Source, arranged
from trainprof.analysis.run.process_name import ProcessName
from trainprof.analysis.summary.code import LineCost
from trainprof.report import kernprof_table, line_page
from trainprof.report.line_page import line_notes, processes_in_words, unseen_notes
from trainprof.report.text.layout import Page

TEXT = '''\
"""A module."""
import time


@cache
@retry(times=3,
       wait=1)
def decorated(n):
    """Does
nothing."""
    total = 0
    for i in range(n):
        total +=\ti
    # a remark that belongs to it

    return total  # naïve – 数

# a remark that does not
class Photos:
    def __getitem__(self, index):
        def inner():
            return (index,
                    1)

        if index:
            time.sleep(0.005)
        return inner()
        # the last word

    @property
    def length(self): return 10

    async def load(self):
        yield 1
\f
double = lambda x: x * 2; triple = (
    lambda x: x)
def last(): \\
    return 1'''
LINES = tuple(TEXT.split("\n"))
# First line and qualified name, as a code object tells them.
FUNCTIONS = (
    (5, "decorated"),
    (20, "Photos.__getitem__"),
    (21, "Photos.__getitem__.<locals>.inner"),
    (30, "Photos.length"),
    (33, "Photos.load"),
    (36, "<lambda>"),
    (38, "last"),
)
LENGTHS = {5: 12, 20: 9, 21: 3, 30: 2, 33: 2, 36: 2, 38: 2}
MAIN, WORKER = ProcessName(), ProcessName(worker=0)

some_ns = st.integers(0, 10**4) | st.integers(0, 10**12) | st.integers(0, 2**60)
some_hits = st.integers(1, 1000) | st.integers(1, 2**60)
units = st.sampled_from([1e-9, 1e-7, 1e-6, 1e-3, 1.0]) | st.floats(1e-12, 1e6)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("project") / "photos.py"
    path.write_text(TEXT, encoding="utf-8")
    return path


def profile_of(timings: dict[Any, Any], source: Source | None) -> LineProfile:
    functions = [
        FunctionTimes(file, line, name, "", source, tuple(LineTime(*row) for row in rows))
        for (file, line, name), rows in timings.items()
    ]
    return LineProfile(tuple(functions))


@st.composite
def timings(draw: st.DrawFn) -> dict[tuple[int, str], list[tuple[int, int, int]]]:
    """Rows inside of some of the functions."""
    chosen = draw(st.lists(st.sampled_from(FUNCTIONS), unique=True))
    rows_of = {}
    for line, name in chosen:
        numbers = st.integers(line, line + LENGTHS[line] - 1)
        lines = draw(st.lists(numbers, unique=True, max_size=LENGTHS[line]))
        rows_of[line, name] = [(number, draw(some_hits), draw(some_ns)) for number in sorted(lines)]
    return rows_of


@settings(deadline=None, max_examples=250)
@given(
    timings=timings(),
    shown_s=units,
    skip_zero=st.booleans(),
    sort=st.booleans(),
    is_there=st.booleans(),
)
@example({}, 1e-6, False, False, True)
@example({(5, "decorated"): []}, 1e-6, False, False, False)
@example({(5, "decorated"): [(11, 1, 0)]}, 1e-6, False, False, True)
@example({(5, "decorated"): [(11, 2**60, 2**60)]}, 1e-9, False, False, True)
def test_the_table_is_kernprofs(file, timings, shown_s, skip_zero, sort, is_there):
    path = str(file) if is_there else "/nowhere/photos.py"
    stats = {(path, line, name): rows for (line, name), rows in timings.items()}
    theirs = io.StringIO()
    show_text(
        stats,
        1e-9,
        output_unit=shown_s,
        stream=theirs,
        stripzeros=skip_zero,
        sort=sort,
        config=False,
    )
    source = Source(decoded_lines(file.read_bytes())) if is_there else None
    profile = arranged(profile_of(stats, source), by_time=sort)
    ours = kernprof_table.render(profile, unit_s=shown_s, skip_zero=skip_zero)
    assert ours == theirs.getvalue()


def test_what_it_looks_like():
    rows = (LineTime(2, 1000, 5_000_000_000), LineTime(3, 1000, 12_345_678))
    text = ("def f(x):\n", "    wait(x)\n", "    return x\n")
    function = FunctionTimes("/project/f.py", 1, "f", "", Source(text), rows)
    assert kernprof_table.render(LineProfile((function,))) == (
        "Timer unit: 1e-06 s\n"
        "\n"
        "Total time: 5.01235 s\n"
        "File: /project/f.py\n"
        "Function: f at line 1\n"
        "\n"
        "Line #      Hits         Time  Per Hit   % Time  Line Contents\n"
        "==============================================================\n"
        "     1                                           def f(x):\n"
        "     2      1000    5000000.0   5000.0     99.8      wait(x)\n"
        "     3      1000      12345.7     12.3      0.2      return x\n"
        "\n"
    )


def test_a_gap_that_only_damage_tells_of_is_not_printed():
    rows = (LineTime(2, 1, 1), LineTime(1 << 24, 1, 1))
    text = kernprof_table.render(LineProfile((FunctionTimes("f", 1, "f", "", None, rows),)))
    assert len(text.splitlines()) < 20
    assert "Could not find file f\n" in text
    assert f"{1 << 24}         1" in text


hostile = st.text(st.characters(codec=None), max_size=30) | st.sampled_from(
    ["\x1b[31mred", "\x1b]0;title\x07", "a\tb\fc", "\x9b2J", "x\u202ey", "\udcff", "a\x0bb\x1cc"]
)


def acting(text: str) -> list[str]:
    """Characters that do something to a terminal besides tabs, form feeds and newlines."""
    return [
        character
        for character in text
        if unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\n\t\f"
    ]


@settings(deadline=None, max_examples=150)
@given(name=hostile, path=hostile, line=hostile, has_text=st.booleans(), unit=st.booleans())
def test_nothing_in_a_name_or_a_line_acts(name, path, line, has_text, unit):
    source = Source(("def f():\n", f"    {line}\n", "    pass\n")) if has_text else None
    seen = FunctionTimes(
        path, 1, name, name, source, (LineTime(2, 1, 5),), ((WORKER, (LineTime(2, 1, 5),)),)
    )
    unseen = FunctionTimes(path, 1, name, name, None, (), unseen="never called")
    profile = LineProfile((seen, unseen), cwd="/", damage=(line,))
    table = kernprof_table.render(profile)
    assert not acting(table)
    shown = page(profile, unit_s=1e-6 if unit else None)
    assert not acting(shown)
    assert "\t" not in shown
    ascii_page = page(profile, unicode=False)
    assert ascii_page.isascii()
    for text in (shown, ascii_page):
        assert all(cell_len(row) <= 80 for row in text.splitlines())


# -- the page -----------------------------------------------------------------------------------

GETITEM = '''\
    def __getitem__(self, index):
        """Returns a photo.

        It is read anew each time.
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
    workers = [ProcessName(worker=number) for number in (0, 1)]
    getitem = FunctionTimes(
        "/project/data.py",
        1,
        "Photos.__getitem__",
        "dataset",
        text,
        rows,
        tuple((worker, share) for worker in workers),
    )
    train = FunctionTimes(
        "/project/train.py",
        3,
        "train",
        "training loop",
        Source(("\n", "\n", "def train():\n", "    step()\n")),
        (LineTime(4, 20, 3 * 10**9),),
        ((MAIN, (LineTime(4, 20, 3 * 10**9),)),),
    )
    unseen = FunctionTimes("/project/data.py", 1, "Photos.flip", "-f", text, (), unseen="compiled")
    cost = LineCost(3, 3, 8020, 110.0, 8020 * 110e-9)
    plain = {"cost": cost, "cwd": "/project"}
    return LineProfile((train, getitem, unseen), **{**plain, **changes})


def page(profile: LineProfile, width: int = 80, **options: Any) -> str:
    unicode, verbose = (options.pop(name, name == "unicode") for name in ("unicode", "verbose"))
    where = Page(width=width, unicode=unicode, verbose=verbose)
    return line_page.render(profile, where, **{"color": False, **options})


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
    ranks = [ProcessName(rank=rank) for rank in range(2)]
    every_kind = [*ranks, ProcessName(rank=1, worker=3), ProcessName(pid=7)]
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
                processes_in_words([MAIN]),
                processes_in_words([WORKER]),
                processes_in_words([MAIN, *(ProcessName(worker=n) for n in range(4))]),
                processes_in_words(every_kind),
            ],
        },
    )


def test_hot_lines_are_red_where_colour_is_allowed():
    text = page(photos(), color=True)
    (hot,) = [row for row in text.splitlines() if "picture.load()" in row]
    assert hot.startswith("\x1b[1;31m")
    assert "\x1b" not in page(photos())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("options", [{}, {"verbose": True}, {"unit_s": 1e-9}, {"unicode": False}])
def test_no_line_is_wider_than_the_page(width, options):
    for row in page(photos(), width, **options).splitlines():
        assert cell_len(row) <= width, row
        assert row == row.rstrip()
