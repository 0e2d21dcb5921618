"""Where a stream leaves out what it has made for other workers, told by its text."""

from __future__ import annotations

import textwrap
from types import CodeType

import pytest

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


def code_of(text: str) -> CodeType:
    """Returns the code of the `__iter__` in it; nothing of it is run."""
    waiting = [compile(text, "<text>", "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if code.co_name == "__iter__":
            return code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    raise AssertionError("no __iter__ in the text")


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


# What each round does ahead of `if i % world != rank: continue`, and `yield x` behind it.
CARRIED = {
    "a running state": "state = self.fold(state, rec)\nx = state.copy()\n",
    "one that is given behind": "state = fold(state, rec)\nx = rec\nlast = rec\n",
    "a sum": "total += rec.sum()\nx = rec / total\n",
    "an attribute": "self.state = fold(self.state, rec)\nx = parse(rec)\n",
    "the one before": "x = diff(before, rec)\nbefore = rec\n",
    "a header, met at times": "if rec.is_header:\n    head = rec\nx = parse(head, rec)\n",
    "that in a try": "try:\n    head = parse(rec)\nexcept ValueError:\n    pass\nx = f(head)\n",
    "of both branches one": (
        "if rec.is_header:\n    head = rec\nelse:\n    use(rec)\nx = parse(head, rec)\n"
    ),
    "a window": "window.append(rec)\nx = sum(window)\n",
    "a window of its own": "self.window.append(rec)\nx = self.window.mean()\n",
    "what a window held": "window.append(rec)\nx = window.pop(0)\n",
    "an array": "window[i % 8] = rec\nx = window.sum()\n",
    "all seen": "x = parse(rec)\nif x.key in seen:\n    continue\nseen.add(x.key)\n",
    "a flag": "if rec == END:\n    is_on = False\nif is_on:\n    continue\nx = parse(rec)\n",
    "a count that is used": "if good(rec):\n    n += 1\nx = make(rec, n)\n",
    "a count of sizes": "n += len(rec)\nif n > 100:\n    continue\nx = parse(rec)\n",
    "a walrus": "x = (state := fold(state, rec))\n",
    "by a method": "x = self.folds(rec)\n",
    "by a method of a method": "x = self.deep(rec)\n",
    "first of all": "if first is None:\n    first = rec\nx = rec - first\n",
    "a smoothed one": "if m is None:\n    m = rec\nelse:\n    m = f(m, rec)\nx = m\n",
}
FREE = {
    "set anew": "state = begin(rec)\nstate = fold(state, rec)\nx = state\n",
    "set in all branches": (
        "if rec.kind:\n    y = f(rec)\nelif rec.bad:\n    continue\nelse:\n    y = g(rec)\nx = y\n"
    ),
    "set or left out": "try:\n    y = f(rec)\nexcept ValueError:\n    continue\nx = y\n",
    "within a round": "y = []\nfor one in rec:\n    y.append(f(one))\nx = sum(y)\n",
    "a sum of a round": "y = 0\nfor one in rec:\n    y += f(one)\nx = y\n",
    "of the record": "rec.x = rec.x / 2\nrec['y'] = rec['z']\nx = rec\n",
    "a count": "n += 1\nif n > 100:\n    break\nif n % 10 == 0:\n    print('.')\nx = parse(rec)\n",
    "a count of some": "if rec.bad:\n    n += 1\n    continue\nif n > 9:\n    break\nx = f(rec)\n",
    "what none reads": "total += len(rec)\nlog.append(rec)\nself.seen += 1\nx = parse(rec)\n",
    "comprehensions": "x = [f(one) for one in rec if one]\ny = (lambda one: one)(x)\n",
    "a file, once": "if self.file is None:\n    self.file = open(PATH)\nx = self.file.at(rec)\n",
    "that by a method": "x = self.reads(rec)\n",
    "kept and read by methods": "self.keep(rec)\nx = self.kept_twice()\n",
    "with": "with open(rec) as file:\n    y = file.read()\nx = y\n",
}
CLASS = """\
class Stream(IterableDataset):
    def folds(self, one):
        self.state = self.fold(self.state, one)
        return self.state

    def deep(my, one):
        if one:
            return my.folds(one)

    def reads(self, one):
        if not self.file:
            self.file = h5py.File(self.path)
        return self.file[one]

    def keep(self, one):
        self.kept = one

    def kept_twice(self):
        return 2 * self.kept

    def pairs(self):
        before = None
        for one in self.lines:
            yield parse(before, one)
            before = one

    def plain(self):
        n = 0
        for one in self.lines:
            n += 1
            yield n, parse(one)

    def more(self):
        yield from self.pairs()

    def noisy(self):
        for one in self.lines:
            yield one + self.rng.normal()

    def in_turn(self):
        for one in np.random.permutation(self.lines):
            yield parse(one)

"""


def of_class(body: str) -> LateSelection | None:
    text = f"{CLASS}    def __iter__(self):\n{textwrap.indent(body, ' ' * 8)}"
    return late_selection(code_of(text), text)


def is_carried(body: str) -> bool:
    found = of_class(body)
    assert found is not None
    return found.is_carried


def leaving_out(ahead: str) -> str:
    rounds = f"{ahead}if i % world != rank:\n    continue\nyield x\n"
    return f"{INFO}for i, rec in enumerate(self.lines):\n{textwrap.indent(rounds, ' ' * 4)}"


def keeping(ahead: str) -> str:
    rounds = f"{ahead}if i % world == rank:\n    yield x\nelse:\n    continue\n"
    return f"{INFO}for i, rec in enumerate(self.lines):\n{textwrap.indent(rounds, ' ' * 4)}"


@pytest.mark.parametrize("name", CARRIED)
def test_samples_that_need_those_ahead_of_them_cannot_be_left_out(name: str) -> None:
    assert is_carried(leaving_out(CARRIED[name]))
    assert is_carried(keeping(CARRIED[name]))


@pytest.mark.parametrize("name", FREE)
def test_what_rounds_do_not_hand_on_is_no_matter(name: str) -> None:
    assert not is_carried(leaving_out(FREE[name]))
    assert not is_carried(keeping(FREE[name]))


@pytest.mark.parametrize(
    ("rounds", "is_needed"),
    [
        ("x = f(rec)\nif i % world == rank:\n    yield x, prev\nprev = x\n", True),
        ("x = f(rec)\nif i % world == rank:\n    yield x, prev\n    prev = x\n", False),
        ("window.append(rec)\nif i % world == rank:\n    yield sum(window)\n", True),
        ("if rec.head:\n    h = rec\nif i % world != rank:\n    continue\nyield rec, h\n", True),
        ("x = f(rec)\nif i % world != rank:\n    continue\nyield x, prev\nprev = x\n", False),
    ],
    ids=["handed on behind", "its own", "read behind", "a header read behind", "its own behind"],
)
def test_what_is_behind_the_selection_may_read_what_all_did(rounds: str, is_needed: bool) -> None:
    loop = f"for i, rec in enumerate(self.lines):\n{textwrap.indent(rounds, ' ' * 4)}"
    assert is_carried(f"{INFO}{loop}") is is_needed


SOURCES = {
    "self.pairs()": True,
    "self.more()": True,
    "map(self.folds, self.lines)": True,
    "(self.folds(x) for x in self.lines)": True,
    "self.plain()": False,
    "map(self.reads, self.lines)": False,
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_its_own_functions_hand_on_is_seen(source: str) -> None:
    bodies = [
        f"{INFO}for i, x in enumerate({source}):\n    if i % world == rank:\n        yield x\n",
        f"{INFO}made = {source}\nfor x in islice(made, rank, None, world):\n    yield x\n",
        f"{INFO}yield from islice({source}, rank, None, world)\n",
        f"{INFO}return islice({source}, rank, None, world)\n",
    ]
    assert [is_carried(body) for body in bodies] == [SOURCES[source]] * len(bodies)


@pytest.mark.parametrize(
    ("ahead", "is_random"),
    [
        ("x = f(rec, random.random())\n", True),
        ("x = rec + rng.normal()\n", True),
        ("x = rec + torch.rand(3)\n", True),
        ("x = rec + self._rng.integers(3)\n", True),
        ("x = next(self.noisy())\n", True),
        ("x = next(self.in_turn())\n", False),
        ("x = self.normalized(rec)\n", False),
    ],
)
def test_random_numbers_ahead_of_the_selection_are_told(ahead: str, is_random: bool) -> None:
    found = of_class(leaving_out(ahead))
    assert found is not None
    assert found.is_random is is_random


@pytest.mark.parametrize(
    ("source", "is_random"),
    [
        ("self.noisy()", True),
        ("(x + torch.randn(3) for x in self.lines)", True),
        ("self.in_turn()", False),
        ("random.sample(self.lines, 10)", False),
    ],
)
def test_random_numbers_in_what_is_gone_over_are_told(source: str, is_random: bool) -> None:
    found = of_class(
        f"{INFO}for i, x in enumerate({source}):\n    if i % world == rank:\n        yield x\n"
    )
    assert found is not None
    assert found.is_random is is_random


def test_random_numbers_for_its_own_samples_are_none_of_it() -> None:
    found = of_class(
        f"{INFO}for i, x in enumerate(self.lines):\n    if i % world == rank:\n"
        "        yield x + random.random()\n"
    )
    assert found is not None
    assert not found.is_random
