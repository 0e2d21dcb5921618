"""Where a stream leaves out what it has made for other workers, told by its text."""

from __future__ import annotations

import textwrap

import pytest
from support.code_texts import code_of

from trainprof.probes.late_selection import LateSelection, late_selection

HEAD = "class Stream(IterableDataset):\n    def __iter__(self):\n"
INFO = """\
info = get_worker_info()
rank, world = (info.id, info.num_workers) if info else (0, 1)
"""


def of_body(body: str) -> LateSelection | None:
    """Returns what is told of an `__iter__` with this body, whose first line is 1."""
    text = HEAD + textwrap.indent(body, " " * 8)
    found = late_selection(code_of(text), text)
    if found is None:
        return None
    above = HEAD.count("\n")
    return LateSelection(found.first - above, found.last - above, found.at - above)


LATE = {
    "enumerate": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if i % world == rank:\n        yield x\n",
        LateSelection(3, 4, 4),
    ),
    "a count of its own": (
        f"""\
{INFO}i = 0
for path in self.paths:
    for line in open(path):
        x = self.parse(line)
        if i % world == rank:
            yield x
        i += 1
""",
        LateSelection(5, 7, 7),
    ),
    "continue": (
        f"""\
{INFO}for i, line in enumerate(self.lines):
    x = self.parse(line)
    if x is None:
        continue
    if i % world != rank:
        continue
    yield x
""",
        LateSelection(3, 7, 7),
    ),
    "continue with a count": (
        f"""\
{INFO}n = 0
for x in self.made():
    if n % world != rank or not x:
        n += 1
        continue
    n += 1
    yield x
""",
        LateSelection(4, 4, 5),  # `not x` is asked of its own alone
    ),
    "and more": (
        f"""\
{INFO}for i, x in enumerate(self.made()):
    if (
        rank == i % world
        and self.keeps(x)
    ):
        yield x
""",
        LateSelection(3, 4, 5),
    ),
    "attributes alone": (
        """\
info = get_worker_info()
for i, x in enumerate(self.made()):
    if i % info.num_workers == info.id:
        yield x
""",
        LateSelection(2, 3, 3),
    ),
    "one after the other": (
        """\
rank, world = 0, 1
if (info := get_worker_info()) is not None:
    rank = info.id
    world = info.num_workers
with open(self.path) as file:
    for i, x in enumerate(map(self.parse, file)):
        if i % world == rank:
            yield x, 1
""",
        LateSelection(6, 7, 7),
    ),
    "of all ranks": (
        f"{INFO}for i, x in enumerate(self.made()):\n"
        "    if i % (dist.get_world_size() * world) != self.rank * world + rank:\n"
        "        continue\n    yield x\n",
        LateSelection(3, 4, 4),
    ),
    "of all ranks, by names": (
        """\
info = get_worker_info()
n, me = info.num_workers, info.id
if dist.is_initialized():
    total, mine = n * dist.get_world_size(), me + n * dist.get_rank()
else:
    total, mine = n, me
for i, x in enumerate(self.made()):
    if i % total == mine:
        yield x
""",
        LateSelection(7, 8, 8),
    ),
    "of all ranks, worker by worker": (
        f"{INFO}yield from islice(self.made(), rank * ranks + self.rank, None, ranks * world)\n",
        LateSelection(3, 3, 3),
    ),
    "the distance": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if (i - rank) % world:\n"
        "        continue\n    yield x\n",
        LateSelection(3, 4, 4),
    ),
    "no distance": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if not (i - rank) % world:\n"
        "        yield x\n",
        LateSelection(3, 4, 4),
    ),
    "a distance of 0": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if (i - rank) % world == 0:\n"
        "        yield x\n",
        LateSelection(3, 4, 4),
    ),
    "else goes on": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if i % world == rank:\n"
        "        yield x\n    else:\n        continue\n",
        LateSelection(3, 4, 4),
    ),
    "else gives": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if i % world != rank:\n"
        "        continue\n    else:\n        yield x\n",
        LateSelection(3, 4, 4),
    ),
    "islice in a loop": (
        f"{INFO}for x in itertools.islice(self.made(), rank, None, world):\n    yield x\n",
        LateSelection(3, 3, 3),
    ),
    "islice alone": (
        f"{INFO}yield from islice(\n    self.made(),\n    rank,\n    None,\n    world,\n)\n",
        LateSelection(3, 8, 3),
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_lines_ahead_of_the_selection(name: str) -> None:
    body, expected = LATE[name]
    assert of_body(body) == expected


# Of a stream that returns what goes over its samples: the class's text ahead of `__iter__`.
STREAM = """\
import itertools


def parsed(line):
    return line.split()


class Stream(IterableDataset):
    def samples(self):
        for record in self.records():
            yield self.decode(record)

    def parse(self, line):
        return line.split()

"""
# `samples` draws its records at line 10.
PARSED, SAMPLES, PARSE = (("parsed", 4, 5), ("samples", 9, 11), ("parse", 13, 14))
ITER = 16

RETURNED = {
    "a method's": (
        "info = get_worker_info()\nif info is None:\n    return self.samples()\n"
        "return islice(self.samples(), info.id, None, info.num_workers)\n",
        (*SAMPLES, 5),
    ),
    "by a name, with workers": (
        "info = get_worker_info()\nmapped = map(self.parse, open(self.path))\n"
        "if info is not None:\n"
        "    mapped = itertools.islice(mapped, info.id, None, info.num_workers)\n"
        "return mapped\n",
        None,  # one name for two things
    ),
    "torch's own example": (
        "info = get_worker_info()\nmapped = map(self.parse, open(self.path))\n"
        "if info is not None:\n"
        "    return itertools.islice(mapped, info.id, None, info.num_workers)\n"
        "return mapped\n",
        (*PARSE, 5),
    ),
    "a function's": (
        f"{INFO}mine = islice(map(parsed, open(self.path)), rank, None, world)\nreturn mine\n",
        (*PARSED, 4),
    ),
    "an expression's": (
        f"{INFO}made = (self.parse(x) for x in self.lines)\n"
        "return islice(made, rank, None, world)\n",
        ("<genexpr>", 19, 19, 5),
    ),
    "records": (f"{INFO}return islice(self.lines, rank, None, world)\n", None),
    "another's samples": (
        f"{INFO}return islice(self.source.samples(), rank, None, world)\n",
        None,
    ),
    "elsewhere all of them": (
        f"{INFO}if self.whole == 1:\n    return self.samples()\n"
        "return islice(self.samples(), rank, None, world)\n",
        None,
    ),
    "what maps them": (
        f"{INFO}return map(self.parse, islice(self.lines, rank, None, world))\n",
        None,
    ),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_returned_selection_goes_over_is_done_for_all(name: str) -> None:
    body, expected = RETURNED[name]
    text = f"{STREAM}    def __iter__(self):\n{textwrap.indent(body, ' ' * 8)}"
    found = late_selection(code_of(text), text)
    if expected is None:
        assert found is None
        return
    function, first, last, at = expected
    assert found == LateSelection(first, last, ITER - 1 + at, function, drawn=(10,))


NONE_OF_IT = {
    "no selection": f"{INFO}for i, x in enumerate(self.made()):\n    yield x\n",
    "of every second sample": (
        "for i, x in enumerate(self.made()):\n    if i % 2 == 0:\n        yield x\n"
    ),
    "of its own numbers": (
        "n, k = self.every, self.first\n"
        "for i, x in enumerate(self.made()):\n    if i % n == k:\n        yield x\n"
    ),
    "by what the sample is": (
        f"{INFO}for x in self.made():\n    if x.key % world == rank:\n        yield x\n"
    ),
    "a number of something else": (
        f"{INFO}k = 0\nfor i, x in enumerate(self.made()):\n"
        "    if k % world == rank:\n        yield x\n"
    ),
    "of all ranks": (
        f"{INFO}world *= self.ranks\nwhole = world * self.ranks\n"
        "for i, x in enumerate(self.made()):\n    if i % whole == rank:\n        yield x\n"
    ),
    "another rank's worker": (
        f"{INFO}for i, x in enumerate(self.made()):\n"
        "    if i % world == self.rank * world + rank:\n        yield x\n"
    ),
    "all but its own": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if (i - rank) % world:\n        yield x\n"
    ),
    "a distance of something else": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if (i - self.first) % world:\n"
        "        continue\n    yield x\n"
    ),
    "a distance of 1": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if (i - rank) % world == 1:\n"
        "        yield x\n"
    ),
    "other samples are given, too": (
        f"{INFO}yield self.first()\nfor i, x in enumerate(self.made()):\n"
        "    if i % world == rank:\n        yield x\n"
    ),
    "the others are given as well": (
        f"{INFO}for i, x in enumerate(self.made()):\n    if i % world == rank:\n"
        "        yield x\n    else:\n        yield None\n"
    ),
    "on one line with what is kept": (
        f"{INFO}for i, x in enumerate(self.lines):\n    if i % world == rank: yield self.parse(x)\n"
    ),
    "a slice of some": f"{INFO}yield from islice(self.made(), rank, 100, world)\n",
    "a range": f"{INFO}for i in range(rank, 100, world):\n    yield self.parse(i)\n",
    "names from elsewhere": (
        "rank, world = self.place()\nfor i, x in enumerate(self.made()):\n"
        "    if i % world == rank:\n        yield x\n"
    ),
    "the rank is another by then": (
        f"{INFO}for rank in self.ranks:\n    for i, x in enumerate(self.made()):\n"
        "        if i % world == rank:\n            yield x\n"
    ),
    "in a function within": (
        f"{INFO}def inner():\n    for i, x in enumerate(self.made()):\n"
        "        if i % world == rank:\n            yield x\nyield from inner()\n"
    ),
}


@pytest.mark.parametrize("name", NONE_OF_IT)
def test_what_is_no_late_selection(name: str) -> None:
    assert of_body(NONE_OF_IT[name]) is None


def test_selected_ahead_of_the_work_is_told_with_what_stands_ahead_alone() -> None:
    body = f"""\
{INFO}for i, line in enumerate(self.lines):
    if i % world == rank:
        yield self.parse(line)
"""
    assert of_body(body) == LateSelection(3, 4, 4)  # parsing is no part of it


# What __iter__ goes over, with what stands in the class ahead of it; whether it only reads there.
DRAWS = {
    "a file": ("enumerate(open(self.path))", True),
    "a slice of a file": ("enumerate(islice(self.file, 100))", True),
    "an archive": ("enumerate(archive)", True),
    "rows": ("enumerate(csv.reader(self.file))", True),
    "lines that are cleaned": ("enumerate(x.strip() for x in self.file)", True),
    "what its own function maps": ("enumerate(map(self.parse, self.file))", True),
    "what its own function makes": ("enumerate(self.parse(x) for x in self.file)", True),
    "what a library maps": ("enumerate(map(json.loads, self.file))", False),
    "what a library makes": ("enumerate(json.loads(x) for x in self.file)", False),
    "by a name": ("enumerate(samples)", False),
}


@pytest.mark.parametrize("name", DRAWS)
def test_lines_that_only_draw_records(name: str) -> None:
    drawn_from, only_draws = DRAWS[name]
    body = (
        f"{INFO}samples = map(json.loads, self.file)\nfor i, x in {drawn_from}:\n"
        "    if i % world != rank:\n        continue\n    for one in x:\n        use(one)\n"
        "    yield x\n"
    )
    text = f"{HEAD}{textwrap.indent(body, ' ' * 8)}"
    found = late_selection(code_of(text), text)
    assert found is not None
    # Not the loop that gives nothing: it is work.
    assert found.drawn == ((HEAD.count("\n") + 4,) if only_draws else ())


def test_lines_that_draw_in_other_generators_of_the_file() -> None:
    others = (
        "def lines(path):\n    with gzip.open(path) as file:\n        yield from file\n\n"
        "def parse(line):\n    for one in line:\n        use(one)\n\n"
    )
    text = others + HEAD + textwrap.indent(LATE["enumerate"][0], " " * 8)
    found = late_selection(code_of(text), text)
    assert found is not None
    assert found.drawn == (3, others.count("\n") + HEAD.count("\n") + 3)


@pytest.mark.parametrize(
    "changed", ["def __iter__(self:\n", "", "\n\n\n", "x = '\x00'", "(" * 10_000]
)
def test_a_text_that_is_another_by_now_tells_nothing(changed: str) -> None:
    text = HEAD + textwrap.indent(LATE["enumerate"][0], " " * 8)
    assert late_selection(code_of(text), changed or "pass") is None


def test_a_function_that_has_lost_lines_since_tells_nothing() -> None:
    body = LATE["enumerate"][0]
    text = HEAD + textwrap.indent(body, " " * 8)
    later = HEAD + textwrap.indent("\n" * 20 + body, " " * 8)
    assert late_selection(code_of(text), later) is None
